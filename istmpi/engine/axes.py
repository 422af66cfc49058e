"""Names for the axes of parameters, and the positions along them that a rank may hold.

A pattern names every axis of a tensor: ``"hidden2 hidden1"`` is a matrix whose rows belong to the
units of hidden2, and whose columns belong to the units of hidden1. Axes with the same name are
dealt out together.

An axis may be a product of factors, outermost first, as in einops:

    hidden1 (channels 49)     a flattened image: 49 columns for every channel
    (3 heads 64) embed        a fused query, key and value
    mid stream 3 3            a convolution
    (blocks[3] out) in        a parameter of block 3 alone: whole on ranks that hold this block,
                              empty on the others

An axis may be a sum of such products, its *segments*, one behind the other, as ``torch.cat`` makes
them:

    10 hidden + 6             columns for the units of hidden, then 6 columns that all ranks hold
    out (channels 49) + skip
"""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache, cached_property
from math import prod

import numpy as np

from istmpi.engine.lengths import Length, product_of, total
from istmpi.engine.positions import Positions, join, shift
from istmpi.engine.slots import Slot
from istmpi.errors import ConfigError

_TOKEN = re.compile(
    r"\s*(?:(?P<literal>\d+)|(?P<name>[A-Za-z_]\w*)(?:\[(?P<unit>\d+)\])?|(?P<sign>[()+]))"
)


@dataclass(frozen=True)
class Factor:
    """A factor of an axis: a number, a name, or one unit of a name (``blocks[3]``)."""

    name: str | None
    literal: int = 1
    unit: int | None = None

    def __str__(self) -> str:
        if self.name is None:
            return str(self.literal)
        if self.unit is None:
            return self.name
        return f"{self.name}[{self.unit}]"

    def length(self, lengths: Mapping[str, Length]) -> Length:
        if self.name is None:
            return self.literal
        if self.unit is not None:
            # Of a subnet, `narrow` gives 1 or 0, and `with_odds` a probability.
            return lengths.get(str(self), 1)
        if self.name not in lengths:
            given_names = ", ".join(lengths) or "none"
            raise ConfigError(
                f"axis {self.name} has no length; lengths are given for {given_names}."
            )
        return lengths[self.name]

    def positions(self, lengths: Mapping[str, int], units: Mapping[str, Positions]) -> Positions:
        if self.name is None or self.name not in units:
            return range(self.length(lengths))
        held = units[self.name]
        if self.unit is None:
            return held
        # A single unit is one position on the ranks that hold it, and none on others.
        return range(int(np.isin(self.unit, held)))


