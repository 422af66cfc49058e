"""Checks readings, which a small network proved, on the full network in evaluation and training."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from istmpi.errors import ConfigError
from istmpi.inspection.proof import Reading, permute_units
from istmpi.network.norms import build_module
from istmpi.network.running import run_examples, run_short
from istmpi.network.trials import Watching, alike, random_values, seeded, set_values
from istmpi.network.user import UserNetwork

EXAMPLES = 2
RANDOM = frozenset(
    (
        "bernoulli",
        "bernoulli_",
        "uniform_",
        "normal_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "cauchy_",
    )
    + ("rand", "rand_like", "randn", "randn_like", "normal", "normal_functional", "uniform")
)
"""Operations that draw random numbers."""


def find_misread(network: UserNetwork, readings: Mapping[str, Reading]) -> dict[str, str]:
    """Return the problems of widths whose units cannot be permuted in the full network, in
    evaluation or training."""
    if not readings:
        return {}
    full = _FullNetwork(network, readings)
    # Double precision takes most of the time. float32 is enough if its outputs agree as closely as
    # those in float64 must.
    with suppress(ConfigError):
        if full.agrees_in_float32():
            return {}
    x, expected = run_examples(network, full.module, EXAMPLES, full.evaluate)
    widths = ", ".join(f"{name} = {network.widths[name].length}" for name in readings)
    problems = full.find_problems(x, expected, False, readings, f"with {widths}")
    left = {name: reading for name, reading in readings.items() if name not in problems}
    expected = full.run(x, {}, training=True)
    problems |= full.find_problems(x, expected, True, left, "in training")
    return problems


class _FullNetwork:
    """A network with all its units and random values, and a permutation of each width's units."""

    def __init__(self, network: UserNetwork, readings: Mapping[str, Reading]):
        self.module = build_module(network).float()
        self._network = network
        self._readings = readings
        generator = torch.Generator().manual_seed(0)
        self._values = random_values(self.module, generator)
        self._orders = {
            name: torch.randperm(network.widths[name].length, generator=generator)
            for name in readings
        }

    def run(
        self, x: Sequence[torch.Tensor], permuted: Mapping[str, Reading], training: bool
    ) -> torch.Tensor:
        """Return the outputs with permuted units of some widths."""
        values: Mapping[str, torch.Tensor] = self._values
        for width, reading in permuted.items():
            values = permute_units(values, reading, self._orders[width])
        set_values(self.module, values)
        with seeded(), Steady():
            return self._network.forward(self.module.train(training), *x)

    def evaluate(self, *x: torch.Tensor) -> torch.Tensor:
        return self.run(x, {}, training=False)

    def agrees_in_float32(self) -> bool:
        examples = self._network.examples(EXAMPLES, torch.float32)
        x, expected = run_short(self._network, examples, self.evaluate)
        for training in (False, True):
            outputs = self.run(x, self._readings, training)
            if training:
                expected = self.run(x, {}, training)
            if not alike(outputs.double(), expected.double()):
                return False
        return True

    def find_problems(
        self,
        x: Sequence[torch.Tensor],
        expected: torch.Tensor,
        training: bool,
        readings: Mapping[str, Reading],
        where: str,
    ) -> dict[str, str]:
        """Return the problems of widths that change the outputs, first of all together."""
        if alike(self.run(x, readings, training), expected):
            return {}
        problem = (
            f"exchanging its units changes the outputs {where}, although not those of a small "
            "network"
        )
        return {
            name: problem
            for name, reading in readings.items()
            if not alike(self.run(x, {name: reading}, training), expected)
        }


class Steady(Watching):
    """Replaces random numbers by constants while the mode is active."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        # A draw for each position would not move with its unit. Dropout is the identity, as in an
        # evaluation: a constant for its draws would keep or drop all units at once.
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        outputs = func(*args, **(kwargs or {}))
        if name in RANDOM:
            constant = 0.5
            # A draw with a probability becomes the probability, so that its scale is right.
            if name == "bernoulli_" and len(args) > 1 and isinstance(args[1], float):
                constant = args[1]
            outputs.fill_(constant)
        return outputs
