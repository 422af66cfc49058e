"""The deal of a round: the units (neurons, channels) of each group that every rank holds and
trains."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from istmpi import rng
from istmpi.engine.axes import Axis
from istmpi.engine.positions import Positions
from istmpi.errors import ConfigError
from istmpi.units import counted


def blocks(length: int, ranks: int, shares: Sequence[float] | None = None) -> list[int]:
    """Return the sizes of the consecutive blocks into which ``length`` units are cut, one block for
    each rank.

    Without ``shares`` the sizes differ by at most one. With ``shares``, sizes are nearly
    proportional to the shares, and at least one.
    """
    if shares is None:
        return [length // ranks + (rank < length % ranks) for rank in range(ranks)]
    # Each rank gets a unit. The spare units follow the shares, as far as these are above a unit.
    spare = length - ranks
    exact = np.asarray(shares, dtype=np.float64) / np.sum(shares) * length
    above = np.maximum(exact - 1, 0)
    if above.sum():
        above *= spare / above.sum()
    sizes = np.floor(above).astype(np.int64)
    # What rounding down leaves over goes to the largest remainders; of equal ones, to low ranks.
    remainders = above - sizes
    for rank in np.argsort(-remainders, kind="stable")[: spare - sizes.sum()]:
        sizes[rank] += 1
    return [int(size) + 1 for size in sizes]


def draw_ranks(ranks: int, fraction: float, seed: int, round: int) -> tuple[int, ...]:
    """Draw the ranks that take part in a round: a ``fraction`` of all, at least one; return them in
    ascending order."""
    order = rng.permutation(ranks, rng.key(seed, "drawn", round))
    return tuple(sorted(order[: count_drawn(ranks, fraction)].tolist()))


def count_drawn(ranks: int, fraction: float) -> int:
    return max(int(fraction * ranks), 1)


@dataclass(frozen=True)
class Cut:
    """The way in which the units of a dealt group are cut into the parts of ranks."""

    ranks: int
    shares: Sequence[float] | None = None
    """The relative sizes of the ranks' parts; None for parts as equal as possible."""
    holders: int = 1
    """The number of neighbouring ranks that have the same part: a club."""

    @property
    def is_whole(self) -> bool:
        """True if ranks form clubs of equally many."""
        return self.ranks % self.holders == 0

    @property
    def parts(self) -> int:
        """The number of different parts."""
        return self.ranks // self.holders

    def count_most_ranks(self, units: int) -> int:
        """Return the most ranks that get a part of a group, in clubs as large as these."""
        return units * self.holders

    def sizes(self, units: int) -> list[int]:
        """Return the sizes of the parts of a group, each of which a club has."""
        return blocks(units, self.parts, self.shares)

    def spans(self, lengths: Mapping[str, int]) -> Iterator[tuple[range, dict[str, int]]]:
        """Yield ranges of ranks, and the units of each group that each of these ranks is dealt.

        ``lengths``: the units of the groups that are dealt out.
        """
        if self.shares is None:
            # The first L mod C clubs have a unit more. The remainders of all groups cut the clubs
            # into spans, within which every rank has equally many units.
            divided = {name: divmod(units, self.parts) for name, units in lengths.items()}
            bounds = sorted({0, self.parts, *(more for _, more in divided.values())})
            for first, stop in zip(bounds, bounds[1:]):
                dealt = {name: units + (first < more) for name, (units, more) in divided.items()}
                yield range(first * self.holders, stop * self.holders), dealt
        else:
            sizes = {name: self.sizes(units) for name, units in lengths.items()}
            for rank in range(self.ranks):
                yield range(rank, rank + 1), {name: size[rank] for name, size in sizes.items()}

    def check(self, lengths: Mapping[str, int], groups: Sequence[str]) -> None:
        """Raise ConfigError if the groups cannot be cut so; ``lengths``: the units of all axes."""
        if not self.is_whole:
            divisors = ", ".join(map(str, _divisors(self.ranks)))
            raise ConfigError(
                f"method.holders = {self.holders} does not divide {counted(self.ranks, 'rank')}. "
                f"Give one of {divisors}."
            )
        for name in groups:
            if name not in lengths:
                raise ConfigError(
                    f"partition names {name}, which is not an axis of this model; "
                    f"axes: {', '.join(lengths)}."
                )
            self._require_units(name, lengths[name])
        if self.shares is not None:
            _require_usable(self.shares, self.ranks)

    def _require_units(self, name: str, units: int) -> None:
        if units < self.parts:
            enough = min(each for each in _divisors(self.ranks) if self.ranks // each <= units)
            raise ConfigError(
                f"{name} has {counted(units, 'unit')}, but the run has "
                f"{counted(self.ranks, 'rank')}; every rank needs at least one. Use fewer ranks, "
                f"widen {name}, or let ranks of ist share units: method.holders = {enough}."
            )


def _require_usable(shares: Sequence[float], ranks: int) -> None:
    """Raise ConfigError unless each rank has a positive share."""
    if len(shares) != ranks:
        raise ConfigError(
            f"shares has {len(shares)} numbers, but the run has {ranks} ranks; "
            "give one for each rank."
        )
    if not all(0 < share < float("inf") for share in shares):
        raise ConfigError(f"shares {list(shares)} must be positive and finite, one for each rank.")


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]