@dataclass(frozen=True)
class Segment:
    """A part of an axis: the product of its factors, outermost first."""

    factors: tuple[Factor, ...]

    def __str__(self) -> str:
        text = " ".join(map(str, self.factors))
        if len(self.factors) == 1:
            return text
        return f"({text})"

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(factor.name for factor in self.factors if factor.name is not None)

    def length(self, lengths: Mapping[str, Length]) -> Length:
        return product_of(factor.length(lengths) for factor in self.factors)

    def positions(self, lengths: Mapping[str, int], units: Mapping[str, Positions]) -> Positions:
        """Return the sorted positions of a rank that holds ``units`` of dealt names, and all units
        of other names."""
        if self.names.isdisjoint(units):
            return range(self.length(lengths))
        if len(self.factors) == 1:
            return self.factors[0].positions(lengths, units)
        combined = np.zeros(1, dtype=np.int64)
        # Outermost first: each further factor divides the positions so far into its own length.
        for factor in self.factors:
            inner = np.asarray(factor.positions(lengths, units), dtype=np.int64)
            combined = (combined[:, None] * factor.length(lengths) + inner).ravel()
        return combined

    def spread(
        self, lengths: Mapping[str, int], of_units: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Return an array for each factor in ``of_units``: the value of the factor's unit at each
        position."""
        arrays = []
        for place, factor in enumerate(self.factors):
            if factor.name and factor.name in of_units:
                values = of_units[factor.name]
                if factor.unit is not None:
                    values = values[[factor.unit]]
                outer = prod(part.length(lengths) for part in self.factors[:place])
                inner = prod(part.length(lengths) for part in self.factors[place + 1 :])
                # The unit changes after `inner` positions, and all units recur `outer` times.
                arrays.append(np.tile(np.repeat(values, inner), outer))
        return arrays


@dataclass(frozen=True)
class Axis:
    """An axis of a tensor: its segments, one behind the other.

    Segments whose numbers are in ``omitted`` keep their places, but their positions do not count
    (`Pattern.pieces`).
    """

    segments: tuple[Segment, ...]
    omitted: frozenset[int] = field(default=frozenset())

    def __str__(self) -> str:
        return " + ".join(map(str, self.segments))

    @cached_property
    def counted(self) -> tuple[Segment, ...]:
        return tuple(
            segment for number, segment in enumerate(self.segments) if number not in self.omitted
        )

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """The factors of all segments that count."""
        return tuple(itertools.chain.from_iterable(segment.factors for segment in self.counted))

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset().union(*(segment.names for segment in self.counted))

    def length(self, lengths: Mapping[str, Length]) -> Length:
        """Return the number of all positions, also of those that do not count."""
        return total(segment.length(lengths) for segment in self.segments)

    def count(self, lengths: Mapping[str, Length]) -> Length:
        """Return the number of positions that count."""
        return total(segment.length(lengths) for segment in self.counted)

    def places(self, lengths: Mapping[str, int]) -> list[range]:
        """Return the positions of each segment."""
        ends = [*itertools.accumulate(segment.length(lengths) for segment in self.segments)]
        return [range(start, stop) for start, stop in zip([0, *ends], ends)]

    def positions(self, lengths: Mapping[str, int], units: Mapping[str, Positions]) -> Positions:
        """Return the sorted positions of a rank that holds ``units`` of dealt names, and all units
        of other names."""
        # A range costs no memory, and copies of it are slices.
        if not self.omitted and self.names.isdisjoint(units):
            return range(self.length(lengths))
        parts = []
        for number, place in enumerate(self.places(lengths)):
            if number not in self.omitted:
                positions = self.segments[number].positions(lengths, units)
                parts.append(shift(positions, place.start))
        return join(parts)

    def inside(self, positions: range, lengths: Mapping[str, int]) -> Positions:
        """Return those of ``positions`` that count."""
        if not self.omitted:
            return positions
        parts: list[Positions] = []
        for number, place in enumerate(self.places(lengths)):
            if number not in self.omitted:
                start = max(place.start, positions.start)
                parts.append(range(start, max(min(place.stop, positions.stop), start)))
        return join(parts)

    def pieces(self, groups: Collection[str]) -> "list[Axis]":
        """Return the axis in at most two pieces: its segments with a name in ``groups``, and the
        other segments."""
        dealt = frozenset(
            n for n, segment in enumerate(self.segments) if not segment.names.isdisjoint(groups)
        )
        others = frozenset(range(len(self.segments))) - dealt
        if not dealt or not others:
            return [self]
        return [replace(self, omitted=others), replace(self, omitted=dealt)]


def product(*factors: Factor) -> Axis:
    """Return an axis of one segment."""
    return Axis((Segment(factors),))


@dataclass(frozen=True)
class Pattern:
    """The named axes of a tensor, e.g. ``Pattern.parse("hidden2 hidden1")``."""

    axes: tuple[Axis, ...]

    @staticmethod
    @cache  # a network has many parameters of few patterns
    def parse(text: str) -> "Pattern":
        """Parse a pattern. Raises ConfigError if ``text`` is malformed."""
        parser = _Parser(text.rstrip())
        while parser.at < len(parser.text):
            parser.take(parser.next_token())
        return parser.finish()

    def __str__(self) -> str:
        return " ".join(map(str, self.axes))

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset().union(*(axis.names for axis in self.axes))

    def shape(self, lengths: Mapping[str, Length]) -> tuple[Length, ...]:
        """Return the shape of the whole tensor, also of a piece's tensor."""
        return tuple(axis.length(lengths) for axis in self.axes)

    def dealt(self, groups: Collection[str]) -> int:
        """Count the axes that have a name in ``groups``."""
        return sum(not axis.names.isdisjoint(groups) for axis in self.axes)

    def pieces(self, groups: Collection[str]) -> "list[Pattern]":
        """Cut a tensor into pieces, in each of which an axis has a name in ``groups`` in all
        segments or in none.

        The piece that every rank holds, if there is one, is the last.
        """
        cut = itertools.product(*(axis.pieces(groups) for axis in self.axes))
        return [Pattern(axes) for axes in cut]

    def terms(self) -> "list[Pattern]":
        """Return the products of segments, one of each axis, whose sizes add up to the size of what
        counts."""
        terms = []
        for segments in itertools.product(*(axis.counted for axis in self.axes)):
            axes = tuple(Axis((segment,)) for segment in segments)
            terms.append(Pattern(axes))
        return terms


class _Parser:
    """The state of `Pattern.parse`."""

    def __init__(self, text: str):
        self.text = text
        self.at = 0
        self._axes: list[list[Segment]] = []
        self._bracket: list[Factor] | None = None
        """The factors of a bracket that is not closed yet."""
        self._adds = False
        """True behind a +: the next segment belongs to the last axis."""

    def next_token(self) -> re.Match[str]:
        token = _TOKEN.match(self.text, self.at)
        if token is None:
            unread = self.text[self.at :].strip()
            raise self._error(f"cannot read {unread!r}; use names, numbers, ( ), + and [n].")
        self.at = token.end()
        return token

    def take(self, token: re.Match[str]) -> None:
        sign = token["sign"]
        if sign == "+":
            if self._bracket is not None or self._adds or not self._axes:
                raise self._stray_plus()
            self._adds = True
        elif sign == "(" and self._bracket is None:
            self._bracket = []
        elif sign == ")" and self._bracket:  # not an empty one
            self._add(Segment(tuple(self._bracket)))
            self._bracket = None
        elif sign:
            raise self._error("brackets must match, without nesting or empty pairs.")
        else:
            unit = None
            if token["unit"]:
                unit = int(token["unit"])
            factor = Factor(name=token["name"], literal=int(token["literal"] or 1), unit=unit)
            if self._bracket is None:
                self._add(Segment((factor,)))
            else:
                self._bracket.append(factor)

    def finish(self) -> Pattern:
        if self._bracket is not None:
            raise self._error("a bracket is not closed.")
        if self._adds:
            raise self._stray_plus()
        return Pattern(tuple(Axis(tuple(segments)) for segments in self._axes))

    def _add(self, segment: Segment) -> None:
        if self._adds:
            self._axes[-1].append(segment)
            self._adds = False
        else:
            self._axes.append([segment])

    def _stray_plus(self) -> ConfigError:
        return self._error("a + must stand between two names, numbers or brackets.")

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"axes {self.text!r}: {problem}")


