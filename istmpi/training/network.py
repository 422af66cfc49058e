"""Builds a run's network, the same on all ranks. Rank 0 makes and sends the network's table, if
none is built in."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.errors import ConfigError
from istmpi.models.tables import Facts, table_of
from istmpi.names import has_table
from istmpi.network.architecture import Architecture

if TYPE_CHECKING:
    import torch

    from istmpi.network.table import Table
    from istmpi.network.user import UserNetwork

EXAMPLES = 16
"""The most training examples on which a network is tried before training."""
COMPARED = 4096
"""The most output values that are compared between ranks, over all `EXAMPLES`."""


def network_of(run: Run, data: Dataset, communicator: Communicator) -> Architecture:
    """Return the network of a run for ``data``. Collective.

    Raises the same ConfigError on every rank if the network cannot be trained, or differs between
    ranks.
    """
    from istmpi.training.proof_cache import recall, remember

    with communicator.agreed():
        code = _code(run, data)
        table = _written_down(run, code, data)
    sources = communicator.allgather("" if table else code.source.hash)
    odd = [rank for rank, source in enumerate(sources) if source != sources[0]]
    _require_same(
        run,
        odd,
        "its file, or a file that it imports, differs on {}. Give all ranks the same files.",
    )
    tree = table and table.tree()
    if tree is None and communicator.rank == 0:
        tree = recall(code)
    tree = communicator.broadcast_from_root(tree)
    if tree is not None:
        try:
            return _usable(run, data, code, tree, communicator)
        except ConfigError:
            if table is not None:
                raise
            # the remembered table may be out of date although the source is the same: inspect again
    with communicator.agreed():
        if communicator.rank == 0:
            from istmpi.inspection.large import inspected

            tree = inspected(code).tree()
    tree = communicator.broadcast_from_root(tree)
    network = _usable(run, data, code, tree, communicator)
    if communicator.rank == 0:
        remember(code, tree)
    return network


def _usable(
    run: Run, data: Dataset, code: UserNetwork, tree: Mapping[str, Any], communicator: Communicator
) -> Architecture:
    import torch

    from istmpi.network.table import Table

    with communicator.agreed():
        network = _ready(run, Table.from_tree(tree), code, data)
        count = len(data.train)
        first = (
            np.arange(min(run.train.batch, EXAMPLES, max(2, count))) % count
        )  # batch statistics need two
        batch = data.train.reshaped(network.example_shape).batch(first)
        inputs = batch.to("cpu", getattr(torch, run.model.dtype)).inputs
        made = network.require_finite(*inputs)
    if made is not None:
        _require_same_outputs(run, data, network, inputs, made, communicator)
    return network


def _require_same_outputs(
    run: Run,
    data: Dataset,
    network: Architecture,
    inputs: tuple[torch.Tensor, ...],
    made: torch.Tensor,
    communicator: Communicator,
) -> None:
    """Raise ConfigError if a rank's forward gives other outputs than rank 0's for the same batch
    and weights.

    Outputs that also differ between two calls on one rank are random; they are not refused.
    """
    if run.data.placement == "local":
        if (
            data.example is None
        ):  # data differ between ranks, but invented examples are the same on all
            inputs = network.code.examples(EXAMPLES, made.dtype)
        elif data.network is None:
            return
        with communicator.agreed():
            made = network.require_finite(*inputs)
    first = communicator.broadcast_from_root(_some(made))
    odd = [
        rank
        for rank, same in enumerate(communicator.allgather(_alike(_some(made), first)))
        if not same
    ]
    if not odd:
        return
    with communicator.agreed():
        again = network.require_finite(*inputs)
    if all(communicator.allgather(_alike(_some(again), _some(made)))):
        what = "its forward gives other outputs for the same examples and weights on {}."
        _require_same(run, odd, f"{what} Make it compute the same on all ranks.")


def _require_same(run: Run, odd: list[int], what: str) -> None:
    if odd:
        shown = f"rank{'s' * (len(odd) > 1)} {', '.join(map(str, odd[:4]))}{', ...' * (len(odd) > 4)} and rank 0"
        error = ConfigError(f"{run.model.name}: {what.format(shown)}")
        error.everywhere = True
        raise error


def _some(outputs: torch.Tensor) -> np.ndarray:
    flat = outputs.detach().double().numpy().reshape(-1)
    return flat[:: max(-(-len(flat) // COMPARED), 1)]


def _alike(outputs: np.ndarray, other: np.ndarray) -> bool:
    largest = abs(other).max(initial=0)
    return outputs.shape == other.shape and bool(
        abs(outputs - other).max(initial=0) <= 1e-3 * largest
    )


def planned_network(run: Run, data: Dataset) -> Architecture:
    """Return a run's network without other ranks or a pass of training examples. Raises ConfigError
    if unusable."""
    from istmpi.network.table import Table

    code = _code(run, data)
    if (table := _written_down(run, code, data)) is not None:
        return _ready(run, table, code, data)
    from istmpi.inspection.large import inspected
    from istmpi.training.proof_cache import recall, remember

    if (tree := recall(code)) is not None:
        with suppress(ConfigError):  # as in training
            return _ready(run, Table.from_tree(tree), code, data)
    table = inspected(code)
    network = _ready(run, table, code, data)
    remember(code, table.tree())
    return network


def _code(run: Run, data: Dataset) -> UserNetwork:
    from istmpi.network.arguments import require_known, user_network

    require_known(run.model.name)
    arguments = run.model.arguments_for(data.task)
    facts = tuple(data.shape), data.outputs, arguments, data.task, data.example
    code = user_network(run.model.name, *facts, network=data.network)
    if code.graph:
        _require_fitting_batches(run, code, data)
    return code


def _written_down(run: Run, code: UserNetwork, data: Dataset) -> Table | None:
    if not has_table(code.name):
        return None
    if not data.outputs:
        raise ConfigError(
            f"{data.source} has an unknown number of classes, and {code.name} needs it. Give the training data set an "
            f"attribute classes, their number or names, or train a network of yours, --model FILE.py:Class."
        )
    facts = Facts(code.inputs, code.outputs)
    if code.graph:
        nodes, edges = data.train.size_of_example(run.train.batch, run.train.seed)
        facts = replace(facts, degree=edges / nodes)
    elif code.sparse:
        binary = run.train.multi_label_loss == "binary"
        odds = data.train.odds_of_a_label(code.outputs) if binary else facts.odds
        facts = replace(facts, in_a_row=ceil(data.train.density), odds=odds)
    return table_of(code.name, facts, code.settings)


def _require_fitting_batches(run: Run, code: UserNetwork, data: Dataset) -> None:
    how, batch, examples = run.data.graph, run.train.batch, len(data.train)
    if how == "full" and batch != 1:
        raise ConfigError(
            f"train.batch = {batch}, but data.graph = 'full' has one example, the whole graph. Give --batch 1."
        )
    if how == "clusters" and batch > examples:
        raise ConfigError(
            f"train.batch = {batch} is more than the {examples} clusters of {data.source}. Give fewer."
        )
    if how == "neighbours" and has_table(code.name):
        layers = len(code.settings["hidden"]) + 1
        if len(run.data.fanout) != layers:
            raise ConfigError(
                f"data.fanout = {list(run.data.fanout)} has {len(run.data.fanout)} numbers, but {code.name} "
                f"has {layers} layers. Give a number for each layer."
            )


def _ready(run: Run, table: Table, code: UserNetwork, data: Dataset) -> Architecture:
    network = Architecture(run.model.name, table, run.model.dtype, code)
    if network.batch_norms and run.train.batch < 2:
        raise ConfigError(
            f"train.batch = 1 with the batch normalisation {next(iter(network.batch_norms))} of {run.model.name}: "
            f"batch statistics need at least 2 examples."
        )
    network.require_usable(network.lengths)
    if code.graph:
        network.nodes = (
            data.train.size_of_example(run.train.batch, run.train.seed)[0],
            len(data.train.graph),
        )
    return network
