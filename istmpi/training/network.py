"""Builds a run's network, the same on every rank: rank 0 examines one of the user's own and sends its table."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.comm import Communicator
from istmpi.config import OwnModel, Run
from istmpi.data.dataset import Dataset
from istmpi.errors import ConfigError
from istmpi.models import architecture
from istmpi.models.architecture import Architecture
from istmpi.names import DECLARED
from istmpi.tasks import TASKS

if TYPE_CHECKING:
    import torch

    from istmpi.models.inferred import InferredNetwork
    from istmpi.models.own import OwnNetwork
    from istmpi.models.table import Table

EXAMPLES = 16
"""Examples of the training data on which a network is tried before it is trained."""
COMPARED = 4096
"""The number of outputs for these examples that are compared among the ranks."""
ROUNDING = 1e-3
"""The share of the largest output by which outputs may differ: kinds of processors add in different orders."""


def network_of(run: Run, data: Dataset, communicator: Communicator) -> Architecture:
    """Return the network of a run for these data. Collective.

    Raises the same ConfigError on every rank for one that cannot be trained, or that is another one on some rank.
    """
    if not isinstance(run.model, OwnModel):
        with communicator.agreed():
            return architecture(data.features, data.outputs, data.task, run.model)
    from istmpi.training.proof_cache import recall, remember

    with communicator.agreed():
        own_network = _own(run, data)
    sources = communicator.allgather(own_network.source.hash)
    _require_same(
        run,
        [rank for rank, source in enumerate(sources) if source != sources[0]],
        "its file, or one that it imports, is another one on {}. Give all ranks the same files.",
    )
    if own_network.name in DECLARED:
        tree = communicator.broadcast_from_root(_declared(run, own_network, data).tree())
        return _usable(run, data, own_network, tree, communicator)
    tree = communicator.broadcast_from_root(recall(own_network) if communicator.rank == 0 else None)
    if tree is not None:
        try:
            return _usable(run, data, own_network, tree, communicator)
        except ConfigError:
            pass  # it may be another network by now, for a reason that its source does not tell: look again
    with communicator.agreed():
        if communicator.rank == 0:
            from istmpi.models.examination import examine

            tree = examine(own_network).tree()
    tree = communicator.broadcast_from_root(tree)
    network = _usable(run, data, own_network, tree, communicator)
    if communicator.rank == 0:
        remember(own_network, tree)
    return network


def _usable(
    run: Run, data: Dataset, own: OwnNetwork, tree: Mapping[str, Any], communicator: Communicator
) -> Architecture:
    """Build the network of a table and try it on every rank; the same ConfigError on all where that fails."""
    import torch

    from istmpi.models.table import Table

    with communicator.agreed():
        network = _with_nodes(_ready(run, Table.from_tree(tree), own), run, data)
        count = len(data.train)
        first = np.arange(min(run.train.batch, EXAMPLES, max(2, count))) % count  # batch statistics need two
        batch = data.train.reshaped(network.example_shape).batch(first)
        inputs = batch.to("cpu", getattr(torch, run.model.dtype)).inputs
        made = network.require_finite(*inputs)
    if made is not None:
        _require_same_outputs(run, network, inputs, made, communicator)
    return network


def _require_same_outputs(
    run: Run, network: Architecture, inputs: tuple[torch.Tensor, ...], made: torch.Tensor, communicator: Communicator
) -> None:
    """Refuse, with a ConfigError, a forward whose outputs for the same batch and weights differ on some rank.

    Outputs that differ between two turns of one rank, too, are random, and prove nothing.
    """
    if run.data.placement == "local":
        inputs = communicator.broadcast_from_root(inputs)
        with communicator.agreed():
            made = network.require_finite(*inputs)
    first = communicator.broadcast_from_root(_some(made))
    odd = [rank for rank, same in enumerate(communicator.allgather(_alike(_some(made), first))) if not same]
    if not odd:
        return
    with communicator.agreed():
        again = network.require_finite(*inputs)
    if all(communicator.allgather(_alike(_some(again), _some(made)))):
        _require_same(
            run,
            odd,
            "its forward makes something else of the same examples and weights on {}. It must compute the same on all.",
        )


def _require_same(run: Run, odd: list[int], what: str) -> None:
    if odd:
        shown = f"rank{'s' * (len(odd) > 1)} {', '.join(map(str, odd[:4]))}{', ...' * (len(odd) > 4)} than on rank 0"
        error = ConfigError(f"{run.model.name}: {what.format(shown)}")
        error.everywhere = True
        raise error


def _some(outputs: torch.Tensor) -> np.ndarray:
    flat = outputs.detach().double().numpy().reshape(-1)
    return flat[:: max(-(-len(flat) // COMPARED), 1)]


def _alike(outputs: np.ndarray, other: np.ndarray) -> bool:
    return outputs.shape == other.shape and bool(
        abs(outputs - other).max(initial=0) <= ROUNDING * abs(other).max(initial=0)
    )


def planned_network(run: Run, data: Dataset) -> InferredNetwork:
    """Return the user's network of a run for these data, found in this process alone; ConfigError as in training."""
    from istmpi.models.examination import examine
    from istmpi.models.table import Table
    from istmpi.training.proof_cache import recall, remember

    own_network = _own(run, data)
    if own_network.name in DECLARED:
        return _with_nodes(_ready(run, _declared(run, own_network, data), own_network), run, data)
    if (tree := recall(own_network)) is not None:
        with suppress(ConfigError):  # as in training
            return _with_nodes(_ready(run, Table.from_tree(tree), own_network), run, data)
    table = examine(own_network)
    network = _with_nodes(_ready(run, table, own_network), run, data)
    remember(own_network, table.tree())
    return network


