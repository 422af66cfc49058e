"""Tables written by hand, of networks that may be larger than memory. They need no torch and no
inspection.

Tests compare the tables of small networks with those of `istmpi.inspection.examine`, except sums
over neighbours.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import log, prod
from typing import Any

from istmpi.engine.axes import Pattern
from istmpi.errors import ConfigError, did_you_mean
from istmpi.names import ACTIVATIONS, NORMS
from istmpi.network.table import AGGREGATION, BatchNormalisation, Operator, ParameterEntry, Table


@dataclass(frozen=True)
class Facts:
    shape: tuple[int, ...]
    outputs: int
    in_a_row: int = 0
    """The approximate number of features of a sparse row."""
    odds: float = 0.5
    """The initial probability in (0, 1) of a label under the binary loss, set by the last layer's
    bias, because most labels are rare (Lin et al. 2017, arXiv 1708.02002, section 3.3)."""
    degree: float = 0.0
    """The mean number of neighbours of a node in a batch."""

    @property
    def features(self) -> int:
        return prod(self.shape)


def find_table(name: str, facts: Facts, settings: Mapping[str, Any]) -> Table | None:
    """Return a network's table; None if an inspection must find it.

    Raises ConfigError for a wrong setting.
    """
    if name not in _TABLES:
        return None
    return require_table(name, facts, settings)


def require_table(name: str, facts: Facts, settings: Mapping[str, Any]) -> Table:
    """Return the table of a network whose table is written by hand.

    Raises ConfigError for a wrong setting.
    """
    return _TABLES[name](facts, settings)


def mlp_table(facts: Facts, settings: Mapping[str, Any]) -> Table:
    norm = settings["norm"]
    _require_known(settings, "norm", NORMS)
    _require_known(settings, "activation", ACTIVATIONS)
    layers = _Layers(settings)
    groups = layers.groups
    fixed = {"features": facts.features, "labels": facts.outputs}
    lengths = fixed | groups
    stages = (*groups, "labels")
    normalised: list[str] = []
    batch_normalised: list[str] = []
    if norm != "none":
        normalised += groups
    if norm == "batch":
        batch_normalised += groups
    if settings["output_norm"]:
        normalised.append("labels")
        batch_normalised.append("labels")
    for stage, inputs in zip(stages, ("features", *groups)):
        path = f"{stage}.linear"
        # Bounds are those of nn.Linear: one over the root of the number of inputs.
        layers.add(path, inputs, stage, lengths[inputs] ** -0.5, bias=settings["bias"])
        if stage in groups and norm != "none":
            layers.add_norm(f"{stage}.norm", stage)
        # A sum before a batch normalisation needs no factor.
        if inputs in groups and stage not in batch_normalised:
            layers.sums[path] = (inputs,)
        layers.operators.append(_product(path, inputs, stage, of_input=inputs == "features"))
    return layers.table(
        norms={stage: BatchNormalisation(lengths[stage]) for stage in batch_normalised},
        normalised=tuple(normalised),
        stages=stages,
        fixed=fixed,
    )


def xc_table(facts: Facts, settings: Mapping[str, Any]) -> Table:
    norm = settings["norm"]
    block = settings["label_block"]
    _require_known(settings, "norm", NORMS)
    if block < 0:
        raise ConfigError(f"model.label_block = {block} must be at least 0.")
    layers = _Layers(settings)
    names = [*layers.groups]
    bounds = {name: width**-0.5 for name, width in layers.groups.items()}
    _add_bag(layers, facts, names[0], bounds[names[0]])
    for number, (before, width) in enumerate(pairwise(names)):
        path = f"hidden.{number}"
        layers.add(path, before, width, bounds[before])
        layers.operators.append(_product(path, before, width))
        # A sum before a batch normalisation needs no factor.
        if norm != "batch":
            layers.sums[path] = (before,)
    normalised = []
    norms = {}
    for number, (name, units) in enumerate(layers.groups.items()):
        if norm != "none":
            layers.add_norm(f"norms.{number}", name)
            normalised.append(name)
        if norm == "batch":
            norms[f"norms.{number}"] = BatchNormalisation(units)
    _add_labels(layers, facts, names[-1], bounds[names[-1]], block)
    return layers.table(
        undealt={"label_block": "no parameter's shape depends on it"},
        norms=norms,
        normalised=tuple(normalised),
        head="output",
    )


def _add_bag(layers: "_Layers", facts: Facts, width: str, bound: float) -> None:
    """Add the sum of the vectors of a row's features."""
    layers.parameters["bias"] = ParameterEntry(width, 0.0, 0.0)
    layers.add("bag", width, str(facts.features), bound, bias=False)
    # A sum of rows is no product: `lookups` counts its additions.
    operator = Operator(
        shape=Pattern.parse(f"1 0 {width}"),
        module="bag",
        kind="EmbeddingBag",
        parameter="bag.weight",
        axis=1,
        gradients=0,
        lookups=facts.in_a_row,
    )
    layers.operators.append(operator)


