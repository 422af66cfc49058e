"""Builds a run's network on this rank: loads its code, and finds and tries its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from istmpi.config import Run
from istmpi.config.sections import Train
from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import GraphSplit
from istmpi.data.settings import Data
from istmpi.data.sparse.split import SparseSplit
from istmpi.errors import ConfigError
from istmpi.models.tables import Facts, find_table
from istmpi.network.architecture import Architecture

if TYPE_CHECKING:
    import torch

    from istmpi.network.table import Table
    from istmpi.network.user import UserNetwork

T = TypeVar("T")

EXAMPLES = 16
"""The most training examples on which a network is tried before training."""


def find_table_of(
    code: UserNetwork, use: Callable[[Mapping[str, Any]], T]
) -> tuple[Mapping[str, Any], T]:
    """Return the remembered table of a network as a tree, or that of an inspection; and what
    ``use`` makes of it, which raises ConfigError if the table does not fit."""
    from istmpi.training.proof_cache import recall, remember

    tree = recall(code)
    if tree is not None:
        # A remembered table may be out of date although the source is the same.
        with suppress(ConfigError):
            return tree, use(tree)
    from istmpi.inspection.large import inspect_any

    tree = inspect_any(code).tree()
    used = use(tree)
    remember(code, tree)
    return tree, used


def try_table(
    run: Run, data: Dataset, code: UserNetwork, tree: Mapping[str, Any]
) -> tuple[Architecture, tuple[torch.Tensor, ...], torch.Tensor | None]:
    """Return the network with a table, its first inputs, and its outputs for them with initial
    weights (None with a written table). Raises ConfigError if the network fails."""
    import torch

    from istmpi.network.table import Table

    network = _make_network(run, Table.from_tree(tree), code, data)
    count = len(data.train)
    # Batch statistics need two examples, although there may be one.
    first = np.arange(min(run.train.batch, EXAMPLES, max(2, count))) % count
    batch = data.train.reshape(network.example_shape).batch(first)
    inputs = batch.to("cpu", getattr(torch, run.model.dtype)).inputs
    return network, inputs, network.require_finite(*inputs)


def plan_network(run: Run, data: Dataset) -> Architecture:
    """Return a run's network without other ranks or a pass of training examples. Raises ConfigError
    if unusable."""
    from istmpi.network.table import Table

    code = load_code(run, data)
    table = write_table(run.train, code, data)
    if table is not None:
        return _make_network(run, table, code, data)

    def make(tree: Mapping[str, Any]) -> Architecture:
        return _make_network(run, Table.from_tree(tree), code, data)

    _, network = find_table_of(code, make)
    return network


def load_code(run: Run, data: Dataset) -> UserNetwork:
    from istmpi.network.arguments import require_known, user_network

    require_known(run.model.name)
    arguments = run.model.arguments_for(data.task)
    facts = tuple(data.shape), data.outputs, arguments, data.task, data.example
    code = user_network(run.model.name, *facts, network=data.network)
    if code.graph:
        _require_fitting_batches(run.data, run.train.batch, code, data)
    return code


def write_table(train: Train, code: UserNetwork, data: Dataset) -> Table | None:
    """Return the written table of a network; None if its table is found by inspection.

    Raises ConfigError if the number of classes is unknown.
    """
    if code.is_inspected:
        return None
    if not data.outputs:
        raise ConfigError(
            f"{data.source} has an unknown number of classes, and {code.name} needs it. Give the "
            "training data set an attribute classes, their number or names, or train a network of "
            "yours, --model FILE.py:Class."
        )
    facts = Facts(code.inputs, code.outputs)
    if code.graph:
        assert isinstance(data.train, GraphSplit), "a network for graphs has graphs"
        nodes, edges = data.train.measure_examples(train.batch, train.seed)
        facts = replace(facts, degree=edges / nodes)
    elif code.sparse:
        assert isinstance(data.train, SparseSplit), "a network for sparse rows has sparse rows"
        odds = facts.odds
        if train.multi_label_loss == "binary":
            odds = data.train.estimate_label_odds(code.outputs)
        facts = replace(facts, in_a_row=ceil(data.train.density), odds=odds)
    return find_table(code.name, facts, code.settings)


def _require_fitting_batches(settings: Data, batch: int, code: UserNetwork, data: Dataset) -> None:
    how = settings.graph
    examples = len(data.train)
    if how == "full" and batch != 1:
        raise ConfigError(
            f"train.batch = {batch}, but data.graph = 'full' has one example, the whole graph. "
            "Give --batch 1."
        )
    if how == "clusters" and batch > examples:
        raise ConfigError(
            f"train.batch = {batch} is more than the {examples} clusters of {data.source}. "
            "Give fewer."
        )
    if how == "neighbours" and not code.is_inspected:
        layers = len(code.settings["hidden"]) + 1
        if len(settings.fanout) != layers:
            raise ConfigError(
                f"data.fanout = {list(settings.fanout)} has {len(settings.fanout)} numbers, but "
                f"{code.name} has {layers} layers. Give a number for each layer."
            )


def _make_network(run: Run, table: Table, code: UserNetwork, data: Dataset) -> Architecture:
    network = Architecture(code.name, table, run.model.dtype, code)
    if network.batch_norms and run.train.batch < 2:
        raise ConfigError(
            f"train.batch = 1 with the batch normalisation {next(iter(network.batch_norms))} of "
            f"{code.name}: batch statistics need at least 2 examples."
        )
    network.require_usable(network.lengths)
    if code.graph:
        assert isinstance(data.train, GraphSplit), "a network for graphs has graphs"
        nodes, _ = data.train.measure_examples(run.train.batch, run.train.seed)
        network.nodes = (nodes, len(data.train.graph))
    return network