def _own(run: Run, data: Dataset) -> OwnNetwork:
    from istmpi.models.own import own_network

    if TASKS[data.task].of_nodes:
        _require_fitting_batches(run, data)
    return own_network(run.model.name, tuple(data.shape), data.outputs, run.model.arguments, data.task)


def _declared(run: Run, own: OwnNetwork, data: Dataset) -> Table:
    """Return the table of a network that need not be built for it."""
    if own.graph:
        from istmpi.models.graph_table import graph_table

        nodes, edges = size_of_example(run, data)
        return graph_table(own.name, own.inputs[0], own.outputs, own.settings, edges / nodes, own.source.hash)
    from istmpi.models.xc_table import xc_table

    in_a_row = ceil(data.train.density)
    odds = data.train.odds_of_a_label(own.outputs) if run.train.multi_label_loss == "binary" else 0.5
    return xc_table(own.inputs[0], own.outputs, own.settings, in_a_row, own.source.hash, odds)


def _require_fitting_batches(run: Run, data: Dataset) -> None:
    """Refuse, with a ConfigError, impossible batches of a graph."""
    how, batch, examples = run.data.graph, run.train.batch, len(data.train)
    if how == "full" and batch != 1:
        raise ConfigError(
            f"train.batch = {batch}, but with data.graph = 'full' an example is the whole graph. Give --batch 1."
        )
    if how == "clusters" and batch > examples:
        raise ConfigError(f"train.batch = {batch} is more than the {examples} clusters of {data.source}. Give fewer.")
    layers = len(run.model.arguments.get("hidden", (0, 0))) + 1
    if how == "neighbours" and run.model.name in DECLARED and len(run.data.fanout) != layers:
        raise ConfigError(
            f"data.fanout = {list(run.data.fanout)} has {len(run.data.fanout)} numbers, but {run.model.name} has "
            f"{layers} layers. Give one for each."
        )


def _with_nodes(network: InferredNetwork, run: Run, data: Dataset) -> InferredNetwork:
    if TASKS[data.task].of_nodes:
        network.nodes = size_of_example(run, data)[0], len(data.train.graph)
    return network


def size_of_example(run: Run, data: Dataset) -> tuple[float, float]:
    """Return the nodes and edges of a batch of a graph, for each of its examples."""
    return data.train.size_of_example(run.train.batch, run.train.seed)


def _ready(run: Run, table: Table, own: OwnNetwork) -> InferredNetwork:
    """Return the network of a table and its code, ready for the run's training."""
    from istmpi.models.inferred import InferredNetwork

    network = InferredNetwork(run.model.name, table, run.model.dtype, own)
    if network.batch_norms and run.train.batch < 2:
        raise ConfigError(
            f"train.batch = 1 with the batch normalisation {next(iter(network.batch_norms))} of {run.model.name}: "
            f"batch statistics need at least 2 examples."
        )
    network.require_usable(network.lengths)
    return network
