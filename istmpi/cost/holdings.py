"""Counts the elements of every parameter that ranks hold, in closed form if ranks have equal
shares.

All P ranks together hold |W|·P^(1-k) elements of a parameter W with k dealt axes (arXiv 1910.02120,
section 3.3). If whole blocks are dealt out (``blocks[3]``), sizes are expected values, as exact
fractions.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, prod

from istmpi.comm import ring
from istmpi.comm.codec import value_bytes
from istmpi.engine.axes import Parameter, count_bytes, with_odds
from istmpi.engine.lengths import Number
from istmpi.engine.partition import Cut
from istmpi.engine.wire import choose_form, choose_forms, count_scales


@dataclass(frozen=True)
class Part:
    """A range of ranks that train equally large networks in a round, and the axis lengths of these
    networks."""

    ranks: range
    lengths: Mapping[str, Number]


@dataclass(frozen=True)
class Origin:
    """The probabilities that no rank, or another rank, held an element in the round before.

    Owners send the elements that no rank held. The probabilities for the next round are the same.
    """

    no_rank: Number
    others: Number


@dataclass(frozen=True)
class Term:
    """The elements of equal tensors that belong to one segment of each axis, and how they are sent.

    A parameter and its slots are equal tensors if they are sent in the same form.
    """

    parameter: Parameter
    """The elements of one tensor, as a tensor whose axes have one segment."""
    itemsize: int
    """The bytes of a sent value, times the number of equal tensors."""
    scales: int
    """The bytes of scales in a message, for all equal tensors."""
    start: int
    """The first of the tensor's rows among these elements."""
    rows: int
    """The number of the tensor's rows."""


