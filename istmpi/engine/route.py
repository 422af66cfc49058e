"""The route of the weights through a round, as data: which parameters move between which layouts.
Pure.

Training executes the legs (`istmpi.engine.shards`), the cost model sums their bytes
(`istmpi.cost.one_round`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from istmpi import rng
from istmpi.comm.codec import Wire
from istmpi.engine.axes import Parameter
from istmpi.engine.layout import Layout, Owners, TrainingLayout
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.slots import parameter_of, weights_among

PULL, HOP, PUSH, MEAN, FLUSH = "pull", "hop", "push", "mean", "flush"
Parameters = Mapping[str, Parameter]


@dataclass(frozen=True)
class Leg:
    """Parameters that move from layout ``source`` to ``target``, or without layouts become the mean
    of all ranks."""

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

    @property
    def keeps_all(self) -> bool:
        return bool(self.common) and not self.groups

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
        owners. Parameters in ``present`` are not pulled: ranks have them already. Owners send
        common parameters unchanged, and in round 0 all parameters, if the route has ``common``
        parameters or ``stays``.
        """
        now, exact = self.deal(round), round == 0 and (self.stays or bool(self.common))
        if before:
            yield Leg(
                HOP,
                _dealt(parameters, before),
                before,
                now,
                wire=self._wire(round, HOP),
                shared=False,
            )
        moving = {name: parameter for name, parameter in parameters.items() if name not in present}
        exact = exact or self.wire == "float32"
        plain = {
            name: parameter for name, parameter in moving.items() if exact or self.is_common(name)
        }
        encoded = {name: parameter for name, parameter in moving.items() if name not in plain}
        if plain:
            yield Leg(PULL, plain, self.owners, now, before)
        if encoded:
            yield Leg(PULL, encoded, self.owners, now, before, self._wire(round, PULL))

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
                common = {name: common[name] for name in weights_among(common)}
            yield Leg(MEAN, common, wire=self.largest or self._wire(round, MEAN))
        if dealt:
            # A later flush must write the values that arrived, so the sender replaces its own by
            # these.
            wire = self._wire(
                round, PUSH, settles=after is not None and not self.leaves_early(round)
            )
            yield Leg(PUSH, dealt, self.deal(round), self.owners, after, wire)

    def flushed(self, parameters: Parameters, round: int) -> Iterator[Leg]:
        """Yield the legs that bring the newest values to their owners after a round from which
        nothing left early."""
        if self.stays:
            deal = self.deal(round)
            yield Leg(FLUSH, _dealt(parameters, deal), deal, self.owners, shared=False)
        common = {name: parameter for name, parameter in parameters.items() if self.is_common(name)}
        if common and not self.mean_is_due(round):
            yield Leg(MEAN, common)

    def mean_is_due(self, round: int) -> bool:
        return (round + 1) % self.every == 0

    def recovered(self, round: int) -> TrainingLayout | None:
        """Return the deal whose parts ranks pull from the owners before a job's first round; None
        if they pull nothing.

        A resumed run can thus repeat a hop that rounds values.
        """
        if self.stays and (self.early or (round and self.wire != "float32")):
            return self.deal(round if self.early else round - 1)
        return None

    def legs(self, parameters: Parameters, round: int, fresh: bool) -> Sequence[Leg]:
        """Return the legs that a round executes. ``fresh``: True in the first round that a method
        runs in a job."""
        common = {name for name in parameters if self.is_common(name)}
        before = self.deal(round - 1) if self.stays and round else None
        legs: list[Leg] = []
        if fresh:
            before, present = self.recovered(round), set()
            if before:
                legs.append(Leg(PULL, _dealt(parameters, before), self.owners, before))
                present = {*legs[0].parameters} if self.early else set()
            legs += self.into(parameters, round, None if self.early else before, present)
        elif not self.early:
            legs += self.into(parameters, round, before, common)
        if self.leaves_early(round):
            legs += self.into(parameters, round + 1, self.deal(round), common)
        return [*legs, *self.out_of(parameters, round)]

    def is_common(self, name: str) -> bool:
        return parameter_of(name) in self.common

    def _wire(self, round: int, leg: str, settles: bool = False) -> Wire | None:
        if self.wire == "float32":
            return None
        return Wire(self.wire, rng.key(self.seed, "wire", leg, round), settles)


def _dealt(parameters: Parameters, deal: TrainingLayout) -> Parameters:
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.pattern.dealt(deal.units)
    }
