"""The network of a run, without reading data where the command line says what they would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from istmpi.cli import quantities
from istmpi.config import Run
from istmpi.cost import Cost
from istmpi.engine.axes import narrowed
from istmpi.errors import ConfigError, did_you_mean
from istmpi.models import architecture
from istmpi.models.architecture import Architecture
from istmpi.names import DECLARED, is_module

if TYPE_CHECKING:
    from istmpi.comm import Communicator
    from istmpi.data.dataset import Dataset


FEATURES_IN_A_ROW = 75
"""Features of a sparse row where no data tell: those of Amazon-670k."""
NODES, DEGREE = 100_000, 20
"""Nodes of a batch of a graph, and neighbours of each, where no data tell."""


@dataclass(frozen=True)
class Sizes:
    """Sizes that neither widths nor data tell: features of a sparse row; nodes of a batch, and neighbours of each."""

    in_a_row: int = FEATURES_IN_A_ROW
    nodes: int = NODES
    degree: float = DEGREE


@dataclass(frozen=True)
class Described:
    """A run with its network, and the number of training examples where data were read."""

    run: Run
    architecture: Architecture
    examples: int | None
    smaller: Mapping[int, Architecture] = field(default_factory=dict)
    """The networks for images of other sides that the run trains on first (`train.resolution`)."""


def described(
    run: Run, layers: str | None, shape: tuple[int, int] | None = None, sizes: Sizes | None = None
) -> Described:
    """The network of a run: of ``layers`` (1000-4000-200), of a shape (features, labels), or else of its data.

    The code of a network of one's own is run, for the shape of its data.
    """
    run = run.with_implied()
    if run.model.name in DECLARED and layers is not None:
        return _declared(run, layers, sizes or Sizes())
    if is_module(run.model.name):
        from istmpi.data.images.split import resized
        from istmpi.training.network import planned_network
        from istmpi.training.resolution import require_resizable, sides_of

        data = _data_of_own(run, layers)
        smaller = {side: planned_network(run, resized(data, side)) for _, side in sides_of(run, data) if side}
        network = planned_network(run, data)
        require_resizable(run, network)
        return Described(run, network, len(data.train), smaller)
    task, examples = "classification", None
    if layers is not None:
        features, *hidden, labels = quantities.widths("--layers", layers)
        run, shape = run.override({"model.hidden": hidden}), (features, labels)
    if shape is None:
        from istmpi.data.sources import open_for_training

        data = open_for_training(run.data, 0, run.train.seed)
        shape, task, examples = (data.features, data.outputs), data.task, len(data.train)
    return Described(run, architecture(*shape, task, run.model), examples)


def _declared(run: Run, layers: str, sizes: Sizes) -> Described:
    """A network whose table needs neither its code nor data."""
    from istmpi.models import graph_table, xc_table
    from istmpi.models.inferred import InferredNetwork

    features, *hidden, labels = quantities.widths("--layers", layers)
    run = run.override({"model.hidden": hidden})
    of_rows = run.model.name == "xc"
    defaults = xc_table.DEFAULTS if of_rows else graph_table.DEFAULTS
    settings = {**defaults, **run.model.arguments}
    if unknown := [name for name in settings if name not in defaults]:
        raise ConfigError(f"unknown setting model.{unknown[0]}{did_you_mean(unknown[0], defaults, 'model.')}")
    if of_rows:
        table = xc_table.xc_table(features, labels, settings, sizes.in_a_row)
    else:
        table = graph_table.graph_table(run.model.name, features, labels, settings, sizes.degree)
    network = InferredNetwork(run.model.name, table, run.model.dtype)
    if not of_rows:
        run = run.override({"train.batch": 1})
        network.nodes = sizes.nodes, sizes.nodes
    return Described(run, network, None if of_rows else 1)


def described_on_all_ranks(run: Run, layers: str | None, communicator: Communicator) -> Described:
    """The network of a run, equal on every rank; the code of the user's own is inspected on rank 0. Collective."""
    with communicator.agreed():
        if not is_module(run.model.name):
            return described(run, layers)
        run = run.with_implied()
        data = _data_of_own(run, layers)
    from istmpi.training.network import network_of

    return Described(run, network_of(run, data, communicator), len(data.train))


def _data_of_own(run: Run, layers: str | None) -> Dataset:
    """The data that a network of one's own is for."""
    from istmpi.data.sources import open_for_training

    if layers is not None:
        raise ConfigError(
            f"--layers {layers} with {run.model.name}: it says the widths of an mlp. Give --data, and the widths of a "
            f"network of your own by --set model.ARGUMENT=VALUE."
        )
    return open_for_training(run.data, 0, run.train.seed)


def require_dealable(run: Run, network: Architecture, cost: Cost) -> None:
    """Refuse, with a ConfigError, a deal that training would refuse, or subnets that the network's code does."""
    if cost.spec.deals and run.method.partition != ():
        network.require_dealable(cost.groups)
    deal = cost.spec.deal(run, network, cost.ranks, 0)  # a part's own lengths are expected ones where blocks are dealt
    for part in cost.parts:
        held = deal.held(part.part.ranks[0])
        network.require_usable(narrowed(network.lengths, network.parameters, held))
