"""Finds the operators of a network, at any widths, by running the network.

The network is run with few units, then with each width doubled, and with twice the examples. A size
that doubles has that width as a factor. Sizes of the full network that do not follow from such
factors count at all widths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2, prod
from typing import Any

import torch
from torch import nn

from istmpi.engine.axes import Factor, Pattern, product
from istmpi.errors import ConfigError
from istmpi.inspection.recording import Record, Recorder
from istmpi.network.norms import build_module
from istmpi.network.table import Blocks, Operator, find_unit, inside
from istmpi.network.trials import few, one_thread, seeded
from istmpi.network.user import UserNetwork

EXAMPLES = 2
"""The number of examples in the recorded passes. Batch statistics need two."""
NO_BLOCKS: Blocks = {}


@dataclass(frozen=True)
class Family:
    """A network's recorded operations at some lengths of its axes, and the records with each width
    doubled."""

    lengths: Mapping[str, int]
    base: Sequence[Any]
    doubled: Mapping[str, Sequence[Any]]
    """The records with each width doubled, without widths at which the operations differ. In
    training, key "" is for twice the examples."""
    complete: bool
    """True if the operations are the same with each width doubled."""

    @staticmethod
    def record(network: UserNetwork, lengths: Mapping[str, int], full: Recorder) -> Family:
        """Record a network at few units, and with each width doubled.

        If that fails, the family has the full ``lengths``, which ``full`` recorded.
        """
        small = few(lengths)
        with one_thread():
            if small != lengths:
                # A constructor may not take few units, or twice as many of them.
                base = _record_as(network, small, full)
                if base is not None:
                    family = _double(network, small, base, full)
                    if family.complete:
                        return family
            return _double(network, lengths, full.records, full, full.network)


def _double(
    network: UserNetwork,
    lengths: Mapping[str, int],
    base: Sequence[Any],
    full: Recorder,
    module: nn.Module | None = None,
) -> Family:
    """Record a network with each width doubled. ``module``: the network at ``lengths``, if it is
    built."""
    records = {}
    for name, length in lengths.items():
        records[name] = _record_as(network, {**lengths, name: 2 * length}, full)
    if full.training:
        records[""] = _record_as(network, lengths, full, 2 * EXAMPLES, module)
    same = {name: record for name, record in records.items() if record is not None}
    return Family(lengths, base, same, complete=len(same) == len(records))


def _record_as(
    network: UserNetwork,
    lengths: Mapping[str, int],
    full: Recorder,
    examples: int = EXAMPLES,
    module: nn.Module | None = None,
) -> Sequence[Any] | None:
    """Return a network's records at some lengths; None if its operations differ from ``full``."""
    try:
        if module is None:
            module = build_module(network, lengths)
        recorder, _, _ = record(network, module, full.training, examples)
    except ConfigError:
        return None
    return recorder.records if recorder.records == full.records else None


def record(
    network: UserNetwork, module: nn.Module, training: bool, examples: int = EXAMPLES
) -> tuple[Recorder, torch.Tensor, bool]:
    """Record a forward pass. Return the record, the outputs, and True if the pass draws random
    numbers."""
    recorder = Recorder(module, training)
    x = network.examples(examples, torch.get_default_dtype())
    with seeded(), recorder.following():
        state = torch.get_rng_state()
        outputs = network.forward(module.train(training), *x, gradients=training)
        # Whoever draws a random number changes the state of the generator.
        return recorder, outputs, not torch.equal(state, torch.get_rng_state())


def find_factors(size: int, doubled: Mapping[str, int]) -> tuple[list[str], bool]:
    """Return the widths that are factors of a size, with repetition, and True if widths change it
    in no other way."""
    names: list[str] = []
    is_product = True
    for name, larger in doubled.items():
        # The size 0 of a look-up stays 0, the power of no width.
        power = log2(larger / size) if size else float(larger)
        names += [name] * round(power)
        is_product = is_product and power == round(power) >= 0
    return names, is_product


def find_summands(
    size: int, doubled: Mapping[str, int], lengths: Mapping[str, int]
) -> list[tuple[int, tuple[str, ...]]] | None:
    """Return a size as a sum of (number, widths) whose products add up to it; None if it is not
    such a sum.

    ``doubled``: the size with each width doubled. A width that doubles the whole size is in all
    summands.
    """
    common: list[str] = []
    growths: dict[str, int] = {}
    for name, larger in doubled.items():
        names, is_product = find_factors(size, {name: larger})
        if is_product:
            common += names
        elif size < larger < 2 * size:
            growths[name] = larger - size
        else:
            return None
    left, rest = divmod(size, prod(lengths[name] for name in common))
    terms: list[tuple[int, tuple[str, ...]]] = []
    for name, growth in growths.items():
        widths = (*common, name)
        number, left_over = divmod(growth, prod(lengths[width] for width in widths))
        rest += left_over
        terms.append((number, widths))
        # Like `left`, counted in products of the common widths.
        left -= number * lengths[name]
    if rest or left < 0:
        return None
    # The positions that grow with no width but the common ones.
    if left or not terms:
        terms.append((left, tuple(common)))
    return terms


