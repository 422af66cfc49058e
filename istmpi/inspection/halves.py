"""The second proof of a network's table: the law of two halves (decision 69).

If each unit of a width occurs twice, and the factors of the sums over these units are those of a
half, the network computes what the narrow network with one of each unit computes. The law knows
nothing of products, sums or normalisations, so it finds a wrong factor wherever the forward pass
hides it.

A width that breaks the law gets other powers of its share as factors, if some powers obey the law
also with four copies of each unit. Otherwise its sums cannot be scaled.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from istmpi.engine.axes import Pattern
from istmpi.errors import ConfigError
from istmpi.inspection.twins import COPIES, Twins
from istmpi.network.table import Table, Use, split_power, with_power
from istmpi.network.trials import few, one_thread
from istmpi.network.user import UserNetwork

MORE_COPIES = 4
"""The number of copies of each unit with which corrected powers must hold, too."""
POWERS = (0.5, 0.0, 1.0, -1.0, -0.5, 1.5, 2.0)
"""The powers of a share that are tried, the usual ones first."""
TRIES = 160
"""The most choices of powers that are tried for a width."""
WIDER = 8
"""The factor of the width at which a deviation must have faded."""
FADED = 4
"""The least factor by which a deviation fades with `WIDER` times as many units; one of 1/n fades by
`WIDER`."""

Place = tuple[str, Any]
"""A place of factors in a table: ``("sums", layer)``, ``("folded", parameter)`` or ``("uses", use
without groups)``."""
Powers = Mapping[Place, float]


def prove_halves(network: UserNetwork, table: Table, means: Sequence[Use] = ()) -> Table:
    """Return the table with factors that obey the law.

    A width that no factors make right is in ``unscaled``, with the place of its sums and the size
    of the deviation. ``means``: calls that take means over units, whose power of the share is 0.

    Raises ConfigError if two builds with equal parameters and buffers compute different outputs.
    """
    with one_thread():
        return _Proof(network, means).prove(table)


class _Proof:
    """The twins of a network at several lengths, which are built once."""

    def __init__(self, network: UserNetwork, means: Sequence[Use]):
        self._network = network
        self._means = means
        self._twins: dict[tuple[tuple[str, int], ...], Twins] = {}

    def prove(self, table: Table) -> Table:
        lengths = {
            name: length for name, length in table.groups.items() if name not in table.blocks
        }
        self._require_equal_builds(lengths)
        # decision 69: copies of units see what the recording cannot, such as a mean times a width.
        unscaled: dict[str, tuple[str, ...]] = {}
        for width in lengths:
            table, problem = self._correct_powers(table, lengths, width)
            if problem:
                unscaled[problem] = (*unscaled.get(problem, ()), width)
        table = replace(table, unscaled=unscaled)
        # Factors may be right for each width alone, but wrong for several widths at once.
        together = [
            width for width in table.dealt if width in lengths and width not in table.fading
        ]
        if len(together) > 1:
            twins, obey = self._try(table, lengths, together)
            if twins and not obey:
                change = _describe_change(twins.deviation(table, together))
                unscaled[f"its forward: halves of several widths {change}"] = tuple(together)
                table = replace(table, unscaled=unscaled)
        return table

    def _require_equal_builds(self, lengths: Mapping[str, int]) -> None:
        for tried in (few(lengths), dict(lengths)):
            try:
                twins = self._at(tried)
            except ConfigError:
                continue  # the network may need more units
            twins.require_equal_builds()
            return

    def _at(self, lengths: Mapping[str, int]) -> Twins:
        key = tuple(lengths.items())
        if key not in self._twins:
            self._twins[key] = Twins(self._network, lengths)
        return self._twins[key]

    def _try(
        self, table: Table, lengths: Mapping[str, int], widths: Collection[str]
    ) -> tuple[Twins | None, bool]:
        """Return twins at the first lengths at which the network runs, with one and with two of
        each unit, and True if they obey the law; (None, True) if it runs at none."""
        halved = dict(lengths)
        for width in widths:
            halved[width] = max(lengths[width] // COPIES, 1)
        # Few units are fast. Some constructors refuse them, and take a half of the full widths.
        for tried in (few(lengths), halved, dict(lengths)):
            with suppress(ConfigError):
                twins = self._at(tried)
                return twins, twins.obey(table, widths)
        return None, True

    def _correct_powers(
        self, table: Table, lengths: Mapping[str, int], width: str
    ) -> tuple[Table, str]:
        """Return the table with right powers of a width's share, or the problem if there are
        none."""
        twins, obey = self._try(table, lengths, [width])
        if twins is None or obey:
            return table, ""
        for powers in itertools.islice(_propose_powers(table, self._means, width), TRIES):
            changed = _set_powers(table, width, powers)
            # Two copies alone may agree by chance.
            if twins.obey(changed, [width]) and twins.obey(changed, [width], MORE_COPIES):
                return changed, ""
        deviation = twins.deviation(table, [width])
        wider = WIDER * twins.lengths[width]
        # Beside more units other positions of an axis also weigh less, but a subnet has few units.
        fades = FADED * self._deviation_at(twins, table, width, wider) < deviation
        if fades and not _lies_beside_others(table, width):
            half = max(min(lengths[width] // COPIES, wider), 1)
            fading = {**table.fading, width: self._deviation_at(twins, table, width, half)}
            return replace(table, fading=fading), ""
        places = _describe_places(table, self._means, width)
        return table, f"{places}: two equal halves {_describe_change(deviation)}"

    def _deviation_at(self, twins: Twins, table: Table, width: str, units: int) -> float:
        """Return the deviation with this number of units, or infinity if the network cannot have
        them.

        It fades if the exact factor differs by 1/n: a unit that leaves itself out, a deviation with
        n - 1.
        """
        with suppress(ConfigError):
            return self._at({**twins.lengths, width: units}).deviation(table, [width])
        return math.inf


@dataclass(frozen=True)
class _Candidate:
    place: Place
    kind: str
    """Places of one kind get the same power: layers whose names differ in numbers alone."""


def _propose_powers(table: Table, means: Sequence[Use], width: str) -> Iterator[Powers]:
    """Yield powers of a width's share for the places of its sums: changes of few kinds of places
    first."""
    candidates = [*_candidates(table, means, width)]
    kinds = list(dict.fromkeys(candidate.kind for candidate in candidates))

    def chosen(powers: Mapping[str, float]) -> Powers:
        return {
            candidate.place: powers[candidate.kind]
            for candidate in candidates
            if candidate.kind in powers
        }

    for kind, power in itertools.product(kinds, POWERS):
        yield chosen({kind: power})
    if len(kinds) > 1:
        for power in POWERS:
            yield chosen(dict.fromkeys(kinds, power))
    for pair in itertools.combinations(kinds, 2):
        for powers in itertools.product(POWERS, repeat=2):
            yield chosen(dict(zip(pair, powers)))


def _candidates(table: Table, means: Sequence[Use], width: str) -> Iterator[_Candidate]:
    """Yield the places of a width's sums; means are places, too, for a power may be missing."""
    places: list[tuple[Place, Sequence[str], str]] = []
    for layer, groups in table.sums.items():
        places.append((("sums", layer), groups, layer))
    for parameter, groups in table.folded.items():
        places.append((("folded", parameter), groups, parameter))
    for use in table.uses or ():
        place: Place = ("uses", replace(use, groups=()))
        places.append((place, use.groups, f"{use.function} {use.module}"))
    used = {place for place, _, _ in places}
    for use in means:
        if ("uses", use) not in used and width in Pattern.parse(use.inner).names:
            places.append((("uses", use), (width,), f"mean {use.function} {use.module}"))
    for place, summed_groups, name in places:
        if any(split_power(summed)[0] == width for summed in summed_groups):
            kind = re.sub(r"[0-9]+", "#", name)
            yield _Candidate(place, f"{place[0]} {kind}")


