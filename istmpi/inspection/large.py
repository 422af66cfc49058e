"""Finds the table of a network that is too large for a rank (``LARGE = True``): inspects few units,
enlarges the table.

An effect of a width on more than shapes, as in ``GroupNorm(min(8, c), c)``, is not noticed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from istmpi.engine.axes import Pattern
from istmpi.inspection.examine import PRODUCTS, inspect
from istmpi.network.leaves import without_values
from istmpi.network.table import Table
from istmpi.network.user import UserNetwork

KEPT = 64
"""The largest number of units of a dealt width in the network that is inspected."""
LEAST = 8
"""The smallest divisor of a width that is chosen as its number of units."""


def inspect_any(network: UserNetwork) -> Table:
    """Return the table of a network, which need not fit into memory if its class says so."""
    if getattr(network.kind, "LARGE", False):
        return _with_few_units(network)
    return inspect(network)


def _with_few_units(network: UserNetwork) -> Table:
    table = _small_table(network)
    if table.computed:
        raise network.refused(
            f"LARGE = True, but its constructor computes the values of {table.computed[0]}, "
            "so each rank would need the whole network. Draw them at random, or leave LARGE out."
        )
    groups = {name: network.widths[name].length for name in table.groups}
    with torch.device("meta"), without_values():
        full = network.build()
    parameters = dict(full.named_parameters())
    bounds = _bounds_by_layer(full)
    entries = {}
    for name, entry in table.parameters.items():
        shape = Pattern.parse(entry.axes).shape(groups)
        full_shape = tuple(parameters[name].shape) if name in parameters else ()
        # An effect of a width that few units do not show must not go unnoticed.
        if full_shape != shape:
            raise network.refused(
                f"LARGE = True, but {name} has the shape {full_shape}, but {shape} is inferred "
                f"from few units. Leave LARGE out, or use widths with divisors up to {KEPT}."
            )
        bound = 0.0
        if entry.bound:
            bound = bounds.get(name) or _bound_of_full_axis(network, table, groups, name)
        entries[name] = replace(entry, bound=bound)
    norms = {}
    for name, norm in table.norms.items():
        # To a type checker a module's attributes are tensors.
        layer: Any = full.get_submodule(name)
        norms[name] = replace(norm, units=layer.num_features)
    return replace(table, settings=network.settings, groups=groups, parameters=entries, norms=norms)


def _small_table(network: UserNetwork) -> Table:
    """Return the table of the network with few units of the widths that can be dealt out."""
    lengths = {name: _few(width.length) for name, width in network.widths.items()}
    whole: dict[str, int] = {}
    while True:
        # Each turn inspects anew, because a width that stays whole may change what is found of
        # others.
        table = inspect(replace(network, settings=network.settings_at({**lengths, **whole})))
        # Widths that are not dealt out or count blocks stay whole: other shapes and names depend on
        # them.
        fixed = dict(whole)
        for name, width in network.widths.items():
            if name in table.undealt or name in table.blocks:
                fixed[name] = width.length
        if fixed == whole:
            return table
        whole = fixed


def _bounds_by_layer(full: torch.nn.Module) -> dict[str, float]:
    """Return the bounds of initial values that follow from a layer's shape in the full network."""
    bounds = {}
    for path, layer in full.named_modules():
        if isinstance(layer, (*PRODUCTS, torch.nn.Embedding, torch.nn.EmbeddingBag)):
            bound = max(layer.weight[0].numel(), 1) ** -0.5
            for key in ("weight", "bias"):
                bounds[f"{path}.{key}".lstrip(".")] = bound
    return bounds


def _bound_of_full_axis(
    network: UserNetwork, table: Table, groups: Mapping[str, int], name: str
) -> float:
    """Return the bound of a parameter whose inputs are an axis of its weight, longer in full."""
    entry = table.parameters[name]
    weight = table.parameters.get(name.replace("bias", "weight"), entry)
    lengths = set()
    for axis in Pattern.parse(weight.axes).axes:
        if abs(axis.length(table.groups) ** -0.5 - entry.bound) < 1e-12:
            lengths.add(axis.length(groups))
    if len(lengths) > 1:
        raise network.refused(
            f"LARGE = True, but the initial values of {name} depend on one of several widths that "
            f"few units cannot separate. Give these widths other divisors up to {KEPT}."
        )
    return lengths.pop() ** -0.5 if lengths else entry.bound


def _few(length: int) -> int:
    divisors = [units for units in range(LEAST, KEPT + 1) if length % units == 0]
    return min(length, max(divisors, default=KEPT))
