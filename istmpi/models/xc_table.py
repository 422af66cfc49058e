"""The table of `istmpi.models.xc.XC`, without torch and without building it: it may be larger than memory.

A test holds it to what `istmpi.models.examination` finds of small ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

from istmpi.engine.axes import Pattern
from istmpi.models.operators import EPSILON, Operator
from istmpi.models.table import NormEntry, ParameterEntry, Table

DEFAULTS = {"hidden": (256,), "norm": "none", "dropout": 0.0, "label_block": 2**16}
"""Settings of the constructor."""


def xc_table(
    features: int,
    labels: int,
    settings: Mapping[str, Any],
    in_a_row: int = 0,
    source: str = "",
    odds: float = 0.5,
) -> Table:
    """For so many features, of which a row has about ``in_a_row``; all ``settings``; a hash of the source.

    ``odds``: the probability in (0, 1) that a label starts with under the binary loss, by the last layer's bias. With
    very many labels of which a row has a few, learning that all are rare would otherwise take most of the run, a
    narrow subnet above all (the same start as in Lin et al. 2017, arXiv 1708.02002, section 3.3).
    """
    hidden, norm, block = tuple(settings["hidden"]), settings["norm"], settings["label_block"]
    names = [f"hidden{number}" for number, _ in enumerate(hidden, 1)]
    bounds = {name: width**-0.5 for name, width in zip(names, hidden)}
    parameters = {
        "bias": ParameterEntry(names[0], 0.0, 0.0),
        "bag.weight": ParameterEntry(f"{features} {names[0]}", bounds[names[0]], 0.0),
    }
    look_up = Operator(Pattern.parse(f"1 0 {names[0]}"), "bag", "EmbeddingBag", "bag.weight", 1, 0, lookups=in_a_row)
    operators, leaves, sums = [look_up], {"bag": ("bag.weight",)}, {}
    products = [(f"hidden.{n}", "Linear", before, width) for n, (before, width) in enumerate(zip(names, names[1:]))]
    for path, kind, before, width in [*products, ("output", "LabelBlocks", names[-1], str(labels))]:
        parameters[f"{path}.weight"] = ParameterEntry(f"{width} {before}", bounds[before], 0.0)
        centre = log(odds / (1 - odds)) if path == "output" else 0.0
        parameters[f"{path}.bias"] = ParameterEntry(width, bounds[before], centre)
        leaves[path] = (f"{path}.weight", f"{path}.bias")
        if path == "output" or norm != "batch":
            sums[path] = (before,)
        operators.append(Operator(Pattern.parse(f"1 {before} {width}"), path, kind, f"{path}.weight", 0))
    if 0 < block < labels:  # logits are computed anew in the backward pass
        last = operators.pop()
        operators.append(Operator(last.shape, last.module, last.kind, last.parameter, 0, 3, block=block))
    norms = {}
    if norm != "none":
        for number, name in enumerate(names):
            parameters[f"norms.{number}.weight"] = ParameterEntry(name, 0.0, 1.0)
            parameters[f"norms.{number}.bias"] = ParameterEntry(name, 0.0, 0.0)
            if norm == "batch":
                norms[f"norms.{number}"] = NormEntry(hidden[number], EPSILON)
    return Table(
        source=source,
        settings=settings,
        groups=dict(zip(names, hidden)),
        undealt={"label_block": "no parameter's shape depends on it"},
        parameters=_in_order(parameters, len(hidden)),
        norms=norms,
        sums=sums,
        unscaled={},
        stochastic=settings["dropout"] > 0,
        operators=tuple(operators),
        normalised=tuple(names) if norm != "none" else (),
        residual={},
        inexact=(),
        preferred=tuple(names),
        leaves=leaves,
        head="output",
    )


def _in_order(parameters: Mapping[str, ParameterEntry], layers: int) -> dict[str, ParameterEntry]:
    hidden = [f"hidden.{number}" for number in range(layers - 1)]
    modules = ["bag", *hidden, *(f"norms.{number}" for number in range(layers)), "output"]
    names = ["bias", *(f"{module}.{key}" for module in modules for key in ("weight", "bias"))]
    return {name: parameters[name] for name in names if name in parameters}
