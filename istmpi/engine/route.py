"""The route of the weights through a round, as data: which parameters move between which layouts.
Pure.

Training executes the legs (`istmpi.engine.shards`). The cost model counts each leg in two ways:
exactly for a drawn deal (`istmpi.cost.pairs.leg_bytes`), and as an expectation over deals
(`istmpi.cost.loads.expect_load`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from istmpi import rng
from istmpi.comm.codec import Wire
from istmpi.engine.axes import Parameter, with_slots
from istmpi.engine.layout import Layout, Owners, TrainingLayout
from istmpi.engine.output_sums import StepOutputs
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.slots import select_weights, strip_slot

PULL = "pull"
"""A leg from owners to the ranks that train."""
HOP = "hop"
"""A leg from the ranks that trained to the ranks that train next."""
PUSH = "push"
"""A leg from the ranks that trained to owners."""
MEAN = "mean"
"""A leg that gives all ranks their mean."""
FRAGMENT = "fragment"
"""A leg that gives all ranks their mean, from values of four bits."""
GATHER = "gather"
"""A leg that gives every rank the parameters of every other rank."""
SPREAD = "spread"
"""A leg that gives all ranks the values of one rank."""
FLUSH = "flush"
"""A leg from the ranks with the newest values to owners, after the last round of a method."""

Parameters = Mapping[str, Parameter]


@dataclass(frozen=True)
class Leg:
    """Parameters that move from layout ``source`` to ``target``; a mean and a gather need no
    layouts."""

    name: str
    parameters: Parameters
    source: Layout | None = None
    target: Layout | None = None
    exclude: TrainingLayout | None = None
    """A deal. Elements of its dealt parameters move only if no rank holds them in this deal."""
    wire: Wire | Largest | None = None
    """The form in which values are sent. `Largest` sends only the largest changes; None sends
    values unchanged."""
    shared: bool = True
    """False: what all ranks have of a parameter that is dealt out in part does not move. Owners
    have its mean."""
    during: range = range(0)
    """The local steps that ranks take while the leg is under way; empty if they wait for it."""
    times: int = 1
    """The number of times that a round sends it, one after the other."""


@dataclass(frozen=True)
class Route:
    """The legs of every round of a method, which may deal out units or nothing."""

    owners: Owners
    deal: Callable[[int], TrainingLayout]
    """A function that returns the layout in which ranks train in a round."""
    groups: Sequence[str] = ()
    stays: bool = False
    """True if dealt parameters stay with their holders until the next deal; otherwise owners get
    them each round."""
    common: frozenset[str] = frozenset()
    """Names of the parameters that all ranks keep, and that become the ranks' mean."""
    every: int = 1
    """The number of rounds between means of common parameters."""
    local_steps: int = 1
    early: int = 0
    """The number of local steps after weights leave. Above 0, a round begins with the next pull."""
    last: Collection[int] = ()
    """Numbers of the rounds, counted from 1, in which nothing leaves early."""
    wire: str = "float32"
    seed: int = 0
    largest: Largest | None = None
    """The form of messages if ranks send only the largest changes of common weights. Slots then
    differ by rank."""
    own_slots: bool = False
    """True if slots of common parameters stay on their ranks: no owner stores them, and no mean is
    taken."""
    sends_changes: bool = False
    """True if trained weights travel as changes since the round's start. An outer step makes
    momentum of what a mean changes, and thus of the roundings of weights; a change is rounded in
    proportion to itself."""
    slots: tuple[str, ...] = ()
    """The kinds of slots that move with their parameters in every round."""
    stored: tuple[str, ...] = ()
    """The kinds of slots that owners store."""
    exchange: Callable[["Route", Parameters, int], Iterable[Leg]] | None = None
    """A function that returns the legs with which ranks exchange values in a round; None for
    `out_of`."""
    since: int = 0
    """The first round in which ranks exchange values."""
    means: int = 1
    """The number of means of common parameters in a round in which they are due."""
    drawn: frozenset[str] = frozenset()
    """Names of the parameters whose initial values follow from the seed. Ranks compute them in
    round 0, and need none from owners."""
    outputs: StepOutputs | None = None
    """The outputs that ranks add up; None if subnets do not learn from the sum of their outputs. If
    they do, ranks keep the units of the first deal, and no weight moves."""

    @property
    def keeps_all(self) -> bool:
        """True if every rank keeps what it trains between rounds: the whole network, or its subnet
        of the first deal."""
        return bool(self.common) and (not self.groups or self.outputs is not None)

    def leaves_early(self, round: int) -> bool:
        return bool(self.early) and round + 1 not in self.last

    def into(
        self,
        parameters: Parameters,
        round: int,
        before: TrainingLayout | None,
        present: Collection[str] = (),
    ) -> Iterator[Leg]:
        """Yield the legs that bring ranks the parameters of a round: from their last holders and
        from their owners.

        ``before``: the deal in which ranks hold dealt parameters; None if all are with their
        owners. Parameters in ``present`` are not pulled: ranks have them already. Nor are those of
        `computed_in`. Owners send common parameters unchanged, and in round 0 all parameters, if
        the route has ``common`` parameters or ``stays``.
        """
        now = self.deal(round)
        if before:
            yield Leg(
                HOP,
                select_dealt(parameters, before),
                source=before,
                target=now,
                wire=self.choose_wire(round, HOP),
                shared=False,
            )
        here = {*present, *self.computed_in(parameters, round)}
        moving = {name: parameter for name, parameter in parameters.items() if name not in here}
        exact = self.wire == "float32" or (round == 0 and self._begins_exact)
        unrounded = {
            name: parameter for name, parameter in moving.items() if exact or self.is_common(name)
        }
        rounded = {name: parameter for name, parameter in moving.items() if name not in unrounded}
        pull = Leg(PULL, unrounded, source=self.owners, target=now, exclude=before)
        if unrounded:
            yield pull
        if rounded:
            yield replace(pull, parameters=rounded, wire=self.choose_wire(round, PULL))

    def out_of(self, parameters: Parameters, round: int) -> Iterator[Leg]:
        """Yield the legs at a round's end: the mean of common parameters, if due, and the push of
        other parameters.

        If parameters stay, the push leaves out elements that a rank holds in the next round.
        """
        after = self.deal(round + 1) if self.stays else None
        common = {name: parameter for name, parameter in parameters.items() if self.is_common(name)}
        dealt = {name: parameter for name, parameter in parameters.items() if name not in common}
        if common and self.mean_is_due(round):
            if self.largest:
                common = {name: common[name] for name in select_weights(common)}
            wire = self.largest or self.choose_wire(round, MEAN)
            yield Leg(MEAN, common, wire=wire, times=self.means)
        if dealt:
            # A later flush must write the values that arrived, so the sender replaces its own by
            # these.
            settles = after is not None and not self.leaves_early(round)
            yield Leg(
                PUSH,
                dealt,
                source=self.deal(round),
                target=self.owners,
                exclude=after,
                wire=self.choose_wire(round, PUSH, settles=settles),
            )

    def flushed(self, parameters: Parameters, round: int) -> Iterator[Leg]:
        """Yield the legs that bring the newest values to their owners after a round from which
        nothing left early."""
        if self.stays or (self.keeps_all and self.groups):
            deal = self.deal(round)
            yield Leg(FLUSH, select_dealt(parameters, deal), deal, self.owners, shared=False)
        common = {name: parameter for name, parameter in parameters.items() if self.is_common(name)}
        if common and not self.mean_is_due(round):
            yield Leg(MEAN, common)

    def mean_is_due(self, round: int) -> bool:
        return (round + 1) % self.every == 0

    def find_recovered(self, round: int) -> TrainingLayout | None:
        """Return the deal whose parts ranks pull from the owners before a job's first round; None
        if they pull nothing.

        A resumed run can thus repeat a hop that rounds values.
        """
        if self.stays and (self.early or (round and self.wire != "float32")):
            return self.deal(round if self.early else round - 1)
        return None

    def legs(self, parameters: Parameters, round: int, fresh: bool) -> list[Leg]:
        """Return the legs of a round. ``parameters``: the network's, without slots.

        ``fresh``: True in the first round that a method runs in a job.
        """
        moved = with_slots(parameters, self.slots)
        common = {name for name in moved if self.is_common(name)}
        legs: list[Leg] = []
        if fresh:
            legs += self._first(parameters, round)
        elif not self.early:
            before = self.deal(round - 1) if self.stays and round else None
            legs += self.into(moved, round, before, common)
        leaving: list[Leg] = []
        if self.leaves_early(round):
            leaving += self.into(moved, round + 1, self.deal(round), common)
        # Before this round, ranks train alone.
        if round >= self.since:
            exchange = self.exchange or Route.out_of
            leaving += exchange(self, moved, round)
        if self.leaves_early(round):
            leaving = [self._beside_steps(leg) for leg in leaving]
        return [*legs, *leaving]

    def _beside_steps(self, leg: Leg) -> Leg:
        """Return a leg of a round whose weights leave early, with the local steps that hide it."""
        departure = self.local_steps - self.early
        if leg.name == PULL:  # what no rank trains is with its owners from the start
            return replace(leg, during=range(departure))
        if leg.name in (HOP, PUSH):
            return replace(leg, during=range(departure, self.local_steps))
        return leg

    def _first(self, parameters: Parameters, round: int) -> Iterator[Leg]:
        """Yield the legs that bring ranks the parameters of their first round in a job."""
        if self.keeps_all:
            # Ranks keep the whole network with all its slots, also with slots that no round sends.
            yield from self.into(with_slots(parameters, self.stored), round, None)
            return
        moved = with_slots(parameters, self.slots)
        before = self.find_recovered(round)
        if before is None:
            yield from self.into(moved, round, None)
            return
        pulled = select_dealt(moved, before)
        computed = self.computed_in(pulled, round)
        sent = {name: parameter for name, parameter in pulled.items() if name not in computed}
        if sent:
            yield Leg(PULL, sent, source=self.owners, target=before)
        if self.early:
            yield from self.into(moved, round, None, pulled)
        else:
            yield from self.into(moved, round, before)

    def computed_in(self, names: Iterable[str], round: int) -> list[str]:
        """Return the parameters and slots whose values each rank computes at a round's start."""
        if round:
            return []
        computed = [name for name in names if strip_slot(name) in self.drawn]
        # Values that are sent would be rounded, and a computed one is not.
        return [name for name in computed if self._begins_exact or self.is_common(name)]

    @property
    def _begins_exact(self) -> bool:
        """True if ranks get the values of round 0 unrounded. Those that keep them would keep the
        rounding, too."""
        return self.wire == "float32" or self.stays or bool(self.common)

    def is_common(self, name: str) -> bool:
        return strip_slot(name) in self.common

    def choose_wire(self, round: int, leg: str, settles: bool = False) -> Wire | None:
        """Return the form of a leg's values; None if they are sent unchanged."""
        if self.wire == "float32":
            return None
        # Each leg of each round rounds with random numbers of its own.
        return Wire(self.wire, rng.key(self.seed, "wire", leg, round), settles)


def select_dealt(parameters: Parameters, deal: TrainingLayout) -> Parameters:
    """Return the parameters of which a deal gives ranks their units."""
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.pattern.dealt(deal.units)
    }
