"""The operators of a network, as a run of it shows them, for any widths.

The network is run with few units, then with each width doubled, and the examples: a size that doubles has that width as
a factor. Where the full network has other sizes than follow, these stand for all widths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from istmpi.engine.axes import Pattern
from istmpi.errors import ConfigError
from istmpi.models.architecture import built
from istmpi.models.operators import Operator
from istmpi.models.recording import Record, Recorder
from istmpi.models.table import Blocks, inside, unit_of
from istmpi.models.trials import few, one_thread
from istmpi.models.user import UserNetwork
from istmpi.trees import tensors_of

EXAMPLES = 2
"""Examples in the passes that are watched; batch statistics need two."""
NO_BLOCKS: Blocks = {}


@dataclass(frozen=True)
class Traced:
    operators: tuple[Operator, ...]
    """The products, in the order in which they are first called."""
    normalised: tuple[Pattern, ...]
    inexact: tuple[str, ...]
    residual: Mapping[str, str]


def trace(
    network: UserNetwork,
    lengths: Mapping[str, int],
    blocks: Blocks = NO_BLOCKS,
    full: nn.Module | None = None,
    recorder: Recorder | None = None,
) -> Traced:
    """The computation of a network, in terms of these widths and blocks; ConfigError where it cannot be run."""
    full = full or built(network)
    recorder = recorder or recorded(network, full, EXAMPLES)[0]
    of_full = recorder.records
    with one_thread():
        small = _Family.of(network, lengths, of_full, full) if few(lengths) == lengths else None
        small = small or _Family.of(network, few(lengths), of_full)
    small = small or _Family.of(network, lengths, of_full)
    operators: Counter[Operator] = Counter()
    normalised, inexact = [], []
    made: dict[int, frozenset[str]] = {}
    for place, record in enumerate(of_full):
        read = small.read(place, record.sizes, lengths) if small else None
        if read is None:
            inexact.append(record.module)
            scaled = record.sizes[0] % EXAMPLES == 0
            read = " ".join(map(str, (record.sizes[0] // EXAMPLES**scaled, *record.sizes[1:]))), int(scaled)
        text, examples = read
        shape = inside(Pattern.parse(text), unit_of(blocks, record.module))
        if record.normalises:
            normalised.append(shape)
        else:
            made[place] = shape.axes[2].names
            operators[record.operator(shape, examples)] += 1
    residual: dict[str, str] = {}
    for pair in sorted(recorder.joins):
        first, second = (of_full[place].module or of_full[place].parameter for place in pair)
        for name in sorted(made[pair[0]] & made[pair[1]]):
            residual.setdefault(name, f"{first} and {second}")
    merged = tuple(replace(operator, calls=calls) for operator, calls in operators.items())
    return Traced(merged, tuple(normalised), tuple(dict.fromkeys(inexact)), residual)


@dataclass(frozen=True)
class _Family:
    """The records of a network at some lengths, and with each width, or the examples, doubled."""

    lengths: Mapping[str, int]
    examples: int
    records: Sequence[Record]
    doubled: Mapping[str, Sequence[Record]]
    """The records with a width, by its name, or the examples doubled."""

    @staticmethod
    def of(
        network: UserNetwork, lengths: Mapping[str, int], expected: Sequence[Record], full: nn.Module | None = None
    ) -> _Family | None:
        """The family at these lengths; None where a member cannot be run, or computes other things."""
        examples = EXAMPLES // 2 if full else EXAMPLES

        def records(module: nn.Module, examples: int = examples) -> list[Record]:
            return recorded(network, module, examples)[0].records

        try:
            module = full or built(network, lengths)
            doubled = {"": expected if full else records(module, 2 * examples)}
            for name, length in lengths.items():
                doubled[name] = records(built(network, {**lengths, name: 2 * length}))
            family = _Family(lengths, examples, records(module), doubled)
        except ConfigError:
            return None
        kinds = [record.what for record in expected]
        members = (family.records, *family.doubled.values())
        return family if all([record.what for record in member] == kinds for member in members) else None

    def read(self, place: int, expected: Sequence[int], full: Mapping[str, int]) -> tuple[str, int] | None:
        """The sizes of a record as axes, and the power of the examples; None where one is no product of widths, or not
        as expected.
        """
        axes, examples = [], 0
        for slot, expected_size in enumerate(expected):
            size = self.records[place].sizes[slot]
            powers = {name: _power(records[place].sizes[slot], size) for name, records in self.doubled.items()}
            if None in powers.values():
                return None
            batch = powers.pop("")
            factor, of_full = self.examples**batch, EXAMPLES**batch
            for name, power in powers.items():
                factor, of_full = factor * self.lengths[name] ** power, of_full * full[name] ** power
            literal, rest = divmod(size, factor)
            if rest or literal * of_full != expected_size:
                return None
            examples += batch
            names = [name for name, power in powers.items() for _ in range(power)]
            factors = [str(literal)] * (literal != 1 or not names) + names
            axes.append(factors[0] if len(factors) == 1 else f"({' '.join(factors)})")
        return " ".join(axes), examples


def _power(doubled: int, size: int) -> int | None:
    ratio = doubled // size if size and doubled % size == 0 else int(doubled == size)
    return ratio.bit_length() - 1 if ratio and ratio & (ratio - 1) == 0 else None


def recorded(network: UserNetwork, module: nn.Module, examples: int) -> tuple[Recorder, torch.Tensor, bool]:
    """The record and the outputs of a forward pass, as in training; True if it draws numbers."""
    x = network.examples(examples, torch.get_default_dtype())
    recorder, fused = Recorder(module, *tensors_of(x)), torch.backends.mkldnn.enabled
    if any(isinstance(part, nn.RNNBase) for part in module.modules()):
        torch.backends.mkldnn.enabled = False  # else a recurrent layer is one operation, of which nothing is seen
    try:
        with torch.random.fork_rng(devices=[]), recorder.following(module), recorder:
            state = torch.get_rng_state()
            outputs = network.forward(module.train(), *x, gradients=True)
            return recorder, outputs, not torch.equal(state, torch.get_rng_state())
    finally:
        torch.backends.mkldnn.enabled = fused