def _add_labels(layers: "_Layers", facts: Facts, before: str, bound: float, block: int) -> None:
    """Add the layer over labels, of which ``block`` have their logits in memory at a time."""
    outputs = str(facts.outputs)
    # The bias begins at the logit of these odds.
    layers.add("output", before, outputs, bound, centre=log(facts.odds / (1 - facts.odds)))
    layers.sums["output"] = (before,)
    operator = _product("output", before, outputs, kind="LabelBlocks")
    if 0 < block < facts.outputs:
        # The backward pass computes the logits again.
        operator = replace(operator, gradients=3, block=block)
    layers.operators.append(operator)


def _graph_table(facts: Facts, settings: Mapping[str, Any], lists: Sequence[str]) -> Table:
    """Return the table of a graph network; each module list of ``lists`` holds a matrix product for
    each layer."""
    _require_known(settings, "norm", ("layer", "none"))
    layers = _Layers(settings)
    widths = [str(facts.features), *layers.groups, str(facts.outputs)]
    lengths = [facts.features, *layers.groups.values()]
    pairs = list(enumerate(pairwise(widths)))
    for part in lists:
        for number, (before, width) in pairs:
            path = f"{part}.{number}"
            layers.add(path, before, width, lengths[number] ** -0.5, bias=part == "own")
            # The first layer sums over features, which are never dealt out.
            if number:
                layers.sums[path] = (before,)
    for number, (before, width) in pairs:
        for part in lists:
            layers.operators.append(
                _product(f"{part}.{number}", before, width, of_input=number == 0)
            )
        if "products" in lists:
            # GCN adds its biases after the sum over neighbours, so no leaf has them.
            layers.parameters[f"biases.{number}.bias"] = ParameterEntry(width, 0.0, 0.0)
        # The sum over neighbours is as wide as the numbers it follows.
        summed = width
        if number == 0 and settings["aggregate_first"]:
            summed = before
        aggregation = Operator(
            shape=Pattern.parse(f"1 0 {summed}"),
            module="",
            kind=AGGREGATION,
            gradients=1,
            lookups=facts.degree,
        )
        layers.operators.append(aggregation)
    normalised: tuple[str, ...] = ()
    if settings["norm"] == "layer":
        normalised = tuple(layers.groups)
    return layers.table(normalised=normalised)


_TABLES: dict[str, Callable[[Facts, Mapping[str, Any]], Table]] = {
    "mlp": mlp_table,
    "xc": xc_table,
    "gcn": partial(_graph_table, lists=("products",)),
    "sage": partial(_graph_table, lists=("own", "heard")),
}


class _Layers:
    """The entries of a table, added layer by layer. Hidden layer 1 has the group ``hidden1``."""

    def __init__(self, settings: Mapping[str, Any]):
        self.settings = settings
        self.groups: dict[str, int] = {
            f"hidden{number}": width for number, width in enumerate(settings["hidden"], 1)
        }
        self.parameters: dict[str, ParameterEntry] = {}
        self.leaves: dict[str, tuple[str, ...]] = {}
        self.sums: dict[str, tuple[str, ...]] = {}
        self.operators: list[Operator] = []

    def add(
        self,
        path: str,
        before: str,
        width: str,
        bound: float,
        bias: bool = True,
        centre: float = 0.0,
    ) -> None:
        """Add a leaf: its weight ``[width, before]``, uniform in ± ``bound``, and its bias."""
        self.parameters[f"{path}.weight"] = ParameterEntry(f"{width} {before}", bound, 0.0)
        self.leaves[path] = (f"{path}.weight",)
        if bias:
            self.parameters[f"{path}.bias"] = ParameterEntry(width, bound, centre)
            self.leaves[path] += (f"{path}.bias",)

    def add_norm(self, path: str, name: str) -> None:
        """Add the scale, 1 at first, and the shift, 0 at first, of a group's normalisation."""
        self.parameters[f"{path}.weight"] = ParameterEntry(name, 0.0, 1.0)
        self.parameters[f"{path}.bias"] = ParameterEntry(name, 0.0, 0.0)

    def table(self, **facts: Any) -> Table:
        return Table(
            settings=self.settings,
            groups=self.groups,
            parameters=self.parameters,
            sums=self.sums,
            stochastic=self.settings["dropout"] > 0,
            operators=tuple(self.operators),
            preferred=tuple(self.groups),
            leaves=self.leaves,
            **facts,
        )


def _require_known(settings: Mapping[str, Any], name: str, names: Collection[str]) -> None:
    if settings[name] not in names:
        raise ConfigError(
            f"model.{name} = {settings[name]!r} is not known{did_you_mean(settings[name], names)}"
        )


def _product(
    path: str, before: str, width: str, of_input: bool = False, kind: str = "Linear"
) -> Operator:
    """Return the operator of a layer from the units ``before`` to those of ``width``."""
    # No gradient of the network's input is needed.
    gradients = 1 if of_input else 2
    return Operator(
        shape=Pattern.parse(f"1 {before} {width}"),
        module=path,
        kind=kind,
        parameter=f"{path}.weight",
        axis=0,
        gradients=gradients,
        of_input=of_input,
    )
