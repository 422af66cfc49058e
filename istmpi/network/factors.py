"""Makes a network multiply its sums over units by factors: numbers, or vectors along an axis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from istmpi.engine.axes import Axis
from istmpi.network.joined import along, is_constant, positions, segment_factors
from istmpi.network.scaling import multiply_input, multiply_sums
from istmpi.network.table import Joined

Groups = tuple[str, ...]


@dataclass(frozen=True)
class Places:
    """The places of a network's sums, each with the groups over whose units it adds."""

    layers: Mapping[str, Groups]
    """Layers whose inputs are multiplied."""
    ends: Mapping[str, Groups]
    """Layers at the ends of blocks, whose outputs are multiplied."""
    calls: Mapping[Any, Groups]
    """Calls, by the keys of `istmpi.network.scaling.Scaled`."""
    weights: Mapping[str, Groups]
    """Parameters that are multiplied themselves."""
    joined: Mapping[str, Joined]
    """The axes of weights that are sums of segments."""
    axes: Mapping[Any, Axis]
    """The axes that are summed over, as far as they are needed, by layer, call or parameter."""


def multiply(
    network: nn.Module,
    places: Places,
    lengths: Mapping[str, int],
    factor: Callable[[Groups], Any],
) -> None:
    """Make a network multiply its sums over units, and the outputs of blocks' ends, by factors.

    ``factor(groups)``: the factor of a product over units of some groups. A float is used in all
    passes. For a tensor, each pass calls ``factor`` again.
    """
    current = _CurrentFactors(places.axes, lengths, factor)
    layers = current.functions(places.layers)
    ends = current.functions(places.ends)
    calls = current.functions(places.calls)
    weights = current.functions(places.weights)
    for name, module in network.named_modules():
        if name in layers:
            # Found here, for torch.compile would look at the layer in each pass.
            axis = -1 - len(getattr(module, "kernel_size", ()))
            # The input, and not the result, because a bias is not multiplied.
            hook = partial(multiply_input, layers[name], axis)
            module.register_forward_pre_hook(hook, with_kwargs=True)
        if name in ends:
            module.register_forward_hook(lambda _, __, output, end=ends[name]: output * end())
    if calls or weights:

        def factors() -> tuple[dict[Any, Any], dict[str, Any]]:
            weight_factors = {}
            for name, function in weights.items():
                weight_factors[name] = function()
                joined = places.joined.get(name)
                if joined:
                    weight_factors[name] = along(weight_factors[name], joined.axis, joined.axes)
            return {key: function() for key, function in calls.items()}, weight_factors

        multiply_sums(network, factors)


@dataclass(frozen=True)
class _CurrentFactors:
    """The factors of a network's sums at the time of each pass."""

    axes: Mapping[Any, Axis]
    lengths: Mapping[str, int]
    factor: Callable[[Groups], Any]

    def functions(self, entries: Mapping[Any, Groups]) -> dict[Any, Callable[[], Any]]:
        """Return a function for each place that needs a factor other than 1."""
        functions: dict[Any, Callable[[], Any]] = {}
        for key, groups in entries.items():
            pairs = self._pairs(key, groups)
            now = positions(pairs)
            if not is_constant(pairs):
                functions[key] = partial(self._find, key, groups)
            elif not isinstance(now, float) or now != 1:
                functions[key] = _constantly(now)
        return functions

    def _find(self, key: Any, groups: Groups) -> Any:
        return positions(self._pairs(key, groups))

    def _pairs(self, key: Any, groups: Groups) -> list[tuple[Any, int]]:
        axis = self.axes.get(key)
        if axis is None:
            return [(self.factor(groups), 1)]
        return segment_factors(axis, groups, self.lengths, self.factor)


def _constantly(constant: Any) -> Callable[[], Any]:
    return lambda: constant  # torch.compile follows a constant, not a look-up
