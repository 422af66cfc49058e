"""Orders of a width's units along an axis: bands of units, and positions beside them, one behind
the other.

Most axes are one band, ``outer * units * inner``. An axis that grows by less than its length when a
width doubles has positions of no unit, too, as ``torch.cat`` makes them. The concatenations of a
forward pass propose the order of bands.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from istmpi.engine.axes import Axis
from istmpi.network.trials import Watching

SPLITS = {"split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"}
DEEPEST = 8
"""The largest number of concatenations inside each other that are followed."""
REPEATED = 16
"""The largest number of copies of a concatenation on an axis, such as pixels behind which its
channels lie."""


@dataclass(frozen=True)
class Band:
    """Positions of units: ``outer * units * inner``."""

    outer: int
    inner: int

    @property
    def ratio(self) -> int:
        """The number of positions of a unit."""
        return self.outer * self.inner


Order = tuple[Band | int, ...]
"""The bands on an axis. A number is that many positions of no unit."""


@dataclass(frozen=True)
class Growth:
    """The length of an axis, ``ratio * units + rest``."""

    ratio: int
    rest: int = 0

    def length(self, units: int) -> int:
        return self.ratio * units + self.rest

    def times(self, factor: int) -> "Growth":
        return Growth(self.ratio * factor, self.rest * factor)


Structure = tuple[int, ...]
"""An order without the inner lengths of its bands: the ratio of a band, or minus a number of
positions of no unit."""


def positions_along(order: Order, units: int, chosen: torch.Tensor) -> torch.Tensor:
    """Return the positions of the ``chosen`` units in the order given, with all positions of no
    unit at their places.

    ``units``: the number of units on the axis. With a permutation of all units this is the axis
    with permuted units, with fewer units that of a narrower network, with repeated units that of a
    network of copies.
    """
    parts = []
    start = 0
    for band in order:
        if isinstance(band, int):
            places = torch.arange(band)
            length = band
        else:
            length = units * band.ratio
            places = torch.arange(length).view(band.outer, units, band.inner)[:, chosen].reshape(-1)
        parts.append(places + start)
        start += length
    return torch.cat(parts)


def merge(bands: Iterable[Band | int]) -> Order:
    """Return an order in which neighbours that are one band, or no units, are joined."""
    merged: list[Band | int] = []
    for band in bands:
        before = merged[-1] if merged else None
        if isinstance(band, int) and isinstance(before, int):
            merged[-1] = before + band
        elif isinstance(band, Band) and isinstance(before, Band) and band.inner == before.inner:
            merged[-1] = Band(before.outer + band.outer, band.inner)
        elif band != 0:
            merged.append(band)
    return tuple(merged)


def order_on(axis: Axis, width: str, lengths: Mapping[str, int]) -> Order:
    """Return the order of a width's units on a named axis."""
    bands: list[Band | int] = []
    for segment in axis.segments:
        length = segment.length(lengths)
        if width not in segment.names:
            bands.append(length)
            continue
        inner = length
        for factor in segment.factors:
            # The length inside this factor is left.
            inner //= factor.length(lengths)
            if factor.name == width:
                bands.append(Band(length // lengths[width] // inner, inner))
    return merge(bands)


def within(order: Order, start: int, stop: int, units: int) -> tuple[Band | None, bool]:
    """Return the band that has the positions from ``start`` to ``stop``, cut to them; and False if
    a cut is impossible.

    The band is None if these positions belong to no unit.
    """
    first = 0
    for band in order:
        length = band if isinstance(band, int) else units * band.ratio
        if first <= start < first + length:
            if isinstance(band, int):
                return None, stop <= first + length
            all_units = units * band.inner
            # A cut within a unit, or between two units, would separate what moves together.
            fits = (
                (start - first) % all_units == 0
                and (stop - start) % all_units == 0
                and stop <= first + length
            )
            return Band((stop - start) // all_units, band.inner), fits
        first += length
    return None, False


def bounds(order: Order, units: int) -> list[int]:
    """Return the first positions of the bands, and the length of the axis."""
    ends = [0]
    for band in order:
        length = band if isinstance(band, int) else units * band.ratio
        ends.append(ends[-1] + length)
    return ends


class Joins(Watching):
    """Records in ``lengths`` the lengths of the parts of each concatenation, cut and padding, in
    order."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        outputs = func(*args, **named)
        name = func.overloadpacket.__name__
        if name == "cat":
            tensors, *dimension = args
            self._note(tensors, *dimension, **named)
        elif name in SPLITS:
            _, _, *dimension = args
            self._note(outputs, *dimension, **named)
        elif name == "constant_pad_nd":
            x, padding, *_ = args
            self._note_padding(x, padding)
        return outputs

    def _note(self, parts: Sequence[torch.Tensor], dim: int = 0) -> None:
        self.lengths.append(tuple(part.shape[dim] for part in parts if part.ndim > 1))

    def _note_padding(self, x: torch.Tensor, padding: Sequence[int]) -> None:
        # PyTorch lists the padding of the last axis first.
        for axis, (before, behind) in enumerate(zip(padding[::2], padding[1::2]), 1):
            lengths = (before, x.shape[-axis], behind)
            if before + behind and min(lengths) >= 0:
                self.lengths.append(tuple(filter(None, lengths)))


def grow_structures(
    joins: Sequence[tuple[int, ...]], units: int, fewer: Sequence[tuple[int, ...]], few: int
) -> list[Structure]:
    """Return the structures of concatenations, from their lengths with two numbers of a width's
    units.

    A part may be a concatenation itself, or be cut into parts elsewhere. Structures with and
    without the parts of parts are returned.
    """
    # A network that branches on values may concatenate other tensors.
    if [*map(len, joins)] != [*map(len, fewer)]:
        return []
    parts_of: dict[Growth, list[Growth]] = {}
    joined: list[list[Growth]] = []
    for lengths, narrower in zip(joins, fewer):
        growths = _grow_parts(lengths, narrower, units, few)
        total = Growth(sum(part.ratio for part in growths), sum(part.rest for part in growths))
        # The order of positions of no unit does not matter.
        if total.ratio:
            joined.append(growths)
            if len(growths) > 1:
                parts_of[total] = growths
    structures: dict[Structure, None] = {}
    for growths in joined:
        # A part of a concatenation may itself be one, or be cut anew.
        for depth in (DEEPEST, 0):
            structure = itertools.chain(*(_expand(part, parts_of, depth) for part in growths))
            structures[tuple(structure)] = None
    return [structure for structure in structures if len(structure) > 1]


def _grow_parts(
    lengths: Sequence[int], narrower: Sequence[int], units: int, few: int
) -> list[Growth]:
    """Return how each part grows with a width; [] unless all grow by whole positions."""
    growths = []
    for length, less in zip(lengths, narrower):
        ratio, rest = divmod(length - less, units - few)
        growth = Growth(ratio, length - ratio * units)
        if rest or growth.ratio < 0 or growth.rest < 0:
            return []
        growths.append(growth)
    return growths


def _expand(growth: Growth, parts_of: Mapping[Growth, Sequence[Growth]], depth: int) -> Structure:
    """Return the structure of a part, with its own parts in its place up to ``depth`` deep."""
    if depth == 0 or growth not in parts_of:
        return _parts(growth)
    parts = (_expand(part, parts_of, depth - 1) for part in parts_of[growth])
    return tuple(itertools.chain(*parts))


def _total(structure: Iterable[int]) -> Growth:
    """Return the growth of an axis with this structure."""
    ratio = 0
    rest = 0
    for part in structure:
        if part > 0:
            ratio += part
        else:
            rest -= part
    return Growth(ratio, rest)


def find_structures(
    growth: Growth, joined: Sequence[Structure], guess: bool = True
) -> list[Structure]:
    """Return the structures that an axis may have: one band; the structures of concatenations; a
    band before or behind the rest.

    ``guess``: False leaves out the last two if a concatenation has this length.
    """
    candidates: list[Structure] = [] if growth.rest else [(growth.ratio,)]
    for structure in joined:
        total = _total(structure)
        factor = growth.ratio // total.ratio
        if factor and total.times(factor) == growth:
            # Behind each position of the concatenation lie several, as pixels behind a channel.
            candidates.append(tuple(factor * part for part in structure))
            if 1 < factor <= REPEATED:
                # Or the whole concatenation lies behind each of several positions.
                candidates.append(structure * factor)
    # Units before or behind all others, as a concatenation that was not seen would lay them.
    if growth.rest and (guess or not candidates):
        candidates += [_parts(growth), _parts(growth)[::-1]]
    return list(dict.fromkeys(candidates))


def possible_bands(ratio: int) -> Iterator[Band]:
    """Yield the bands with this many positions of a unit."""
    for outer in range(1, ratio + 1):
        if ratio % outer == 0:
            yield Band(outer, ratio // outer)


def _parts(growth: Growth) -> Structure:
    """Return a structure of one band before the positions of no unit."""
    parts = (growth.ratio, -growth.rest)
    return tuple(part for part in parts if part)
