"""`MethodSpec`: the description of a method for training, cost model, settings and help.

This module needs neither torch nor MPI; `istmpi.methods` imports the class that runs the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

from istmpi.config.received import HeldCounts, RunSettings, count_trained
from istmpi.engine.axes import count_bytes
from istmpi.engine.layout import Owners, TrainingLayout
from istmpi.engine.output_sums import StepOutputs
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.partition import Cut, Partition
from istmpi.engine.route import Leg, Parameters, Route
from istmpi.engine.slots import VELOCITY
from istmpi.errors import ConfigError, did_you_mean
from istmpi.optim.optimizers import choose_optimizer

if TYPE_CHECKING:
    from istmpi.network.architecture import Architecture
    from istmpi.optim.course import Course

RESET = "reset"
"""The value of method.optimizer_state with which a round's end deletes the state."""
KEEP = "keep"
"""The value with which the state stays on its rank."""
CARRY = "carry"
"""The value with which the state moves with its weights."""
RING_BYTES = 2**20
"""The least bytes of all undealt parameters for a ring all-reduce, if no outer step follows. A ring
is nearer to the line's rate than all-to-all, but each rank sends 2(P-1) more messages."""


def choose_groups(partition: tuple[str, ...] | None, architecture: Architecture) -> tuple[str, ...]:
    """Return the groups that method.partition wants dealt out; the network may lack some."""
    if partition is None:
        return architecture.default_groups
    return partition


