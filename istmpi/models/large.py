"""Finds the table of a network that is too large for a rank (``LARGE = True``): inspects few units,
enlarges the table.

An effect of a width on more than shapes, as in ``GroupNorm(min(8, c), c)``, is not noticed.
"""

from dataclasses import replace

import torch

from istmpi.engine.axes import Pattern
from istmpi.models.inspection import PRODUCTS, inspect
from istmpi.models.leaves import without_values
from istmpi.models.table import Table
from istmpi.models.user import UserNetwork

KEPT = 64
"""The largest number of units of a dealt width in the network that is inspected."""
LEAST = 8
"""The smallest divisor of a width that is chosen as its number of units."""


def inspected(network: UserNetwork) -> Table:
    return _with_few_units(network) if getattr(network.kind, "LARGE", False) else inspect(network)


def _with_few_units(network: UserNetwork) -> Table:
    lengths, kept = {name: _few(width.length) for name, width in network.widths.items()}, {}
    while True:
        table = inspect(replace(network, settings=network.settings_at(lengths | kept)))
        # Widths that are not dealt out or count blocks stay whole: other shapes and names depend on
        # them.
        fixed = {
            name: width.length
            for name, width in network.widths.items()
            if name in {**table.undealt, **table.blocks}
        }
        if kept == (kept := kept | fixed):
            break
    if table.computed:
        raise network.refused(
            f"LARGE = True, but its constructor computes the values of {table.computed[0]}, "
            "so each rank would need the whole network. Draw them at random, or leave LARGE out."
        )
    groups = {name: network.widths[name].length for name in table.groups}
    with torch.device("meta"), without_values():
        full = network.build()
    parameters = dict(full.named_parameters())
    layers, bounds = dict(full.named_modules()), {}
    for path, layer in layers.items():
        if isinstance(layer, (*PRODUCTS, torch.nn.Embedding, torch.nn.EmbeddingBag)):
            bound = max(layer.weight[0].numel(), 1) ** -0.5
            bounds |= {f"{path}.{key}".lstrip("."): bound for key in ("weight", "bias")}
    entries = {}
    for name, entry in table.parameters.items():
        shape = Pattern.parse(entry.axes).shape(groups)
        if (there := tuple(parameters[name].shape) if name in parameters else ()) != shape:
            raise network.refused(
                f"LARGE = True, but {name} has the shape {there}, but {shape} is inferred "
                f"from few units. Leave LARGE out, or use widths with divisors up to {KEPT}."
            )
        weight = table.parameters.get(name.replace("bias", "weight"), entry)
        bound, lengths = bounds.get(name, entry.bound) if entry.bound else 0.0, set()
        if (
            bound and name not in bounds
        ):  # it may come from an axis of the weight, which is longer in full
            axes = Pattern.parse(weight.axes).axes
            lengths = {
                axis.length(groups)
                for axis in axes
                if abs(axis.length(table.groups) ** -0.5 - bound) < 1e-12
            }
        if len(lengths) > 1:
            raise network.refused(
                f"LARGE = True, but the initial values of {name} depend on one of several "
                f"widths that few units cannot separate. Give these widths other divisors up to {KEPT}."
            )
        entries[name] = replace(entry, bound=lengths.pop() ** -0.5 if lengths else bound)
    norms = {
        name: replace(norm, units=layers[name].num_features) for name, norm in table.norms.items()
    }
    return replace(table, settings=network.settings, groups=groups, parameters=entries, norms=norms)


def _few(length: int) -> int:
    divisors = [units for units in range(LEAST, KEPT + 1) if length % units == 0]
    return min(length, max(divisors, default=KEPT))