def _set_powers(table: Table, width: str, powers: Powers) -> Table:
    """Return the table with other powers of a width's share at some places."""
    sums = dict(table.sums)
    folded = dict(table.folded)
    uses: dict[Use, tuple[str, ...]] = {}
    for use in table.uses or ():
        uses[replace(use, groups=())] = use.groups
    rooms: Mapping[str, dict[Any, tuple[str, ...]]] = {"sums": sums, "folded": folded, "uses": uses}
    for (room, key), power in powers.items():
        rooms[room][key] = with_power(rooms[room].get(key, ()), width, power)
    kept = tuple(replace(use, groups=groups) for use, groups in uses.items() if groups)
    return replace(table, sums=sums, folded=folded, uses=kept)


def _describe_places(table: Table, means: Sequence[Use], width: str) -> str:
    """Name the places of a width's sums in words, up to three of them."""
    names = []
    for candidate in _candidates(table, means, width):
        room, key = candidate.place
        if room == "uses":
            key = f"{key.function} of {key.module or 'its forward'}"
        names.append(key)
    if len(names) > 3:
        names[3:] = ["..."]
    return ", ".join(names) or "its forward"


def _lies_beside_others(table: Table, width: str) -> bool:
    """Return True if an axis has positions of a width's units and, beside them, others."""
    for entry in table.parameters.values():
        for axis in Pattern.parse(entry.axes).axes:
            has_units = [width in segment.names for segment in axis.segments]
            if any(has_units) and not all(has_units):
                return True
    return False


def _describe_change(deviation: float) -> str:
    if deviation < 10:
        return f"change the outputs by {deviation:.0%}"
    return "change the outputs completely"
