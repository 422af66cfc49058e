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
from istmpi.inspection.tracing import Family, find_factors, find_summands, write_axis
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


@dataclass(frozen=True)
class _Groups:
    """The widths and axes over which each sum of a family adds, by the sum's number."""

    names: Sequence[tuple[str, ...]]
    """The widths over whose units each sum adds, without means, once for each factor of its
    length."""
    averaged: Mapping[int, Collection[str]]
    """The widths of which each sum takes a mean."""
    unreadable: set[int]
    """The sums that add over widths, but whose length is no sum of products of widths."""
    joined: Mapping[int, Joined | None]
    """The axes of sums whose length has several products; None where no parameter has the axis."""


def find_sums(
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
    family = Family.record(network, lengths, full)
    groups = _find_groups(network, family, patterns)
    folded, axes = _fold(full, groups, layers)
    calls: dict[int, list[str]] = {}
    layer_groups: dict[str, tuple[str, ...]] = dict.fromkeys(layers, ())
    for number, (addition, names) in enumerate(zip(full.sums, groups.names)):
        if addition.module in layers:
            layer_groups[addition.module] += names
        elif (
            addition.call is None
            or number in groups.unreadable
            or addition.operation in ("_softmax", "prod")
        ):
            continue
        elif folded.keys().isdisjoint(addition.parameter.split(",")):
            calls.setdefault(addition.turn, []).extend(names)
    uses = _find_uses(full, family, lengths, calls, groups.joined)
    return Sums(
        uses=tuple(use for use in uses if use.groups),
        means=tuple(use for use in uses if not use.groups),
        folded=folded,
        joined=axes,
        layers=layer_groups,
        fans=_fans(full.sums, groups.averaged, lengths),
    )


def _find_uses(
    full: Recorder,
    family: Family,
    lengths: Mapping[str, int],
    calls: Mapping[int, Sequence[str]],
    joined: Mapping[int, Joined | None],
) -> list[Use]:
    """Return the calls in the network's code that sum over units. ``calls``: the groups of a call,
    by its number."""
    uses: dict[tuple[object, ...], Use] = {}
    used = set()
    for number, addition in enumerate(full.sums):
        call = addition.call
        if addition.turn not in calls or addition.turn in used or call is None or not call.power:
            continue
        # One call may take several sums; it is multiplied once.
        used.add(addition.turn)
        axis = joined.get(number)
        if axis is None:
            grown = {name: sums[number].call.inner for name, sums in family.doubled.items()}
            factors, _ = find_factors(family.base[number].call.inner, grown)
            inner = write_axis(call.inner, factors, lengths)
        elif call.axis is None:
            continue
        else:
            inner = axis.segments
        use = Use(
            module=call.module,
            function=call.function,
            parameter=call.parameter,
            detail=call.detail,
            inner=inner,
            groups=tuple(sorted(calls[addition.turn])),
        )
        # A pass cannot tell calls apart that have the same place and length.
        uses.setdefault((*call.place, call.inner), use)
    return list(uses.values())


def _fans(
    sums: Sequence[Sum], averaged: Mapping[int, Collection[str]], lengths: Mapping[str, int]
) -> dict[str, int]:
    """Return the number of inputs that each parameter's product adds up; means count as one."""
    fans: dict[str, int] = {}
    for number, product in enumerate(sums):
        if product.parameter and product.operation in LINEAR:
            # A mean is as large as one of its values, however many units it has.
            mean = prod(lengths[name] for name in averaged.get(number, ()))
            fans.setdefault(product.parameter, max((product.fan or product.inner) // mean, 1))
    return fans


def _find_groups(network: UserNetwork, family: Family, patterns: Mapping[str, Pattern]) -> _Groups:
    """Return the widths over which each recorded sum adds. ``patterns``: parameters' axes."""
    declared = getattr(network.kind, "SUMS", {})
    groups: list[tuple[str, ...]] = []
    averaged: dict[int, set[str]] = {}
    unreadable = set()
    joined = {}
    for number, addition in enumerate(family.base):
        longer = {name: sums[number].inner for name, sums in family.doubled.items()}
        names, is_known = find_factors(addition.inner, longer)
        if not is_known:
            terms = find_summands(addition.inner, longer, family.lengths)
            if terms:
                names = list(dict.fromkeys(chain.from_iterable(widths for _, widths in terms)))
                is_known = True
                joined[number] = _find_joined(family, number, patterns)
        means = _find_means(addition, names, groups, declared)
        averaged[number] = means
        groups.append(tuple(name for name in names if name not in means))
        # No factor can be given for a length that cannot be written down.
        if groups[-1] and not is_known:
            unreadable.add(number)
        if number in joined and joined[number] is None:
            unreadable.add(number)
    return _Groups(groups, averaged, unreadable, joined)


def _find_means(
    addition: Sum,
    names: Sequence[str],
    groups: Sequence[Sequence[str]],
    declared: Mapping[str, str],
) -> set[str]:
    """Return the widths over which a sum is a mean. ``groups``: those of the sums before it.
    ``declared``: the class's ``SUMS``."""
    if addition.operation == "mean":
        return {*names}
    # SUMS may name a module, a parameter or a width.
    if "mean" in map(declared.get, (addition.module, *addition.parameter.split(","))):
        return {*names}
    means: set[str] = set()
    for softmax in addition.weighted_by:
        means.update(name for name in groups[softmax] if name in names)
    if addition.operation != "_softmax":
        means.update(name for name in names if declared.get(name) == "mean")
    return means


def _find_joined(family: Family, number: int, patterns: Mapping[str, Pattern]) -> Joined | None:
    """Return the axis of a sum's parameter that is as long as the sum at all lengths; None if there
    is none."""
    addition = family.base[number]
    if addition.parameter not in patterns:
        return None
    pattern = patterns[addition.parameter]
    for axis_number, axis in enumerate(pattern.axes):
        # Equal at one choice of lengths may be chance, at all of them is not.
        same = axis.length(family.lengths) == addition.inner
        for name, sums in family.doubled.items():
            doubled = {**family.lengths, name: 2 * family.lengths[name]}
            same = same and axis.length(doubled) == sums[number].inner
        if same:
            return Joined(str(axis), axis_number, len(pattern.axes))
    return None


def _fold(
    full: Recorder, groups: _Groups, layers: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, Joined]]:
    """Return the parameters that are used in sums over the same units alone, and their axes that
    are sums."""
    folded: dict[str, tuple[str, ...]] = {}
    axes: dict[str, Joined | None] = {}
    # A factor in the parameter itself must be right for each of its uses.
    spoilt = set(full.kept_apart)
    for number, (addition, names) in enumerate(zip(full.sums, groups.names)):
        axis = groups.joined.get(number)
        for parameter in addition.parameter.split(","):
            if addition.module in layers or addition.operation not in LINEAR:
                spoilt.add(parameter)
            if folded.setdefault(parameter, names) != names:
                spoilt.add(parameter)
            if axes.setdefault(parameter, axis) != axis:
                spoilt.add(parameter)
            if number in groups.joined and axis is None:
                spoilt.add(parameter)
    folded = {
        name: names for name, names in folded.items() if names and name and name not in spoilt
    }
    # If two parameters are factors of a product, only one is multiplied.
    for addition in full.sums:
        present = [name for name in addition.parameter.split(",") if name in folded]
        for other in present[1:]:
            del folded[other]
    return folded, {name: axis for name, axis in axes.items() if axis and name in folded}