@dataclass(frozen=True)
class Partition:
    """The deal of a round, which is the layout in which every rank holds its subnet.

    ``units[name][rank]``: the sorted units of a dealt group that the rank holds. If no group is
    dealt, every rank holds everything, as in local SGD. Ranks ``r // holders * holders`` and the
    next ones, ``holders`` of them, hold the same units.
    """

    lengths: Mapping[str, int]
    units: Mapping[str, tuple[np.ndarray, ...]]
    ranks: int
    holders: int = 1

    @staticmethod
    def draw(
        lengths: Mapping[str, int],
        groups: Sequence[str],
        ranks: int,
        seed: int,
        round: int,
        shares: Sequence[float] | None = None,
        redeal: float = 1.0,
        holders: int = 1,
    ) -> "Partition":
        """Deal out every group at random without replacement. Pure, so every rank computes the same
        deal.

        Each group has a random stream for (seed, group, round), so groups do not change each
        other's deals. With ``redeal`` below 1 at most that fraction of a group's units (rounded up)
        moves each round, and a deal depends on all earlier deals. ``holders``: the number of ranks
        that hold each unit. Raises ConfigError if the deal is impossible.
        """
        # decision 14: shares are an argument, so every rank can compute the deal of any round.
        cut = Cut(ranks, shares, holders)
        cut.check(lengths, groups)
        units = {}
        for name in groups:
            order = _order(lengths[name], name, seed, round, redeal)
            # The last bound is the end, which np.split implies.
            *bounds, _ = accumulate(cut.sizes(lengths[name]))
            parts = map(np.sort, np.split(order, bounds))
            # decision 89: neighbours share a part, and train it on different examples.
            units[name] = tuple(part for part in parts for _ in range(holders))
        return Partition(dict(lengths), units, ranks, holders)

    def held(self, rank: int) -> dict[str, Positions]:
        return {name: parts[rank] for name, parts in self.units.items()}

    def positions(self, axis: Axis, place: int, rank: int) -> Positions:
        return axis.positions(self.lengths, self.held(rank))

    def largest(self, axis: Axis, place: int) -> int:
        most_units = {name: max(map(len, parts)) for name, parts in self.units.items()}
        return axis.count({**self.lengths, **most_units})

    def copies(self, names: frozenset[str]) -> int:
        if names.isdisjoint(self.units):
            return self.ranks
        return self.holders

    def holder(self, axis: Axis) -> np.ndarray | None:
        """Return the rank that holds all units of each position along an axis: ``[length]`` int64,
        -1 for no rank.

        Returns None for an axis that is not dealt out. Positions of segments that are not dealt out
        get -1.
        """
        if axis.names.isdisjoint(self.units):
            return None
        holder = np.full(axis.length(self.lengths), -1, dtype=np.int64)
        for segment, place in zip(axis.segments, axis.places(self.lengths)):
            ranks = segment.spread(self.lengths, self._ranks)
            if ranks:
                # Of several dealt factors, all units must be with the same rank.
                one_rank = np.all([holders == ranks[0] for holders in ranks], axis=0)
                holder[place.start : place.stop] = np.where(one_rank, ranks[0], -1)
        return holder

    @cached_property
    def _ranks(self) -> dict[str, np.ndarray]:
        """The rank that holds each unit of each dealt group: ``[units]`` int64."""
        holders = {}
        for name, parts in self.units.items():
            holders[name] = np.empty(self.lengths[name], dtype=np.int64)
            for rank, part in enumerate(parts):
                holders[name][part] = rank
        return holders

    @cached_property
    def digest(self) -> int:
        """A 64-bit digest of the deal, by which ranks compare their deals."""
        state = hashlib.blake2b(digest_size=8)
        for name, parts in self.units.items():
            state.update(name.encode())
            for part in parts:
                state.update(len(part).to_bytes(8, "little"))
                state.update(np.ascontiguousarray(part, dtype="<i8").data)
        return int.from_bytes(state.digest(), "little")


def _order(length: int, name: str, seed: int, round: int, redeal: float) -> np.ndarray:
    """Return the units of a group in the random order in which they are dealt: ``[length]``
    int64."""
    if redeal >= 1:
        return rng.permutation(length, rng.key(seed, "deal", name, round))
    walk = (length, name, seed, redeal)
    start, order = _walked.get(walk, (0, None))
    if order is None or start > round:
        # The walk has no way back: it begins anew with the first deal.
        start = 0
        order = rng.permutation(length, rng.key(seed, "deal", name, 0))
    changing = int(np.ceil(redeal * length))
    # decision 10: a walk keeps the exact fraction, and any two units can meet.
    for past in range(start + 1, round + 1):
        stream = rng.key(seed, "redeal", name, past)
        # Slots are places in the order, and thus with a rank: their units are shuffled.
        slots = rng.permutation(length, stream)[:changing]
        order = order.copy()
        order[slots] = order[slots[rng.permutation(changing, rng.key(seed, "shuffle", name, past))]]
    _walked[walk] = (round, order)
    return order


_walked: dict[tuple, tuple[int, np.ndarray]] = {}
"""The last computed order of each partly redealt group, and its round. A later round's order starts
from it."""
