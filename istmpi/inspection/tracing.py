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
from istmpi.inspection.recording import Recorder
from istmpi.network.norms import built
from istmpi.network.table import Blocks, Operator, inside, unit_of
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
    doubled: Mapping[str, Sequence[Any] | None]
    """The record for each doubled width; None if operations differ. In training, key "" is for
    twice the examples."""

    @property
    def complete(self) -> bool:
        return None not in self.doubled.values()

    @staticmethod
    def of(network: UserNetwork, lengths: Mapping[str, int], full: Recorder) -> Family:
        """Return the family at few units; if it is not `complete`, the family at ``lengths``,
        recorded in ``full``."""

        def member(at: Mapping[str, int], examples: int = EXAMPLES) -> Sequence[Any] | None:
            try:
                module = full.network if at == lengths else built(network, at)
                records = followed(network, module, full.training, examples)[0].records
            except ConfigError:
                return None
            return records if records == full.records else None

        def doubled(at: Mapping[str, int], base: Sequence[Any]) -> Family:
            records = {name: member({**at, name: 2 * length}) for name, length in at.items()}
            return Family(
                at, base, records | ({"": member(at, 2 * EXAMPLES)} if full.training else {})
            )

        small = few(lengths)
        with one_thread():  # a constructor may not take few units, or twice as many of them
            base = member(small) if small != lengths else None
            family = doubled(small, base) if base is not None else None
            return family if family and family.complete else doubled(lengths, full.records)


def followed(
    network: UserNetwork, module: nn.Module, training: bool, examples: int = EXAMPLES
) -> tuple[Recorder, torch.Tensor, bool]:
    """Record a forward pass. Return the record, the outputs, and True if the pass draws random
    numbers."""
    recorder, x = Recorder(module, training), network.examples(examples, torch.get_default_dtype())
    with seeded(), recorder.following():
        state = torch.get_rng_state()
        outputs = network.forward(module.train(training), *x, gradients=training)
        return recorder, outputs, not torch.equal(state, torch.get_rng_state())


def factors_of(size: int, doubled: Mapping[str, int]) -> tuple[list[str], bool]:
    """Return the widths that are factors of a size, with repetition, and True if widths change it
    in no other way."""
    powers = [
        (name, log2(larger / size) if size else float(larger)) for name, larger in doubled.items()
    ]
    names = [name for name, power in powers for _ in range(round(power))]
    return names, all(power == round(power) >= 0 for _, power in powers)


def summands(
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
        names, exact = factors_of(size, {name: larger})
        if exact:
            common += names
        elif size < larger < 2 * size:
            growths[name] = larger - size
        else:
            return None
    left, rest = divmod(size, prod(lengths[name] for name in common))
    terms: list[tuple[int, tuple[str, ...]]] = []
    for name, growth in growths.items():
        number, odd = divmod(growth, prod(lengths[each] for each in (*common, name)))
        rest += odd
        terms.append((number, (*common, name)))
        left -= number * lengths[name]
    if rest or left < 0:
        return None
    if left or not terms:
        terms.append((left, tuple(common)))
    return terms


def axis_of(length: int, names: Sequence[str], lengths: Mapping[str, int]) -> str:
    """Return an axis of this length with the widths ``names`` as inner factors; the rest is the
    outermost factor."""
    literal = length // prod(lengths[name] for name in names)
    first = [Factor(None, literal)] * (literal != 1 or not names)
    return str(product(*first, *map(Factor, names)))


def trace(
    network: UserNetwork,
    lengths: Mapping[str, int],
    blocks: Blocks = NO_BLOCKS,
    full: Recorder | None = None,
) -> dict[str, Any]:
    """Return the fields of `Table` about a network's operators, in terms of these widths and
    blocks.

    Raises ConfigError if the network cannot be run.
    """
    full = full or followed(network, built(network), True)[0]
    family = Family.of(network, lengths, full)
    operators: Counter[Operator] = Counter()
    normalised, inexact = [], []
    made: dict[int, frozenset[str]] = {}
    for place, record in enumerate(full.products):
        sizes = _read(family, place, record.sizes, lengths) if family.complete else None
        if sizes is None:
            inexact.append(record.module)
            scaled = record.sizes[0] % EXAMPLES == 0
            sizes = (
                " ".join(map(str, (record.sizes[0] // EXAMPLES**scaled, *record.sizes[1:]))),
                int(scaled),
            )
        text, examples = sizes
        shape = inside(Pattern.parse(text), unit_of(blocks, record.module))
        if len(record.sizes) == 1:
            normalised.append(shape)
        else:
            made[place] = shape.axes[2].names
            facts = (
                record.module,
                record.kind,
                record.parameter,
                record.axis,
                record.gradients,
                record.of_input,
            )
            operators[Operator(shape, *facts, examples=examples)] += 1
    residual: dict[str, str] = {}
    for pair in sorted(full.joins):
        first, second = (
            full.products[place].module or full.products[place].parameter for place in pair
        )
        for name in sorted(made[pair[0]] & made[pair[1]]):
            residual.setdefault(name, f"{first} and {second}")
    return {
        "operators": tuple(replace(operator, calls=calls) for operator, calls in operators.items()),
        "normalised": tuple(map(str, normalised)),
        "inexact": tuple(dict.fromkeys(inexact)),
        "residual": residual,
    }


def _read(
    family: Family, place: int, expected: Iterable[int], full: Mapping[str, int]
) -> tuple[str, int] | None:
    """Return the sizes of record number ``place`` as axes, and the power of the number of examples
    in these sizes.

    Returns None if a size is not a sum of products of widths, or does not give its ``expected``
    value at the ``full`` lengths.
    """
    axes, examples = [], 0
    small, in_full = {**family.lengths, "": EXAMPLES}, {**full, "": EXAMPLES}
    for slot, expected_size in enumerate(expected):
        size = family.base[place].sizes[slot]
        doubled = {name: records[place].sizes[slot] for name, records in family.doubled.items()}
        terms = summands(size, doubled, small)
        if terms is None:
            return None
        if (
            sum(number * prod(in_full[name] for name in names) for number, names in terms)
            != expected_size
        ):
            return None
        powers = {names.count("") for _, names in terms}
        if len(powers) > 1:
            return None
        examples += powers.pop()
        segments = []
        for number, names in terms:
            names = [name for name in names if name]
            segments.append(axis_of(number * prod(small[name] for name in names), names, small))
        axes.append(" + ".join(segments))
    return " ".join(axes), examples
