"""Tables of the networks that may be larger than one machine's memory: written down, without torch or an inspection.

Tests hold each to what `istmpi.models.inspection` finds of small networks, except for the sums over the neighbours of a
node, which an inspection does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, prod
from typing import Any

from istmpi.engine.axes import Pattern
from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.operators import AGGREGATION, Operator
from istmpi.models.table import BatchNormalisation, ParameterEntry, Table
from istmpi.names import ACTIVATIONS, NORMS


@dataclass(frozen=True)
class Facts:
    """The facts of the data that a table depends on."""

    shape: tuple[int, ...]
    outputs: int
    in_a_row: int = 0
    """The features of a sparse row, about."""
    odds: float = 0.5
    """The probability in (0, 1) that a label starts with under the binary loss, by the last layer's bias. With very
    many labels of which a row has a few, learning that all are rare would otherwise take most of the run (Lin et al.
    2017, arXiv 1708.02002, section 3.3)."""
    degree: float = 0.0
    """The neighbours of a node in a batch, in the mean."""

    @property
    def features(self) -> int:
        """The numbers of an example."""
        return prod(self.shape)


def table_of(name: str, facts: Facts, settings: Mapping[str, Any]) -> Table | None:
    """The table of a network with all its ``settings``; None where only an inspection of the network gives one."""
    return _TABLES[name](facts, settings) if name in _TABLES else None


def has_table(name: str) -> bool:
    """Return True if a network's table is written down, so that nothing of it need be tried at full size."""
    return name in _TABLES


def mlp_table(facts: Facts, settings: Mapping[str, Any]) -> Table:
    """The table of `istmpi.models.mlp.MLP`: every hidden layer is a unit group of its own."""
    norm, bias, output_norm = settings["norm"], settings["bias"], settings["output_norm"]
    _require_known(settings, "norm", NORMS)
    _require_known(settings, "activation", ACTIVATIONS)
    groups = _groups(settings)
    stages, before = (*groups, "labels"), ("features", *groups)
    lengths = {"features": facts.features, **groups, "labels": facts.outputs}
    batch = [*groups] * (norm == "batch") + ["labels"] * output_norm
    parameters, operators, leaves, sums = {}, [], {}, {}
    for stage, inputs in zip(stages, before):
        path, bound = f"{stage}.linear", lengths[inputs] ** -0.5
        parameters[f"{path}.weight"] = ParameterEntry(f"{stage} {inputs}", bound, 0.0)
        leaves[path] = (f"{path}.weight",)
        if bias:
            parameters[f"{path}.bias"] = ParameterEntry(stage, bound, 0.0)
            leaves[path] += (f"{path}.bias",)
        if stage in groups and norm != "none":
            parameters[f"{stage}.norm.weight"] = ParameterEntry(stage, 0.0, 1.0)
            parameters[f"{stage}.norm.bias"] = ParameterEntry(stage, 0.0, 0.0)
        if inputs in groups and stage not in batch:
            sums[path] = (inputs,)
        operators.append(_product(path, inputs, stage, inputs == "features"))
    return _table(
        settings,
        groups,
        parameters=parameters,
        norms={stage: BatchNormalisation(lengths[stage]) for stage in batch},
        sums=sums,
        operators=tuple(operators),
        normalised=(*groups,) * (norm != "none") + ("labels",) * output_norm,
        leaves=leaves,
        stages=stages,
        fixed={"features": facts.features, "labels": facts.outputs},
    )