@dataclass(frozen=True)
class MethodSpec:
    """A method of training: what it deals out to ranks, sends and keeps."""

    name: str
    summary: str
    """A sentence for the help, without a full stop."""
    rounds: str = ""
    """The class that runs the rounds, in `istmpi.methods`, such as ``ist.IST``; empty if only costs
    are counted."""
    settings: tuple[str, ...] = ()
    """The names of the method's own settings in [method]; `SpecificSettings` has their types."""
    legs: Callable[[MethodSpec, RunSettings, Route, Parameters, int], Iterable[Leg]] | None = None
    """The legs with which ranks exchange whole networks in a round (`istmpi.config.legs`); None:
    `Route.out_of`."""
    sends_every_step: bool = False
    """True if the method sends in every local step. Ranks take these steps together, so they may
    share a batch."""
    changes_gradients: bool = False
    """True if the method changes gradients before an optimizer's step."""
    sends_since: Callable[[RunSettings], int] = lambda run: 0
    """The first round in which the method sends."""
    replicated: bool = False
    """True if ranks keep the whole network, or their subnets with ``sums_outputs``. In the first
    round they pull it from the owners, with its slots."""
    own_networks: bool = False
    """True if ranks' networks differ between rounds, and from the network that is evaluated."""
    received: Callable[[RunSettings, HeldCounts], int | Fraction] = count_trained
    """The elements that all ranks together receive in an exchange; `count_trained` adds a rank's
    own, as papers do."""
    makes_communicators: bool = False
    """True if rounds create further MPI communicators."""
    deals: bool = False
    """True if the method deals out the network's unit groups."""
    stays: bool = False
    """True if values may stay between rounds: dealt parameters with their holders, other parameters
    on all ranks."""
    largest: bool = False
    """True if ranks send only the largest changes of weights."""
    learns_from_others: bool = False
    """True if ranks run batches through the other ranks' networks."""
    sums_outputs: bool = False
    """True if subnets learn from the sum of their outputs: ranks keep the subnets of the first
    deal, and all ranks draw the same batches."""
    members: Callable[[RunSettings, int], int] = lambda run, ranks: ranks
    """The number of ranks that take part in a round, for a run and its number of ranks."""
    in_passes: bool = False
    """True if a round is method.epochs passes over a rank's data, instead of method.local_steps."""
    outer_step: tuple[float, float] | None = None
    """Default learning rate and momentum of the outer step after a round; None for a method without
    one."""
    always_carries: bool = False
    """True if the optimizer's state is never reset. Rounds do not send it."""
    states: tuple[str, ...] = (RESET, CARRY)
    """The values of method.optimizer_state that the method allows, its default first; not read if
    it always carries."""
    own_state: bool = False
    """True if no owner gets the ranks' optimizer states; the run's next method begins without
    them."""
    owned_tensors: int = 1
    """The number of tensors that an owner has for its rows of a parameter, without slots."""
    delay_by_default: int = 0
    """The value of method.delay if the run gives none."""
    encodes: bool = False
    """True if rounds can send values in fewer bits (method.wire)."""
    copies: Callable[[RunSettings, int, int], int] = lambda run, ranks, slots: 0
    """The number of whole networks kept besides the trained one, for a run, its number of ranks,
    and the number of optimizer slots that are stored for each parameter."""

    @property
    def reads(self) -> set[str]:
        """The names of the settings in [method] that the method reads."""
        conditions = {
            "local_steps": not self.in_passes,
            "optimizer_state": not self.always_carries,
            "outer_lr": self.outer_step is not None,
            "outer_momentum": self.outer_step is not None,
            "wire": self.encodes,
            "delay": self.stays or self.delay_by_default > 0,
            "top": self.stays,  # of method.shared_wire
            "feedback": self.stays,
        }
        read = {name for name, is_read in conditions.items() if is_read}
        return {"name", "finish", *self.settings, *read}

    def wire(self, run: RunSettings) -> str:
        """Return the form in which values are sent."""
        if not self.encodes:
            return "float32"
        return run.method.wire

    def sends_changes(self, run: RunSettings, ranks: int) -> bool:
        """Return True if rounded messages have the changes of weights in a round, and not the
        weights."""
        return ranks > 1 and self.wire(run) != "float32" and self.takes_outer_step(run)

    def sends_largest(self, run: RunSettings) -> bool:
        return self.largest or (self.stays and run.method.shared_wire == "top-k")

    def groups(self, run: RunSettings, architecture: Architecture) -> tuple[str, ...]:
        """Return the unit groups that a run deals out. Raises ConfigError if the network lacks one
        of them."""
        if not self.deals:
            return ()
        for name in run.method.partition or ():
            if name not in architecture.groups:
                architecture.require_dealable((name,), False)
                raise ConfigError(
                    f"method.partition: {name} is not a unit group of this "
                    f"model{did_you_mean(name, architecture.groups)}"
                )
        return choose_groups(run.method.partition, architecture)

    def shared(self, run: RunSettings, architecture: Architecture) -> list[str]:
        groups = self.groups(run, architecture)
        parameters = architecture.parameters.items()
        return [name for name, parameter in parameters if not parameter.pattern.dealt(groups)]

    def shares_by_ring(self, run: RunSettings, architecture: Architecture, ranks: int) -> bool:
        """Return True if undealt parameters stay on all ranks, which take their mean by a ring
        all-reduce.

        Otherwise they are pulled and pushed like dealt parameters.
        """
        shared = self.shared(run, architecture)
        if not self.stays or self.takes_outer_step(run) or ranks == 1 or not shared:
            return False
        if not self.groups(run, architecture) or self.sends_largest(run):
            return True
        # Owners have no values between two means, and none while weights are under way.
        if run.method.share_every > 1 or self.leaves_early(run, architecture, ranks):
            return True
        parameters = {name: architecture.parameters[name] for name in shared}
        tensors = 1 + len(self.moved_slots(run))
        return count_bytes(parameters, architecture.lengths) * tensors >= RING_BYTES

    def kept_by_all(self, run: RunSettings, architecture: Architecture, ranks: int) -> list[str]:
        """Return the names of the parameters that all ranks keep from round to round."""
        if self.replicated:
            return list(architecture.parameters)
        if self.shares_by_ring(run, architecture, ranks):
            return self.shared(run, architecture)
        return []

    def on_all_ranks(self, run: RunSettings, architecture: Architecture, ranks: int) -> list[str]:
        """Return the names of the weights that every rank has with the values that are evaluated,
        after each round."""
        if self.own_networks or self.share_every(run) > 1:
            return []
        return self.kept_by_all(run, architecture, ranks)

    def route(
        self,
        run: RunSettings,
        architecture: Architecture,
        ranks: int,
        deal: Callable[[int], TrainingLayout],
        course: Course | None = None,
    ) -> Route:
        """Return the route of the weights through a run's rounds; ``deal`` returns the layout of a
        round's training. ``course``: by default that of `train.rounds`."""
        exchange = None
        if self.legs:
            exchange = partial(self.legs, self, run)
        return Route(
            owners=Owners(architecture.lengths, ranks),
            deal=deal,
            groups=self.groups(run, architecture),
            stays=self.stays_with_holders(run, architecture, ranks),
            common=frozenset(self.kept_by_all(run, architecture, ranks)),
            every=self.share_every(run),
            local_steps=run.method.local_steps,
            early=self.leaves_early(run, architecture, ranks),
            last=run.last_rounds(course),
            wire=self.wire(run),
            seed=run.train.seed,
            largest=self._choose_largest(run),
            own_slots=bool(self.own_slots(run)),
            drawn=_list_drawn(architecture, run.train.init, run.model.init),
            sends_changes=self.sends_changes(run, ranks),
            outputs=self._describe_outputs(run.train.batch, architecture),
            slots=self.moved_slots(run),
            stored=self.slots(run),
            exchange=exchange,
            since=self.sends_since(run),
            means=self.sends_in_a_round(run),
        )

    def _describe_outputs(self, batch: int, architecture: Architecture) -> StepOutputs | None:
        if not self.sums_outputs:
            return None
        return StepOutputs(
            # An example that is a graph has an output for each node.
            rows=ceil(batch * architecture.nodes[0]),
            values=architecture.numbers,
            dtype=next(iter(architecture.parameters.values())).dtype,
        )

    def _choose_largest(self, run: RunSettings) -> Largest | None:
        """Return how many of the largest changes ranks send; None if they send all."""
        if not self.sends_largest(run):
            return None
        return Largest(run.method.top, run.method.feedback)

    def redeal(self, run: RunSettings) -> float:
        """Return the fraction of a rank's units that others get in the next deal."""
        if self.sums_outputs:
            return 0.0
        return run.method.redeal

    def deal(
        self,
        run: RunSettings,
        architecture: Architecture,
        ranks: int,
        round: int,
        shares: Sequence[float] | None = None,
    ) -> Partition:
        """Return a round's deal, by default with the run's fixed shares. Raises ConfigError if it
        is impossible."""
        return Partition.draw(
            lengths=architecture.lengths,
            groups=self.groups(run, architecture),
            ranks=ranks,
            seed=run.train.seed,
            round=round,
            shares=shares or self.shares(run),
            redeal=self.redeal(run),
            holders=self.holders(run),
        )

    def holders(self, run: RunSettings) -> int:
        """Return the number of ranks that hold each dealt unit."""
        if "holders" not in self.settings:
            return 1
        return run.method.holders

    def cut(self, run: RunSettings, ranks: int) -> Cut:
        """Return how a run cuts the units of dealt groups into the parts of ranks."""
        return Cut(ranks, self.shares(run), self.holders(run))

    def shares(self, run: RunSettings) -> tuple[float, ...] | None:
        """Return the fixed shares of a run; None for equal or changing shares."""
        if isinstance(run.method.shares, str):
            return None
        return run.method.shares

    def outer(self, run: RunSettings) -> tuple[float, float]:
        """Return the learning rate and momentum of a run's outer step; (1, 0) without one."""
        if self.outer_step is None:
            return 1.0, 0.0
        lr, momentum = self.outer_step
        if run.method.outer_lr is not None:
            lr = run.method.outer_lr
        if run.method.outer_momentum is not None:
            momentum = run.method.outer_momentum
        return lr, momentum

    def takes_outer_step(self, run: RunSettings) -> bool:
        """Return True if a run has an outer step that is more than taking the mean."""
        return self.outer(run) != (1, 0)

    def state(self, run: RunSettings) -> str:
        """Return what a round's end does with the optimizer's state: RESET, KEEP or CARRY."""
        if self.always_carries:
            return KEEP
        return run.method.optimizer_state or self.states[0]

    def keeps_optimizer(self, run: RunSettings) -> bool:
        return self.state(run) != RESET

    def optimizer_slots(self, run: RunSettings) -> tuple[str, ...]:
        """Return the kinds of optimizer slots kept between rounds. Raises ConfigError if they
        cannot be kept."""
        if not self.keeps_optimizer(run):
            return ()
        return choose_optimizer(run.optimizer).keep_slots()

    def own_slots(self, run: RunSettings) -> tuple[str, ...]:
        """Return the kinds of optimizer slots that no owner stores and no rank sends."""
        if self.always_carries or self.state(run) != KEEP:
            return ()
        return self.optimizer_slots(run)

    def slots(self, run: RunSettings) -> tuple[str, ...]:
        """Return the kinds of slots that owners store."""
        _, momentum = self.outer(run)
        slots: list[str] = []
        if not self.own_slots(run):
            slots += self.optimizer_slots(run)
        if momentum:
            slots.append(VELOCITY)
        return tuple(slots)

    def moved_slots(self, run: RunSettings) -> tuple[str, ...]:
        """Return the kinds of slots that are sent with their parameters."""
        if self.state(run) != CARRY:
            return ()
        return self.optimizer_slots(run)

    def share_every(self, run: RunSettings) -> int:
        """Return the number of rounds between means of parameters that all ranks keep."""
        if not self.stays:
            return 1
        return run.method.share_every

    def sends_in_a_round(self, run: RunSettings) -> int:
        """Return how many times the legs of a round are sent."""
        if not self.sends_every_step:
            return 1
        return run.method.local_steps

    def stays_with_holders(self, run: RunSettings, architecture: Architecture, ranks: int) -> bool:
        """Return True if dealt parameters stay with their holders between rounds, as far as the
        next deal allows. Owners take the mean of several holders."""
        if not self.stays or ranks == 1 or self.takes_outer_step(run) or self.holders(run) > 1:
            return False
        return bool(self.groups(run, architecture))

    def delay(self, run: RunSettings) -> int:
        """Return the number of local steps between departure and arrival of weights."""
        delay = run.method.delay
        if delay is None:
            delay = self.delay_by_default
        return min(delay, run.method.local_steps - 1)

    def leaves_early(self, run: RunSettings, architecture: Architecture, ranks: int) -> int:
        """Return how many local steps before a round's end weights leave; 0 if none do."""
        if not self.stays_with_holders(run, architecture, ranks):
            return 0
        return self.delay(run)

    def steps(self, run: RunSettings, ranks: int, examples: int) -> int:
        """Return a rank's local steps of a round. ``examples``: the number of training examples."""
        if not self.in_passes:
            return run.method.local_steps
        examples_of_a_rank = examples
        if run.data.placement != "shared":
            examples_of_a_rank = -(-examples // ranks)
        # The last batch of a pass may be smaller.
        return run.method.epochs * -(-examples_of_a_rank // run.train.batch)


def _list_drawn(architecture: Architecture, start: str, init: str) -> frozenset[str]:
    """Return the parameters whose initial values are random numbers that follow from the seed
    alone.

    What torch computes or a file has is left out: another version or file on one rank would give
    it other values. ``start``, ``init``: as train.init and model.init.
    """
    if start or init == "constructor":
        return frozenset()
    return frozenset(architecture.parameters) - frozenset(architecture.table.computed)
