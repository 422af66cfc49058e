"""The deal: which units of each unit group every rank holds this round."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from istmpi import rng
from istmpi.engine.axes import Axis, Positions
from istmpi.errors import ConfigError


def blocks(length: int, ranks: int, shares: Sequence[float] | None = None) -> list[int]:
    """Sizes of the consecutive blocks that ``length`` units are cut into, one a rank.

    Without shares they differ by at most one. With shares they follow them by largest remainders, none below one unit.
    """
    if shares is None:
        return [length // ranks + (rank < length % ranks) for rank in range(ranks)]
    spare = length - ranks
    wanted = np.asarray(shares, dtype=np.float64) / np.sum(shares) * length
    above = np.maximum(wanted - 1, 0)
    above *= spare / above.sum() if above.sum() else 0
    sizes = np.floor(above).astype(np.int64)
    remainders = above - sizes
    for rank in np.argsort(-remainders, kind="stable")[: spare - sizes.sum()]:
        sizes[rank] += 1
    return [int(size) + 1 for size in sizes]


def draw_ranks(ranks: int, fraction: float, seed: int, round: int) -> tuple[int, ...]:
    """Those ranks, ascending, that take part in a round: a fraction of all, at least one, drawn at random."""
    order = rng.permutation(ranks, rng.key(seed, "drawn", round))
    return tuple(sorted(order[: drawn_count(ranks, fraction)].tolist()))


def drawn_count(ranks: int, fraction: float) -> int:
    """How many ranks `draw_ranks` draws."""
    return max(int(fraction * ranks), 1)


def check(lengths: Mapping[str, int], groups: Sequence[str], ranks: int, shares: Sequence[float] | None = None) -> None:
    """Refuse a deal that cannot be made, by name, before anything is trained."""
    for name in groups:
        if name not in lengths:
            raise ConfigError(f"partition names {name}, which is no axis of this model; axes: {', '.join(lengths)}.")
        if lengths[name] < ranks:
            raise ConfigError(
                f"{name} has {lengths[name]} units but the run has {ranks} ranks; "
                f"every rank needs at least one. Use fewer ranks or widen {name}."
            )
    if shares is not None:
        if len(shares) != ranks:
            raise ConfigError(f"shares has {len(shares)} numbers but the run has {ranks} ranks; give one a rank.")
        if not all(0 < share < float("inf") for share in shares):
            raise ConfigError(f"shares {list(shares)} must be positive and finite, one a rank.")


@dataclass(frozen=True)
class Partition:
    """One round's deal, and the layout in which every rank holds its subnet.

    ``units[name][rank]`` are the sorted units of a dealt group that the rank holds, and ``holders`` ranks hold each
    unit. With no groups every rank holds everything: the same engine is then local SGD.
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
        """Deal every group at random without replacement: the same on every rank, a pure function of its arguments.

        With ``holders`` above 1 a rank also holds the blocks that the next ``holders - 1`` ranks were dealt: it has a
        network that is so many times as wide, and a weight between two groups has up to as many holders.

        Each group has its own generator, keyed by (seed, group, round): a further layer reshuffles no other. With
        ``redeal`` below 1 only that fraction of a group's units change places each round (among themselves), and
        the deal of a round follows from all earlier ones: its cost grows with the round, ``redeal`` units a round.

        Raises ConfigError when a group has fewer units than there are ranks, or a unit more holders.
        """
        check(lengths, groups, ranks, shares)
        if not 1 <= holders <= ranks:
            raise ConfigError(f"a unit cannot have {holders} holders in a run of {ranks} ranks.")
        units = {}
        for name in groups:
            order = _order(lengths[name], name, seed, round, redeal)
            ends = list(accumulate(blocks(lengths[name], ranks, shares)))
            dealt = np.split(order, ends[:-1])
            dealt += dealt[: holders - 1]  # the last ranks' next ones are the first
            units[name] = tuple(np.sort(np.concatenate(dealt[rank : rank + holders])) for rank in range(ranks))
        return Partition(dict(lengths), units, ranks, holders)

    def held(self, rank: int) -> dict[str, Positions]:
        """The units of each dealt group that a rank holds, sorted."""
        return {name: parts[rank] for name, parts in self.units.items()}

    def positions(self, axis: Axis, place: int, rank: int) -> Positions:
        """The layout's contract: positions along the tensor's axis number ``place`` that a rank holds."""
        return axis.positions(self.lengths, self.held(rank))

    def largest(self, axis: Axis, place: int) -> int:
        """The layout's contract: no rank holds more positions along the axis than this."""
        return axis.length({**self.lengths, **{name: max(map(len, parts)) for name, parts in self.units.items()}})

    def copies(self, names: frozenset[str]) -> int:
        """The layout's contract: at most so many ranks hold an element of a tensor with these axis names."""
        return self.ranks if names.isdisjoint(self.units) else self.holders

    def alike(self, names: frozenset[str]) -> bool:
        """The layout's contract: no rank has only some of the elements that another has."""
        return self.holders == 1 or names.isdisjoint(self.units)

    def holder(self, axis: Axis) -> np.ndarray | None:
        """The one rank that was dealt all units that each position along an axis is of: ``[length]`` int64.

        -1 where there is no such rank; None for an axis that is not dealt out. Of a deal with one holder a unit.
        """
        assert self.holders == 1
        ranks = axis.spread(self.lengths, self._ranks)
        if not ranks:
            return None
        return np.where(np.all([one == ranks[0] for one in ranks], axis=0), ranks[0], -1)

    @cached_property
    def _ranks(self) -> dict[str, np.ndarray]:
        """The rank that was dealt each unit of every group."""
        found = {}
        for name, parts in self.units.items():
            found[name] = np.empty(self.lengths[name], dtype=np.int64)
            for rank, part in enumerate(parts):
                found[name][part] = rank
        return found

    @cached_property
    def digest(self) -> int:
        """64 bits that differ when two ranks drew different deals."""
        state = hashlib.blake2b(digest_size=8)
        for name, parts in self.units.items():
            state.update(name.encode())
            for part in parts:
                state.update(len(part).to_bytes(8, "little"))
                state.update(np.ascontiguousarray(part, dtype="<i8"))
        return int.from_bytes(state.digest(), "little")


def _order(length: int, name: str, seed: int, round: int, redeal: float) -> np.ndarray:
    """The units of a group in the order in which they are dealt: ``[length]`` int64."""
    if redeal >= 1:
        return rng.permutation(length, rng.key(seed, "deal", name, round))
    walk = (length, name, seed, redeal)
    start, order = _walked.get(walk, (0, None))
    if order is None or start > round:
        start, order = 0, rng.permutation(length, rng.key(seed, "deal", name, 0))
    changing = int(np.ceil(redeal * length))
    for past in range(start + 1, round + 1):
        stream = rng.key(seed, "redeal", name, past)
        slots = rng.permutation(length, stream)[:changing]
        order = order.copy()
        order[slots] = order[slots[rng.permutation(changing, rng.key(seed, "shuffle", name, past))]]
    _walked[walk] = (round, order)
    return order


_walked: dict[tuple, tuple[int, np.ndarray]] = {}
"""The last order of each partly redealt group: a memo that spares the next round the walk from round 0."""