def xc_table(facts: Facts, settings: Mapping[str, Any]) -> Table:
    """The table of `istmpi.models.xc.XC`."""
    norm, block, odds = settings["norm"], settings["label_block"], facts.odds
    _require_known(settings, "norm", NORMS)
    if block < 0:
        raise ConfigError(f"model.label_block = {block} must be 0 or more.")
    groups = _groups(settings)
    names = [*groups]
    first, last = names[0], names[-1]
    bounds = {name: width**-0.5 for name, width in groups.items()}
    parameters = {
        "bias": ParameterEntry(first, 0.0, 0.0),
        "bag.weight": ParameterEntry(f"{facts.features} {first}", bounds[first], 0.0),
    }
    bag = Operator(Pattern.parse(f"1 0 {first}"), "bag", "EmbeddingBag", "bag.weight", 1, 0, lookups=facts.in_a_row)
    operators, leaves = [bag], {"bag": ("bag.weight",)}
    hidden = {f"hidden.{number}": pair for number, pair in enumerate(zip(names, names[1:]))}

    def add(path: str, before: str, width: str, centre: float = 0.0) -> None:
        parameters[f"{path}.weight"] = ParameterEntry(f"{width} {before}", bounds[before], 0.0)
        parameters[f"{path}.bias"] = ParameterEntry(width, bounds[before], centre)
        leaves[path] = (f"{path}.weight", f"{path}.bias")

    for path, (before, width) in hidden.items():
        add(path, before, width)
        operators.append(_product(path, before, width))
    if norm != "none":
        for number, name in enumerate(names):
            parameters[f"norms.{number}.weight"] = ParameterEntry(name, 0.0, 1.0)
            parameters[f"norms.{number}.bias"] = ParameterEntry(name, 0.0, 0.0)
    add("output", last, str(facts.outputs), log(odds / (1 - odds)))
    output = _product("output", last, str(facts.outputs), kind="LabelBlocks")
    if 0 < block < facts.outputs:  # logits are computed anew in the backward pass
        output = replace(output, gradients=3, block=block)
    sums = {path: (before,) for path, (before, _) in hidden.items() if norm != "batch"}
    return _table(
        settings,
        groups,
        undealt={"label_block": "no parameter's shape depends on it"},
        parameters=parameters,
        norms={f"norms.{n}": BatchNormalisation(groups[name]) for n, name in enumerate(names) if norm == "batch"},
        sums=sums | {"output": (last,)},
        operators=(*operators, output),
        normalised=tuple(names) if norm != "none" else (),
        leaves=leaves,
        head="output",
    )


def gcn_table(facts: Facts, settings: Mapping[str, Any]) -> Table:
    """The table of `istmpi.models.gcn.GCN`, in which an example is a node."""
    return _graph_table(facts, settings, ("products",))


def sage_table(facts: Facts, settings: Mapping[str, Any]) -> Table:
    """The table of `istmpi.models.sage.SAGE`, in which an example is a node."""
    return _graph_table(facts, settings, ("own", "heard"))


_TABLES: dict[str, Callable[[Facts, Mapping[str, Any]], Table]] = {
    "mlp": mlp_table,
    "xc": xc_table,
    "gcn": gcn_table,
    "sage": sage_table,
}


def _graph_table(facts: Facts, settings: Mapping[str, Any], lists: Sequence[str]) -> Table:
    """The table of layers with a product in each of these ``lists``."""
    _require_known(settings, "norm", ("layer", "none"))
    groups = _groups(settings)
    widths = [str(facts.features), *groups, str(facts.outputs)]
    lengths = [facts.features, *groups.values()]
    layers = list(enumerate(zip(widths, widths[1:])))
    parameters, operators, leaves, sums = {}, [], {}, {}
    for part in lists:
        for number, (before, width) in layers:
            path, bound = f"{part}.{number}", lengths[number] ** -0.5
            parameters[f"{path}.weight"] = ParameterEntry(f"{width} {before}", bound, 0.0)
            leaves[path] = (f"{path}.weight",)
            if part == "own":
                parameters[f"{path}.bias"] = ParameterEntry(width, bound, 0.0)
                leaves[path] += (f"{path}.bias",)
            if number:
                sums[path] = (before,)
    for number, (before, width) in layers:
        operators += [_product(f"{part}.{number}", before, width, of_input=not number) for part in lists]
        if "products" in lists:
            parameters[f"biases.{number}.bias"] = ParameterEntry(width, 0.0, 0.0)
        summed = before if not number and settings["aggregate_first"] else width
        operators.append(Operator(Pattern.parse(f"1 0 {summed}"), "", AGGREGATION, gradients=1, lookups=facts.degree))
    return _table(
        settings,
        groups,
        parameters=parameters,
        sums=sums,
        operators=tuple(operators),
        normalised=tuple(groups) if settings["norm"] == "layer" else (),
        leaves=leaves,
    )


def _require_known(settings: Mapping[str, Any], name: str, names: Collection[str]) -> None:
    if settings[name] not in names:
        raise ConfigError(f"model.{name} = {settings[name]!r} is not known{did_you_mean(settings[name], names)}")


def _groups(settings: Mapping[str, Any]) -> dict[str, int]:
    return {f"hidden{number}": width for number, width in enumerate(settings["hidden"], 1)}


def _product(path: str, before: str, width: str, of_input: bool = False, kind: str = "Linear") -> Operator:
    shape = Pattern.parse(f"1 {before} {width}")
    return Operator(shape, path, kind, f"{path}.weight", 0, 1 if of_input else 2, of_input)


def _table(settings: Mapping[str, Any], groups: Mapping[str, int], **facts: Any) -> Table:
    return Table(settings=settings, groups=groups, stochastic=settings["dropout"] > 0, preferred=tuple(groups), **facts)
