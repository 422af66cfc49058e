"""The tables of `istmpi.models.gcn.GCN` and `istmpi.models.sage.SAGE`, without torch and without building them.

They may be larger than memory. A test holds them to what `istmpi.models.examination` finds of small ones, but for the
sums over neighbours, which it does not see. An example is what a batch counts: the whole graph, a cluster, a node to
learn from with what is sampled around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from istmpi.engine.axes import Pattern
from istmpi.models.operators import Operator
from istmpi.models.table import ParameterEntry, Table

DEFAULTS = {"hidden": (256, 256), "norm": "layer", "dropout": 0.0, "aggregate_first": False}
"""Settings of the constructors."""


@dataclass(frozen=True)
class ExampleSize:
    """How many nodes an example has, and edges between them, an edge of an undirected graph counted twice: a mean."""

    nodes: float
    edges: float


def graph_table(
    name: str, features: int, outputs: int, settings: Mapping[str, Any], size: ExampleSize, source: str = ""
) -> Table:
    """Of ``gcn`` or ``sage``, for so many features and classes; all ``settings``; a hash of the source."""
    hidden = tuple(settings["hidden"])
    names = [f"hidden{number}" for number, _ in enumerate(hidden, 1)]
    widths, lengths = [str(features), *names, str(outputs)], [features, *hidden, outputs]
    lists = ("products",) if name == "gcn" else ("own", "heard")
    nodes = max(round(size.nodes), 1)
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
            path, shape = f"{part}.{number}", Pattern.parse(f"{nodes} {before} {width}")
            gradients = 1 if first else 2
            operators.append(
                Operator(shape, path, "Linear", f"{path}.weight", 0, gradients=gradients, of_input=first)
            )
        if name == "gcn":
            parameters[f"biases.{number}.bias"] = ParameterEntry(width, 0.0, 0.0)
        summed = before if first and settings["aggregate_first"] else width
        shape = Pattern.parse(f"{nodes} 0 {summed}")
        operators.append(Operator(shape, "", "Aggregation", gradients=1, lookups=size.edges / nodes))
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
        normalised=tuple(f"{nodes} {name}" for name in names) if settings["norm"] == "layer" else (),
        residual={},
        inexact=(),
        preferred=tuple(names),
        leaves=leaves,
    )