class Holdings:
    """The sizes of the parameters that ranks are dealt, and the bytes that ranks get from owners
    and other holders.

    ``cut``: how the units of ``groups`` are cut among ranks. ``parts``: all ranks, as ranges of
    ranks that are dealt equally many units. ``members``: the ranks that take part in a round.
    ``redeal``: the fraction of units that change ranks in a round; None if all return to owners.
    ``wire``: the form of sent values. Raises ConfigError if the deal is impossible.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        lengths: Mapping[str, int],
        groups: Sequence[str],
        cut: Cut,
        members: int | None = None,
        redeal: float | None = None,
        wire: str = "float32",
    ):
        cut.check(lengths, groups)
        self._cut = cut
        ranks = cut.ranks
        if members is None:
            members = ranks
        self.members = members
        self.taking_part = Fraction(self.members, ranks)
        self.redeal = redeal
        self._wire = wire
        self._origins: dict[tuple[tuple[str, ...], int], Origin] = {}
        self.parameters = parameters
        self.lengths = lengths
        self.groups = tuple(groups)
        self.ranks = ranks
        patterns = [parameter.pattern for parameter in parameters.values()]
        # decision 49: neighbouring ranks with equally many units are one span.
        self.parts: list[Part] = []
        for span, dealt in cut.spans({name: lengths[name] for name in groups}):
            subnet = {**lengths, **with_odds(lengths, patterns, dealt)}
            self.parts.append(Part(ranks=span, lengths=subnet))

    def bytes(self, part: Part) -> Number:
        """Return the bytes of the network that each of ``part.ranks`` trains."""
        return count_bytes(self.parameters, part.lengths)

    def owner_bytes(self, part: Part) -> Number:
        """Return the expected bytes that each of ``part.ranks`` gets from owners, and later
        returns."""
        return self._arriving(part, lambda origin: origin.no_rank, self.ranks)

    def hop_bytes(self, part: Part) -> Number:
        """Return the expected bytes that each of ``part.ranks`` gets from the former holders."""
        return self._arriving(part, lambda origin: origin.others, self.ranks - 1)

    def _arriving(self, part: Part, odds_of: Callable[[Origin], Number], messages: int) -> Number:
        """Return the expected bytes that each of ``part.ranks`` gets from one kind of sender.

        ``odds_of``: the probability that an element comes from there. ``messages``: their number.
        """
        total: Number = 0
        for term in self._travelling:
            odds = odds_of(self.origin(term, part))
            total += term.parameter.size(part.lengths) * term.itemsize * odds
            if odds > 0:
                total += term.scales * messages
        return total

    def origin(self, term: Term, part: Part) -> Origin:
        """Return where the elements of a term come from that a rank of ``part`` holds."""
        names = tuple(
            factor.name
            for axis in term.parameter.pattern.axes
            for factor in axis.factors
            if factor.name in self.groups
        )
        if self.redeal is None or not names:
            # No rank keeps them from round to round, so their owners send them.
            return Origin(no_rank=1, others=0)
        key = (names, part.ranks.start)
        if key not in self._origins:
            self._origins[key] = self._find_origin(names, part)
        return self._origins[key]

    def _find_origin(self, names: Iterable[str], part: Part) -> Origin:
        """Return the origin of elements with a unit of each dealt group in ``names``."""
        # The element stays if each of its units does. `_moving` is for one given place; a rank has
        # as many other places as it lacks units.
        stays: Number = 1
        for name in names:
            stays *= 1 - self._moving(name) * (self.lengths[name] - part.lengths[name])
        # Another rank held the element if all of its units came from that rank.
        others: Number = 0
        for other in self.parts:
            ranks = len(other.ranks) - (other.ranks == part.ranks)
            others += ranks * prod(self._moving(name) * other.lengths[name] for name in names)
        return Origin(no_rank=1 - stays - others, others=others)

    @cached_property
    def _travelling(self) -> list[Term]:
        """The terms of all tensors that are sent."""
        # Equal tensors are one term: a network may have thousands of parameters of one shape.
        equal: Counter[tuple[Parameter, str]] = Counter()
        for name, parameter in self.parameters.items():
            shape = Parameter(parameter.pattern, parameter.dtype)
            equal[shape, choose_form(self._wire, name, parameter)] += 1
        terms: list[Term] = []
        for (parameter, form), tensors in equal.items():
            terms += self._terms(parameter, form, tensors)
        return terms

    def _terms(self, parameter: Parameter, form: str, tensors: int) -> Iterator[Term]:
        groups = dict.fromkeys(self.groups)
        rows = parameter.pattern.axes[0].length(self.lengths)
        for piece in parameter.pieces(groups):
            scales = count_scales(form, piece, self.lengths, groups, self.ranks)
            first = piece.pattern.axes[0]
            starts = [
                place.start
                for number, place in enumerate(first.places(self.lengths))
                if number not in first.omitted
            ]
            products = piece.pattern.terms()
            for number, pattern in enumerate(products):
                yield Term(
                    parameter=replace(parameter, pattern=pattern),
                    itemsize=tensors * value_bytes(form, parameter.itemsize),
                    # A message has the scales of a piece once.
                    scales=tensors * scales * (number == 0),
                    # Products are in the order of the first axis's segments.
                    start=starts[number * len(starts) // len(products)],
                    rows=rows,
                )

    @cached_property
    def ring_bytes(self) -> int:
        """The bytes of all tensors in one pass round a ring."""
        if self._wire == "float32":
            return self.network_bytes
        elements = {
            name: parameter.size(self.lengths) for name, parameter in self.parameters.items()
        }
        itemsize = next(iter(self.parameters.values())).itemsize
        return ring.once_round(
            elements, itemsize, self.ranks, choose_forms(self._wire, self.parameters)
        )

    def _moving(self, name: str) -> Fraction:
        """Return the probability that a unit of a group takes one given other place in a deal."""
        if self.redeal is None:
            return Fraction(0)
        length = self.lengths[name]
        redealt = min(ceil(self.redeal * length), length)
        if redealt <= 1:  # a single unit stays where it was
            return Fraction(0)
        return Fraction(redealt - 1, length * (length - 1))

    @cached_property
    def network_bytes(self) -> int:
        return count_bytes(self.parameters, self.lengths)

    @cached_property
    def network_elements(self) -> int:
        return sum(parameter.size(self.lengths) for parameter in self.parameters.values())

    @cached_property
    def held_elements(self) -> Number:
        return self.taking_part * sum(
            len(part.ranks) * parameter.size(part.lengths)
            for part in self.parts
            for parameter in self.parameters.values()
        )

    @cached_property
    def largest_bytes(self) -> Number:
        return max(self.bytes(part) for part in self.parts)

    @cached_property
    def fetched_bytes(self) -> Number:
        """The expected bytes that all ranks get from owners other than themselves."""
        fetched = Fraction(0)
        for term in self._travelling:
            rows = term.parameter.pattern.axes[0].length(self.lengths)
            # Rank r owns the rows from R·r // P on, so row i is with rank ((i+1)·P - 1) // R.
            first, last = (
                (row + 1) * self.ranks - 1 for row in (term.start, term.start + rows - 1)
            )
            # Each of them sends a message with scales; with few rows, some ranks own none.
            owners = min(last // term.rows - first // term.rows + 1, rows)
            for part in self.parts:
                # The number of the term's rows that these ranks own together.
                first, stop = (
                    term.rows * bound // self.ranks for bound in (part.ranks.start, part.ranks.stop)
                )
                owned = max(min(stop, term.start + rows) - max(first, term.start), 0)
                no_rank = self.origin(term, part).no_rank
                size = term.parameter.size(part.lengths) * term.itemsize * no_rank
                fetched += size * (len(part.ranks) - Fraction(owned, rows))
                messages = len(part.ranks) * Fraction(owners * (self.ranks - 1), self.ranks)
                fetched += term.scales * messages * (no_rank > 0)
        return self.taking_part * fetched

    @cached_property
    def served_bytes(self) -> Fraction:
        """The expected bytes that the owner with the most rows sends to all ranks."""
        served = Fraction(0)
        for term in self._travelling:
            rows = term.parameter.pattern.axes[0].length(self.lengths)
            # The first owners may have a row more than others: division rounds up.
            largest = min(-(-term.rows // self.ranks), rows)
            elements = sum(
                len(part.ranks)
                * term.parameter.size(part.lengths)
                * self.origin(term, part).no_rank
                for part in self.parts
            )
            served += elements * term.itemsize * Fraction(largest, rows)
            served += term.scales * self.ranks * (elements > 0)
        return self.taking_part * served

    @cached_property
    def shared_bytes(self) -> int:
        return count_bytes(self.shared, self.lengths)

    @property
    def shared(self) -> dict[str, Parameter]:
        """The parameters that are not dealt out: every rank of the round trains all of them."""
        return {
            name: parameter
            for name, parameter in self.parameters.items()
            if not parameter.pattern.dealt(self.groups)
        }

    @cached_property
    def averaged_bytes(self) -> int:
        """Bytes of values with several holders that the owner with the most rows receives and
        averages; of dealt ones an upper bound."""
        # The only copy is the mean.
        if self.members == 1:
            return 0
        rows = {**self.shared, **self._beside}
        averaged = self.members * _owned_bytes(rows, self.lengths, self.ranks)
        if self._cut.holders > 1:
            averaged += self._cut.holders * (self.owned_bytes - averaged // self.members)
        return averaged

    @property
    def _beside(self) -> dict[str, Parameter]:
        """The pieces that all ranks have of parameters that are dealt out in part."""
        groups = dict.fromkeys(self.groups)
        last = {name: parameter.pieces(groups)[-1] for name, parameter in self.parameters.items()}
        return {
            name: piece
            for name, piece in last.items()
            if name not in self.shared and not piece.pattern.dealt(groups)
        }

    @cached_property
    def owned_bytes(self) -> int:
        """The bytes of the owner with the most rows."""
        return _owned_bytes(self.parameters, self.lengths, self.ranks)

    @cached_property
    def owned_undealt_bytes(self) -> int:
        """The bytes of these rows in parameters without a dealt axis."""
        undealt = {}
        for name, parameter in self.parameters.items():
            if not parameter.pattern.dealt(self.groups):
                undealt[name] = parameter
        return _owned_bytes(undealt, self.lengths, self.ranks)

    @cached_property
    def share_of_a_rank(self) -> Fraction:
        """The fraction of the network that a rank trains, as the mean over the ranks of a round."""
        return Fraction(self.held_elements) / self.members / self.network_elements


def _owned_bytes(
    parameters: Mapping[str, Parameter], lengths: Mapping[str, int], ranks: int
) -> int:
    total = 0
    for parameter in parameters.values():
        rows, *columns = parameter.pattern.axes
        largest = min(-(-rows.length(lengths) // ranks), rows.count(lengths))
        total += largest * prod(axis.count(lengths) for axis in columns) * parameter.itemsize
    return total
