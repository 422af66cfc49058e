"""The tables of `istmpi.models.gcn.GCN` and `istmpi.models.sage.SAGE`, without torch and without building them.

They may be larger than memory. A test holds them to what `istmpi.models.examination` finds of small ones, but for the
sums over neighbours, which it does not see. What it says of an example is of a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from istmpi.engine.axes import Pattern
from istmpi.models.operators import Operator
from istmpi.models.table import ParameterEntry, Table

DEFAULTS = {"hidden": (256, 256), "norm": "layer", "dropout": 0.0, "aggregate_first": False}
"""Settings of the constructors."""


def graph_table(
    name: str, features: int, outputs: int, settings: Mapping[str, Any], degree: float, source: str = ""
) -> Table:
    """Of ``gcn`` or ``sage``, for so many features and classes; all ``settings``; a hash of the source.

    ``degree``: from so many others a node of a batch hears, in the mean.
    """
    hidden = tuple(settings["hidden"])
    names = [f"hidden{number}" for number, _ in enumerate(hidden, 1)]
    widths, lengths = [str(features), *names, str(outputs)], [features, *hidden, outputs]
    lists = ("products",) if name == "gcn" else ("own", "heard")
    parameters: dict[str, ParameterEntry] = {}
    operators, leaves, sums = [], {}, {}
    for part in lists:
        for number, (before, width) in enumerate(zip(widths, widths[1:])):
            path = f"{part}.{number}"
            bound = lengths[number] ** -0.5
            parameters[f"{path}.weight"] = ParameterEntry(f"{width} {before}", bound, 0.0)
            leaves[path] = (f"{path}.weight",)
            if part == "own":
                parameters[f"{path}.bias"] = ParameterEntry(width, bound, 0.0)
                leaves[path] += (f"{path}.bias",)
            if number:
                sums[path] = (before,)
    for number, (before, width) in enumerate(zip(widths, widths[1:])):
        first = number == 0
        for part in lists:
            path, shape = f"{part}.{number}", Pattern.parse(f"1 {before} {width}")
            gradients = 1 if first else 2
            operators.append(Operator(shape, path, "Linear", f"{path}.weight", 0, gradients=gradients, of_input=first))
        if name == "gcn":
            parameters[f"biases.{number}.bias"] = ParameterEntry(width, 0.0, 0.0)
        summed = before if first and settings["aggregate_first"] else width
        shape = Pattern.parse(f"1 0 {summed}")
        operators.append(Operator(shape, "", "Aggregation", gradients=1, lookups=degree))
    return Table(
        source=source,
        settings=settings,
        groups=dict(zip(names, hidden)),
        undealt={},
        parameters=parameters,
        norms={},
        sums=sums,
        unscaled={},
        stochastic=settings["dropout"] > 0,
        operators=tuple(operators),
        normalised=tuple(names) if settings["norm"] == "layer" else (),
        residual={},
        inexact=(),
        preferred=tuple(names),
        leaves=leaves,
    )
