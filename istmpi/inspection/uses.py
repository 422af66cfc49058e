"""Finds the sums over units in a forward pass, in any operation.

A network is run at a few lengths. An operation sums over a width's units exactly if the length of
its sum grows with the width. If the weights of a sum come from a softmax along the same axis, the
sum is a mean.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod

from istmpi.engine.axes import Pattern
from istmpi.inspection.operations import MATRIX
from istmpi.inspection.recording import Recorder, Sum
from istmpi.inspection.tracing import Family, axis_of, factors_of, summands
from istmpi.network.table import Joined, Use
from istmpi.network.user import UserNetwork

LINEAR = {*MATRIX, "convolution", "_trilinear"}
"""Operations whose result is proportional to each operand."""


@dataclass(frozen=True)
class Sums:
    uses: tuple[Use, ...] = ()
    means: tuple[Use, ...] = ()
    """Calls whose sums need no factor, with no groups: means, unless the law of two halves shows
    something else."""
    folded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    joined: Mapping[str, Joined] = field(default_factory=dict)
    """The axes of parameters in ``folded`` that are sums of segments."""
    layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fans: Mapping[str, int] = field(default_factory=dict)
    """The number of inputs that each parameter's product adds up, without the inputs of means."""


def sums_of(
    network: UserNetwork,
    lengths: Mapping[str, int],
    full: Recorder,
    layers: Collection[str],
    patterns: Mapping[str, Pattern],
) -> Sums:
    """Find the sums over units in ``full``, a recorded network. ``layers``: modules whose own calls
    take sums.

    ``patterns``: the named axes of the parameters.
    """
    family = Family.of(network, lengths, full)
    doubled = {name: sums for name, sums in family.doubled.items() if sums is not None}
    groups, averaged, odd, parted = _groups(network, family, doubled)
    joined = {number: _joined(family, doubled, number, patterns) for number in parted}
    odd |= {number for number, axis in joined.items() if axis is None}
    folded, axes = _folded(full, groups, layers, joined)
    calls: dict[int, list[str]] = {}
    of_layers: dict[str, tuple[str, ...]] = dict.fromkeys(layers, ())
    for number, (seen, names) in enumerate(zip(full.sums, groups)):
        if seen.module in layers:
            of_layers[seen.module] += names
        elif seen.call is None or number in odd or seen.operation in ("_softmax", "prod"):
            continue
        elif folded.keys().isdisjoint(seen.parameter.split(",")):
            calls.setdefault(seen.turn, []).extend(names)
    uses: dict[tuple[object, ...], Use] = {}
    for number, seen in enumerate(full.sums):
        call = seen.call
        if seen.turn not in calls or call is None or not call.power:
            continue
        names = calls.pop(seen.turn)
        if number in joined:
            if call.axis is None:
                continue
            inner = joined[number].segments
        else:
            grown = {name: sums[number].call.inner for name, sums in doubled.items()}
            inner = axis_of(
                call.inner, factors_of(family.base[number].call.inner, grown)[0], lengths
            )
        uses.setdefault((*call.place, call.inner), Use(*call.place, inner, tuple(sorted(names))))
    scaled = tuple(use for use in uses.values() if use.groups)
    means = tuple(use for use in uses.values() if not use.groups)
    return Sums(scaled, means, folded, axes, of_layers, _fans(full.sums, averaged, lengths))


def _fans(
    sums: Sequence[Sum], averaged: Mapping[int, Collection[str]], lengths: Mapping[str, int]
) -> dict[str, int]:
    fans: dict[str, int] = {}
    for number, product in enumerate(sums):
        if product.parameter and product.operation in LINEAR:
            mean = prod(lengths[name] for name in averaged.get(number, ()))
            fans.setdefault(product.parameter, max((product.fan or product.inner) // mean, 1))
    return fans


def _groups(
    network: UserNetwork, family: Family, doubled: Mapping[str, Sequence[Sum]]
) -> tuple[list[tuple[str, ...]], dict[int, set[str]], set[int], list[int]]:
    """Return the widths over whose units each sum adds, without means, once for each factor of its
    length.

    Also returns the widths of which each sum takes a mean; the numbers of the sums that add over
    widths, but whose length is no sum of products of widths; and the numbers of those with several
    products.
    """
    declared = getattr(network.kind, "SUMS", {})
    groups: list[tuple[str, ...]] = []
    odd, averaged, parted = set(), {}, []
    for number, seen in enumerate(family.base):
        longer = {name: sums[number].inner for name, sums in doubled.items()}
        names, exact = factors_of(seen.inner, longer)
        if not exact and (terms := summands(seen.inner, longer, family.lengths)):
            names = list(dict.fromkeys(chain.from_iterable(its for _, its in terms)))
            exact = True
            parted.append(number)
        means = {name for softmax in seen.weighted_by for name in groups[softmax]} & {*names}
        if seen.operation == "mean":
            means = {*names}
        elif seen.operation != "_softmax":
            means |= {name for name in names if declared.get(name) == "mean"}
        if "mean" in map(declared.get, (seen.module, *seen.parameter.split(","))):
            means = {*names}
        averaged[number] = means
        groups.append(tuple(name for name in names if name not in means))
        if groups[-1] and not exact:
            odd.add(number)
    return groups, averaged, odd, parted


def _joined(
    family: Family,
    doubled: Mapping[str, Sequence[Sum]],
    number: int,
    patterns: Mapping[str, Pattern],
) -> Joined | None:
    """Return the axis of a sum's parameter that is as long as the sum at all lengths; None if there
    is none."""
    seen = family.base[number]
    for axis_number, axis in enumerate(
        patterns[seen.parameter].axes if seen.parameter in patterns else ()
    ):
        longer = {
            name: axis.length({**family.lengths, name: 2 * family.lengths[name]})
            for name in doubled
        }
        if axis.length(family.lengths) == seen.inner and all(
            length == doubled[name][number].inner for name, length in longer.items()
        ):
            return Joined(str(axis), axis_number, len(patterns[seen.parameter].axes))
    return None


def _folded(
    full: Recorder,
    groups: Sequence[Sequence[str]],
    layers: Collection[str],
    joined: Mapping[int, Joined | None],
) -> tuple[dict[str, tuple[str, ...]], dict[str, Joined]]:
    """Return the parameters that are used in sums over the same units alone, and their axes that
    are sums."""
    folded: dict[str, tuple[str, ...]] = {}
    axes: dict[str, Joined | None] = {}
    spoilt = set(full.kept_apart)
    for number, (seen, names) in enumerate(zip(full.sums, groups)):
        parameters = seen.parameter.split(",")
        if seen.module in layers or seen.operation not in LINEAR:
            spoilt.update(parameters)
        spoilt.update(
            name for name in parameters if folded.setdefault(name, tuple(names)) != tuple(names)
        )
        axis = joined.get(number)
        spoilt.update(name for name in parameters if axes.setdefault(name, axis) != axis)
        if number in joined and axis is None:
            spoilt.update(parameters)
    folded = {
        name: names for name, names in folded.items() if names and name and name not in spoilt
    }
    for seen in full.sums:  # if two parameters are factors of a product, only one is multiplied
        for other in [name for name in seen.parameter.split(",") if name in folded][1:]:
            del folded[other]
    return folded, {name: axis for name, axis in axes.items() if axis and name in folded}