@dataclass(frozen=True)
class Parameter:
    """A tensor before it exists: its axes, its dtype and the interval of its initial values."""

    pattern: Pattern
    dtype: str = "float32"
    bound: float = 0.0
    """Half the width of the interval ``centre ± bound`` of uniform initial values."""
    centre: float = 0.0

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    def size(self, lengths: Mapping[str, Length]) -> Length:
        """Return the number of elements, without those of omitted segments."""
        return product_of(axis.count(lengths) for axis in self.pattern.axes)

    def pieces(self, groups: Collection[str]) -> "list[Parameter]":
        """Return the pieces of `Pattern.pieces`, as parameters."""
        pieces = self.pattern.pieces(groups)
        if len(pieces) == 1:
            return [self]
        return [replace(self, pattern=piece) for piece in pieces]


ITEMSIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}


def narrow(
    lengths: Mapping[str, int], parameters: Mapping[str, Parameter], units: Mapping[str, Positions]
) -> dict[str, int]:
    """Return the axis lengths of a subnet with ``units``; ``name[k]`` has length 1 if the subnet
    has unit k, else 0."""
    narrowed = dict(lengths)
    narrowed.update((name, len(held)) for name, held in units.items())
    for parameter in parameters.values():
        for axis in parameter.pattern.axes:
            for factor in axis.factors:
                if factor.name and factor.unit is not None and factor.name in units:
                    narrowed[str(factor)] = len(factor.positions(lengths, units))
    return narrowed


def with_odds(
    lengths: Mapping[str, int], patterns: Iterable[Pattern], dealt: Mapping[str, int]
) -> dict[str, int | Fraction]:
    """Return ``dealt``, a subnet's numbers of units, and for each ``name[k]`` the probability that
    it has unit k."""
    odds: dict[str, int | Fraction] = dict(dealt)
    axes = itertools.chain.from_iterable(pattern.axes for pattern in patterns)
    for factor in itertools.chain.from_iterable(axis.factors for axis in axes):
        if factor.name and factor.unit is not None and factor.name in dealt:
            odds[str(factor)] = Fraction(dealt[factor.name], lengths[factor.name])
    return odds


def count_bytes(parameters: Mapping[str, Parameter], lengths: Mapping[str, Length]) -> Length:
    return total(parameter.size(lengths) * parameter.itemsize for parameter in parameters.values())


def with_slots(parameters: Mapping[str, Parameter], slots: tuple[str, ...]) -> dict[str, Parameter]:
    """Return the parameters and their slots: tensors of optimizer state with a parameter's axes,
    zero at first."""
    extended = dict(parameters)
    for name, parameter in parameters.items():
        for kind in slots:
            extended[Slot(name, kind)] = Parameter(parameter.pattern, parameter.dtype)
    return extended
