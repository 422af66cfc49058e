"""Networks in which each unit occurs several times, for the second proof
(`istmpi.inspection.halves`)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from istmpi.engine.axes import Pattern
from istmpi.errors import ConfigError
from istmpi.network.architecture import Architecture
from istmpi.network.norms import Calibrated, build_module
from istmpi.network.running import run_examples
from istmpi.network.table import Table, split_power
from istmpi.network.trials import Watching, alike, random_values, seeded, set_values
from istmpi.network.user import UserNetwork

COPIES = 2
EXAMPLES = 16
"""Enough examples that most branches, such as experts that are called only with examples, are
taken."""
OTHER_BUILDS = (1, 2)
"""Seeds of the builds that are compared with the first one."""
EPSILON = 1e-12


class Twins:
    """A narrow network with random values, and networks in which each unit of some widths occurs
    several times.

    Raises ConfigError if the narrow network fails.
    """

    def __init__(self, network: UserNetwork, lengths: Mapping[str, int]):
        self.lengths = dict(lengths)
        self._network = network
        narrow = _build(network, lengths)
        drawn = random_values(narrow, torch.Generator().manual_seed(0))
        best = _Best()

        def run(*x: torch.Tensor) -> torch.Tensor:
            # `run_examples` has chosen the numbers' type.
            self._values = {
                name: drawn[name].to(narrow.get_parameter(name).dtype) for name in drawn
            }
            set_values(narrow, self._values)
            # This function is called again if the first type of numbers fails.
            best.lengths.clear()
            with seeded(), best:
                return network.forward(narrow, *x)

        self._x, self._expected = run_examples(network, narrow, EXAMPLES, run)
        self._best_lengths = best.lengths
        # The second run has the same seed. If it differs, the network keeps state, or has random
        # numbers of its own, and no copy can be compared.
        self._random = not alike(run(*self._x), self._expected)
        self._buffers = dict(narrow.named_buffers())

    def require_equal_builds(self) -> None:
        """Raise ConfigError if another build with the same parameters and buffers computes other
        outputs."""
        if self._random:
            return
        # One more build may draw the same few features by chance.
        for seed in OTHER_BUILDS:
            if not alike(self._compute_again(seed), self._expected):
                raise self._network.refused(
                    "its constructor draws random values that are neither parameters nor buffers, "
                    "such as a permutation or chosen features. Every rank and every later command "
                    "would build another network. Draw these values from a generator with a fixed "
                    "seed."
                )

    def _compute_again(self, seed: int) -> torch.Tensor:
        """Return the outputs of a build with another seed, and with the same parameters and
        buffers."""
        again = _build(self._network, self.lengths, seed=seed).to(self._expected.dtype)
        set_values(again, self._values)
        for name, buffer in again.named_buffers():
            if name in self._buffers and buffer.shape == self._buffers[name].shape:
                buffer.copy_(self._buffers[name])
        with seeded():
            return self._network.forward(again, *self._x)

    def deviation(
        self, table: Table, widths: Collection[str], copies: int = COPIES, more_best: bool = False
    ) -> float:
        """Return the distance of the outputs with copies from those of the narrow network, relative
        to the latter.

        Raises ConfigError if the network with copies fails.
        """
        difference = self._run_copies(table, widths, copies, more_best) - self._expected
        return float(difference.norm() / self._expected.norm().clamp(min=1e-30))

    def obey(self, table: Table, widths: Collection[str], copies: int = COPIES) -> bool:
        """Return True if copies of the widths' units, with the table's factors, compute what one of
        each computes.

        Where a network chooses the best few units, it may choose as many times more as there are
        copies.
        """
        if self._random:
            return True
        if alike(self._run_copies(table, widths, copies), self._expected):
            return True
        if not self._best_lengths:
            return False
        outputs = self._run_copies(table, widths, copies, more_best=True)
        return alike(outputs, self._expected)

    def _run_copies(
        self, table: Table, widths: Collection[str], copies: int, more_best: bool = False
    ) -> torch.Tensor:
        lengths = dict(self.lengths)
        for width in widths:
            lengths[width] *= copies
        full = _build(self._network, lengths).to(self._expected.dtype)
        values = copy_units(table, self._values, widths, self.lengths, copies)
        for name, parameter in full.named_parameters():
            # An integer may have an effect on shapes at some lengths alone.
            if parameter.shape != values[name].shape:
                raise ConfigError(f"{name} has another shape with {copies} times the units")
        set_values(full, values)

        def factor(groups: Collection[str]) -> float:
            product = 1.0
            for summed in groups:
                group, power = split_power(summed)
                if group in widths:
                    product *= (1 / copies) ** power
            return product

        architecture = Architecture(self._network.name, table, "float64", self._network)
        architecture.multiply(full, lengths, factor)
        with seeded(), _Best(self._best_lengths if more_best else None):
            return self._network.forward(full, *self._x)


class _Best(Watching):
    """Notes the length of each axis of which the best few values are chosen.

    If the ``lengths`` of a narrower network are given, as many times more values are chosen as the
    axis is longer.
    """

    def __init__(self, narrower: Sequence[int] | None = None):
        super().__init__()
        self.lengths: list[int] = []
        self._narrower = narrower

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket.__name__ == "topk":
            values, count, *others = args
            axis = others[0] if others else -1
            length = values.shape[axis]
            call = len(self.lengths)
            self.lengths.append(length)
            if self._narrower and call < len(self._narrower):
                args = (values, count * length // self._narrower[call], *others)
        return func(*args, **(kwargs or {}))


def copy_units(
    table: Table,
    values: Mapping[str, torch.Tensor],
    widths: Collection[str],
    lengths: Mapping[str, int],
    copies: int,
) -> dict[str, torch.Tensor]:
    """Return the values of a network in which each unit of the widths occurs ``copies`` times.

    ``values``: those of the network with these lengths. Copy c of n units has the numbers c * n to
    (c + 1) * n - 1.
    """
    wide = dict(lengths)
    for width in widths:
        wide[width] *= copies
    copied = dict(values)
    for name, entry in table.parameters.items():
        for place, axis in enumerate(Pattern.parse(entry.axes).axes):
            shared = sorted(axis.names.intersection(widths))
            if not shared or name not in copied:
                continue
            source = np.zeros(axis.length(wide), dtype=np.int64)
            for numbers in itertools.product(range(copies), repeat=len(shared)):
                units = {}
                for width, number in zip(shared, numbers):
                    first = number * lengths[width]
                    units[width] = range(first, first + lengths[width])
                source[axis.positions(wide, units)] = np.arange(axis.length(lengths))
            copied[name] = copied[name].index_select(place, torch.from_numpy(source))
    return copied


def _build(network: UserNetwork, lengths: Mapping[str, int], seed: int = 0) -> nn.Module:
    module = build_module(network, lengths, seed=seed).eval()
    for layer in module.modules():
        if isinstance(layer, Calibrated):
            # A factor before a batch normalisation shows against its epsilon alone.
            layer.eps = EPSILON
    return module