def write_axis(length: int, names: Sequence[str], lengths: Mapping[str, int]) -> str:
    """Return an axis of this length with the widths ``names`` as inner factors; the rest is the
    outermost factor."""
    literal = length // prod(lengths[name] for name in names)
    factors = [Factor(name) for name in names]
    if literal != 1 or not names:
        factors.insert(0, Factor(None, literal))
    return str(product(*factors))


@dataclass(frozen=True)
class Operators:
    """The operators of a network, in terms of widths and blocks; the fields are those of
    `Table`."""

    products: tuple[Operator, ...]
    normalised: tuple[str, ...]
    inexact: tuple[str, ...]
    residual: Mapping[str, str]


def trace(
    network: UserNetwork,
    lengths: Mapping[str, int],
    blocks: Blocks = NO_BLOCKS,
    full: Recorder | None = None,
) -> Operators:
    """Return a network's operators in terms of these widths and blocks.

    ``full``: the recorded training pass of the full network, if there is one. Raises ConfigError if
    the network cannot be run.
    """
    if full is None:
        full, _, _ = record(network, build_module(network), True)
    family = Family.record(network, lengths, full)
    calls: Counter[Operator] = Counter()
    normalised = []
    inexact = []
    columns: dict[int, frozenset[str]] = {}
    for place, recorded in enumerate(full.products):
        sizes = None
        if family.complete:
            sizes = _find_sizes(family, place, recorded.sizes, lengths)
        if sizes is None:
            # The plan is then exact for the full network alone, and says so.
            inexact.append(recorded.module)
            sizes = _full_sizes(recorded)
        text, examples = sizes
        shape = inside(Pattern.parse(text), find_unit(blocks, recorded.module))
        if len(recorded.sizes) == 1:  # a normalisation; a product has three
            normalised.append(str(shape))
            continue
        columns[place] = shape.axes[2].names
        calls[_operator(recorded, shape, examples)] += 1
    return Operators(
        products=tuple(replace(operator, calls=count) for operator, count in calls.items()),
        normalised=tuple(normalised),
        inexact=tuple(dict.fromkeys(inexact)),
        residual=_residual_streams(full, columns),
    )


def _operator(recorded: Record, shape: Pattern, examples: int) -> Operator:
    return Operator(
        shape=shape,
        module=recorded.module,
        kind=recorded.kind,
        parameter=recorded.parameter,
        axis=recorded.axis,
        gradients=recorded.gradients,
        of_input=recorded.of_input,
        examples=examples,
    )


def _residual_streams(full: Recorder, columns: Mapping[int, frozenset[str]]) -> dict[str, str]:
    """Return the widths on which outputs of products are added, each with two such products.

    ``columns``: the widths of each product's outputs.
    """
    residual: dict[str, str] = {}
    for first, second in sorted(full.joins):
        layers = [
            full.products[place].module or full.products[place].parameter
            for place in (first, second)
        ]
        for name in sorted(columns[first] & columns[second]):
            residual.setdefault(name, " and ".join(layers))
    return residual


def _full_sizes(recorded: Record) -> tuple[str, int]:
    """Return a record's own sizes as `_find_sizes` does, for all widths."""
    rows, *others = recorded.sizes
    # Rows that are not a multiple of the examples do not grow with them.
    if rows % EXAMPLES == 0:
        return " ".join(map(str, (rows // EXAMPLES, *others))), 1
    return " ".join(map(str, (rows, *others))), 0


def _find_sizes(
    family: Family, place: int, expected: Iterable[int], full: Mapping[str, int]
) -> tuple[str, int] | None:
    """Return the sizes of record number ``place`` as axes, and the power of the number of examples
    in these sizes.

    Returns None if a size is not a sum of products of widths, or does not give its ``expected``
    value at the ``full`` lengths.
    """
    axes = []
    examples = 0
    # The number of examples is a width like others, with the name "".
    small = {**family.lengths, "": EXAMPLES}
    full = {**full, "": EXAMPLES}
    for slot, expected_size in enumerate(expected):
        size = family.base[place].sizes[slot]
        doubled = {name: records[place].sizes[slot] for name, records in family.doubled.items()}
        terms = find_summands(size, doubled, small)
        if terms is None:
            return None
        size_in_full = 0
        for number, names in terms:
            size_in_full += number * prod(full[name] for name in names)
        if size_in_full != expected_size:
            return None
        # All summands of a size grow with the examples, or none does.
        powers = {names.count("") for _, names in terms}
        if len(powers) > 1:
            return None
        examples += powers.pop()
        segments = []
        for number, names in terms:
            widths = [name for name in names if name]
            length = number * prod(small[name] for name in widths)
            segments.append(write_axis(length, widths, small))
        axes.append(" + ".join(segments))
    return " ".join(axes), examples
