"""Finds tensors that a network only adds to its outputs, such as the bias of its last layer.

A small network of the class is tried, with random weights of its own. The answer is therefore a
property of the class: it depends neither on a run's weights nor on the examples of a program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import torch

from istmpi.code import calling
from istmpi.errors import ConfigError
from istmpi.network.linear import linear_layers
from istmpi.network.trials import FEW, seeded
from istmpi.trees import call, list_tensors, map_tensors

if TYPE_CHECKING:
    from torch import nn

    from istmpi.network.architecture import Architecture
    from istmpi.outputs import Outputs

    Require = Callable[[Outputs], torch.Tensor]

SEVERAL = 4
"""The number of examples of a trial."""
DRAWS = (0, 1)
"""The seeds of the random weights and examples of which the effect must not depend."""
CHANGE = 10.0
"""The size of a change of a tensor whose effect is looked at: bends of a ReLU are near 0."""
TOLERANCE = 1e-3
"""The largest relative difference between equal effects: float32 rounds."""
ROUNDING = 1e-5
"""The rounding of outputs in float32, relative to the largest one."""
CURE = "The pass tells what is only added to the outputs. Use another method."


def find_added(
    architecture: Architecture,
    dealt: Collection[str],
    require: Require | None = None,
    only_fixed: bool = False,
) -> list[str]:
    """Return the names of the tensors without a dealt axis that a network only adds to its outputs:
    parameters, frozen ones and buffers, of any shape.

    A change of such a tensor changes the outputs alike, whatever the inputs and all weights are.

    ``dealt``: the groups that are dealt out. ``require`` gets what the network returns, and returns
    the outputs ``[b, ...]``, or raises ConfigError; None if they are known to be one tensor.
    ``only_fixed``: frozen parameters and buffers alone. An error is also raised if an equal effect
    may be due to equal examples.
    """
    with seeded():
        network, lengths = _build_small(architecture, dealt)
        fixed = _list_fixed(architecture, network, lengths)
        names: list[str] = []
        if not only_fixed:
            names = _list_parameters(architecture, network, dealt)
        elif not fixed:
            # Most networks have none, and need no trial.
            return []
        trial = _Trial(architecture, network, require)
        return [name for name in trial.find_alike(names, fixed) if trial.is_added(name)]


@torch.no_grad()
def clear(network: nn.Module, names: Iterable[str]) -> None:
    """Set tensors of a network to zero, and freeze those that are parameters."""
    parameters = dict(network.named_parameters())
    buffers = dict(network.named_buffers())
    for name in names:
        if name in parameters:
            parameters[name].zero_()
            parameters[name].requires_grad_(False)
        else:
            # In new memory: networks share the values of frozen parameters.
            buffers[name].data = torch.zeros_like(buffers[name])


def _build_small(
    architecture: Architecture, dealt: Collection[str]
) -> tuple[nn.Module, dict[str, int]]:
    """Build a network with few units of dealt groups, or all units if that fails. Return it and its
    lengths."""
    full = dict(architecture.lengths)
    small = dict(full)
    for name in dealt:
        # Below the full length, so that shapes tell what is dealt out. Blocks cost little.
        if name not in architecture.blocks:
            small[name] = max(min(FEW, full[name] - 1), 1)
    try:
        return architecture.build(small).eval(), small
    except ConfigError:
        # For example a normalisation of groups of channels.
        return architecture.build(full).eval(), full


def _list_parameters(
    architecture: Architecture, network: nn.Module, dealt: Collection[str]
) -> list[str]:
    return [
        name
        for name, parameter in network.named_parameters()
        if parameter.numel() and not architecture.parameters[name].pattern.dealt(dealt)
    ]


def _list_fixed(
    architecture: Architecture, network: nn.Module, lengths: dict[str, int]
) -> list[str]:
    """Return the names of the buffers, with frozen parameters, that are no longer in the full
    network than with ``lengths``."""
    buffers = {name: values for name, values in network.named_buffers() if _is_tried(values)}
    if not buffers or lengths == architecture.lengths:
        return list(buffers)
    full = dict(architecture.without_values(None).named_buffers())
    return [name for name, values in buffers.items() if full[name].shape == values.shape]


def _is_tried(values: torch.Tensor) -> bool:
    return values.is_floating_point() and values.numel() > 0 and not values.is_meta


class _Trial:
    """A network whose weights and inputs are drawn anew for each pass."""

    def __init__(self, architecture: Architecture, network: nn.Module, require: Require | None):
        # These layers would write gradients that nobody asks for.
        for _, layer in linear_layers(network):
            layer.writes_gradient = False
        self._subject = architecture.name
        self._network = network
        self._require = require
        self._inputs = architecture.code.examples(SEVERAL, architecture.dtype)
        self._tensors: dict[str, torch.Tensor] = {}
        self._initial: dict[str, torch.Tensor] = {}
        self._first: dict[str, torch.Tensor] = {}
        """The gradients of the first of the `DRAWS`."""
        for name, values in [*network.named_parameters(), *network.named_buffers()]:
            if _is_tried(values):
                self._tensors[name] = values
                self._initial[name] = values.detach().clone()

    def find_alike(self, parameters: list[str], fixed: list[str]) -> list[str]:
        """Return the names of the tensors whose gradient is the same for all `DRAWS`. This leaves
        few to be tried one by one."""
        unwritten = self._list_unwritten(fixed)
        for name in unwritten:
            self._tensors[name].requires_grad_()
        names = [*parameters, *unwritten]
        first, *others = [self._gradients(names, draw) for draw in DRAWS]
        alike = []
        self._first = first
        for name, gradient in first.items():
            largest = TOLERANCE * float(gradient.abs().max())
            pairs = [(other.get(name), gradient) for other in others]
            # A comparison with NaN is False.
            if largest > 0 and all(_are_near(*pair, largest) for pair in pairs):
                alike.append(name)
        return alike

    @torch.no_grad()
    def _list_unwritten(self, fixed: list[str]) -> list[str]:
        """Return the names of the buffers that a pass does not write to: those are constants."""
        if not fixed:
            return []
        versions = {name: self._tensors[name]._version for name in fixed}
        self._forward(self._inputs)
        return [name for name in fixed if self._tensors[name]._version == versions[name]]

    def _gradients(self, names: list[str], draw: int) -> dict[str, torch.Tensor]:
        """Return the gradients by random weights of all outputs, the same for all draws."""
        inputs = self._draw(draw)
        outputs = self._call(inputs)
        if not outputs.requires_grad or not names:
            return {}
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(outputs.shape, generator=generator).to(outputs.dtype)
        tensors = [self._tensors[name] for name in names]
        with calling(f"{self._subject}: backward with random weights", cure=CURE):
            results = torch.autograd.grad(outputs, tensors, weights, allow_unused=True)
        gradients = {}
        for name, gradient in zip(names, results, strict=True):
            if gradient is not None:
                gradients[name] = gradient
        return gradients

    @torch.no_grad()
    def is_added(self, name: str) -> bool:
        """Return True if equal changes of a tensor change the outputs alike: all of them, whatever
        all values are."""
        generator = torch.Generator().manual_seed(0)
        values = self._tensors[name]
        change = torch.randn(values.shape, generator=generator).to(values.dtype) * CHANGE
        effects = []
        tolerance = 0.0
        for draw in DRAWS:
            inputs = self._draw(draw)
            before = self._forward(inputs)
            start = values.detach().clone()
            for sign in (1, -1):
                values.copy_(start + sign * change)
                effects.append(sign * (self._forward(inputs) - before).nan_to_num(0, 0, 0))
            values.copy_(start)
            largest = before.nan_to_num(0, 0, 0).abs().max()
            tolerance = max(tolerance, ROUNDING * float(largest))
        first = effects[0]
        tolerance += TOLERANCE * float(first.abs().max())
        if not all(_are_near(other, first, tolerance) for other in effects[1:]):
            return False
        return self._is_whatever_the_integers(name, first, tolerance)

    def _is_whatever_the_integers(self, name: str, effect: torch.Tensor, tolerance: float) -> bool:
        """Return True unless a row of a tensor is chosen by integer inputs, which are not drawn.
        Raises ConfigError if equal examples cannot tell."""
        chosen = [x for x in list_tensors(self._inputs) if not x.is_floating_point() and x.ndim]
        if not chosen:
            return True
        if not _are_near(effect, effect[:1].expand_as(effect), tolerance):
            return False
        # Each element has an effect, or examples choose others.
        is_whole = bool((self._first[name] != 0).all())
        if is_whole or any(bool((x != x[:1]).any()) for x in chosen):
            return True
        raise ConfigError(
            f"{self._subject}: {name} is added to the outputs, but all examples have the same "
            "integers, which may choose its rows. Give an example with different rows."
        )

    def _forward(self, inputs: tuple[Any, ...]) -> torch.Tensor:
        with seeded():
            return self._call(inputs)

    def _call(self, inputs: tuple[Any, ...]) -> torch.Tensor:
        with calling(f"{self._subject}: forward with random weights", cure=CURE):
            returned = call(self._network, inputs)
        if self._require is None:
            return returned
        return self._require(returned)

    @torch.no_grad()
    def _draw(self, seed: int) -> tuple[Any, ...]:
        """Give all tensors other values, and return other inputs."""
        generator = torch.Generator().manual_seed(seed)
        for name, values in self._tensors.items():
            varied = _vary(self._initial[name], generator)
            # A factor of 0 hides what it multiplies.
            noise = torch.randn(varied.shape, generator=generator).to(varied.dtype) / 10
            values.copy_(torch.where(varied == 0, noise, varied))
        return map_tensors(lambda x: _vary(x, generator), self._inputs)


def _vary(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return floating-point values that are divided by 1 to 2, and at most about 1, because large
    ones hide changes. Their signs stay: a logarithm needs them."""
    if not values.is_floating_point() or not values.numel():
        return values
    factors = 0.5 + torch.rand(values.shape, generator=generator) / 2
    # A mask may have -inf.
    largest = float(values.abs().nan_to_num(0, 0, 0).max())
    return values / max(largest, 1.0) * factors.to(values.dtype)


def _are_near(values: torch.Tensor | None, others: torch.Tensor, largest: float) -> bool:
    """Return True if two tensors differ by at most ``largest``."""
    if values is None or values.shape != others.shape:
        return False
    return bool((values - others).abs().max() <= largest)
