"""Builds a run's network, the same on all ranks. Rank 0 makes and sends the network's table, if
none is built in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import GraphSplit
from istmpi.data.sparse.split import SparseSplit
from istmpi.errors import ConfigError
from istmpi.models.tables import Facts, find_table
from istmpi.network.architecture import Architecture
from istmpi.units import list_first

if TYPE_CHECKING:
    import torch

    from istmpi.network.table import Table
    from istmpi.network.user import UserNetwork

EXAMPLES = 16
"""The most training examples on which a network is tried before training."""
COMPARED = 4096
"""The most output values that are compared between ranks, over all `EXAMPLES`."""


def build_network(run: Run, data: Dataset, communicator: Communicator) -> Architecture:
    """Return the network of a run for ``data``. Collective.

    Raises the same ConfigError on every rank if the network cannot be trained, or differs between
    ranks.
    """
    with communicator.agreed() as agreement:
        draft = draft_network(run, data)
        agreement.value = draft.digests
    return complete_network(run, data, draft, agreement.by_rank, communicator)


class Digests(NamedTuple):
    """The parts of a draft that ranks compare."""

    source: str
    """The digest of the source if the table is found by inspection, else empty: a written table
    does not depend on the source."""
    table: str
    """The digest of the written table; empty without one."""
    tried: bool
    """True if the network with the written table has passed its trial on this rank."""


@dataclass(frozen=True)
class Draft:
    """A rank's network before the ranks have agreed on its table."""

    code: UserNetwork
    tree: Mapping[str, Any] | None
    """The written table as a tree; None if the table is found by inspection."""
    digests: Digests
    network: Architecture | None = None
    """The network with the written table after its trial; None if that failed, or without such a
    table."""


def draft_network(run: Run, data: Dataset) -> Draft:
    """Load a run's network on this rank. Raises ConfigError if that fails, or if it does not fit
    ``data``."""
    code = _load_code(run, data)
    table = _write_table(run, code, data)
    if table is None:
        return Draft(code, None, Digests(source=code.source.hash, table="", tried=False))
    tree = table.tree()
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    network = None
    # Its error is raised after the ranks have compared their tables, which may be its cause.
    with suppress(ConfigError):
        network, _, _ = _try_table(run, data, code, tree)
    tried = network is not None
    return Draft(code, tree, Digests(source="", table=digest, tried=tried), network)


def complete_network(
    run: Run, data: Dataset, draft: Draft, by_rank: Sequence[Digests], communicator: Communicator
) -> Architecture:
    """Return the network of a draft with the table that all ranks have; ``by_rank`` has the
    digests of all drafts. Collective; raises what `build_network` does."""
    from istmpi.training.proof_cache import recall, remember

    # All ranks have tried the same written table: there is nothing left to agree on.
    if draft.network is not None and all(digests == draft.digests for digests in by_rank):
        return draft.network
    _require_same_source(run, [digests.source for digests in by_rank])
    code = draft.code
    tree = draft.tree
    if tree is None and communicator.rank == 0:
        tree = recall(code)
    # decision 30: the table, which rank 0 sends, makes the ranks' networks equal.
    if draft.tree is None or any(digests != draft.digests for digests in by_rank):
        tree = communicator.broadcast_from_root(tree)
    if tree is not None:
        try:
            return _try_network(run, data, code, tree, communicator)
        except ConfigError:
            # A remembered table may be out of date although the source is the same.
            if draft.tree is not None:
                raise
    tree = _inspect_on_root(code, communicator)
    network = _try_network(run, data, code, tree, communicator)
    if communicator.rank == 0:
        remember(code, tree)
    return network


def _inspect_on_root(code: UserNetwork, communicator: Communicator) -> Mapping[str, Any]:
    """Return the table of a network, which rank 0 inspects, as a tree on every rank."""
    tree: Mapping[str, Any] = {}
    with communicator.agreed():
        if communicator.rank == 0:
            from istmpi.inspection.large import inspect_any

            tree = inspect_any(code).tree()
    return communicator.broadcast_from_root(tree)


def _require_same_source(run: Run, sources: Sequence[str]) -> None:
    """Raise ConfigError if some rank's source of the network differs from rank 0's."""
    differing = [rank for rank, other in enumerate(sources) if other != sources[0]]
    _require_none(
        differing,
        run,
        "its file, or a file that it imports, differs on {}. Give all ranks the same files.",
    )


def _try_network(
    run: Run, data: Dataset, code: UserNetwork, tree: Mapping[str, Any], communicator: Communicator
) -> Architecture:
    with communicator.agreed():
        network, inputs, outputs = _try_table(run, data, code, tree)
    if outputs is not None:
        _require_same_outputs(run, data, network, inputs, outputs, communicator)
    return network


def _try_table(
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


def _require_same_outputs(
    run: Run,
    data: Dataset,
    network: Architecture,
    inputs: tuple[torch.Tensor, ...],
    outputs: torch.Tensor,
    communicator: Communicator,
) -> None:
    """Raise ConfigError if a rank's forward gives other outputs than rank 0's for the same batch
    and weights.

    Outputs that also differ between two calls on one rank are random; they are not refused.
    """
    # decision 38: local data never leave their rank, so there is no common batch.
    if run.data.differs:
        if data.example is None:
            # Data differ between ranks, but invented examples are the same on all.
            inputs = network.code.examples(EXAMPLES, outputs.dtype)
        elif data.network is None:
            return
        outputs = _compute_outputs(network, inputs, communicator)
    sample = _sample(outputs)
    same_by_rank = communicator.allgather(
        _are_alike(sample, communicator.broadcast_from_root(sample))
    )
    differing = [rank for rank, same in enumerate(same_by_rank) if not same]
    if not differing:
        return
    # Random outputs differ between calls, too; a wrong network differs between ranks alone.
    again = _compute_outputs(network, inputs, communicator)
    if all(communicator.allgather(_are_alike(_sample(again), sample))):
        what = "its forward gives other outputs for the same examples and weights on {}."
        _require_none(differing, run, f"{what} Make it compute the same on all ranks.")


def _compute_outputs(
    network: Architecture, inputs: tuple[torch.Tensor, ...], communicator: Communicator
) -> torch.Tensor:
    with communicator.agreed():
        outputs = network.require_finite(*inputs)
    assert outputs is not None, "a network with a written table computes nothing before training"
    return outputs


def _require_none(differing: list[int], run: Run, what: str) -> None:
    """Raise ConfigError if ranks differ from rank 0; ``what`` is the error, with {} for the
    ranks."""
    if not differing:
        return
    noun = "rank"
    if len(differing) > 1:
        noun = "ranks"
    ranks = f"{noun} {list_first(differing)} and rank 0"
    error = ConfigError(f"{run.model.name}: {what.format(ranks)}")
    error.everywhere = True
    raise error


def _sample(outputs: torch.Tensor) -> np.ndarray:
    """Return at most `COMPARED` of the outputs, [n] float64."""
    flat = outputs.detach().double().numpy().reshape(-1)
    return flat[:: max(-(-len(flat) // COMPARED), 1)]


def _are_alike(outputs: np.ndarray, other: np.ndarray) -> bool:
    """Return True if outputs differ by at most 1/1000 of the largest magnitude in ``other``."""
    largest = abs(other).max(initial=0)
    return outputs.shape == other.shape and bool(
        abs(outputs - other).max(initial=0) <= 1e-3 * largest
    )


def plan_network(run: Run, data: Dataset) -> Architecture:
    """Return a run's network without other ranks or a pass of training examples. Raises ConfigError
    if unusable."""
    from istmpi.network.table import Table

    code = _load_code(run, data)
    table = _write_table(run, code, data)
    if table is not None:
        return _make_network(run, table, code, data)
    from istmpi.inspection.large import inspect_any
    from istmpi.training.proof_cache import recall, remember

    tree = recall(code)
    if tree is not None:
        # As in training, a remembered table may be out of date.
        with suppress(ConfigError):
            return _make_network(run, Table.from_tree(tree), code, data)
    table = inspect_any(code)
    network = _make_network(run, table, code, data)
    remember(code, table.tree())
    return network


def _load_code(run: Run, data: Dataset) -> UserNetwork:
    from istmpi.network.arguments import require_known, user_network

    require_known(run.model.name)
    arguments = run.model.arguments_for(data.task)
    facts = tuple(data.shape), data.outputs, arguments, data.task, data.example
    code = user_network(run.model.name, *facts, network=data.network)
    if code.graph:
        _require_fitting_batches(run, code, data)
    return code


def _write_table(run: Run, code: UserNetwork, data: Dataset) -> Table | None:
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
    train = data.train
    if code.graph:
        assert isinstance(train, GraphSplit), "a network for graphs has graphs"
        nodes, edges = train.measure_examples(run.train.batch, run.train.seed)
        facts = replace(facts, degree=edges / nodes)
    elif code.sparse:
        assert isinstance(train, SparseSplit), "a network for sparse rows has sparse rows"
        odds = facts.odds
        if run.train.multi_label_loss == "binary":
            odds = train.estimate_label_odds(code.outputs)
        facts = replace(facts, in_a_row=ceil(train.density), odds=odds)
    return find_table(code.name, facts, code.settings)


def _require_fitting_batches(run: Run, code: UserNetwork, data: Dataset) -> None:
    how = run.data.graph
    batch = run.train.batch
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
        if len(run.data.fanout) != layers:
            raise ConfigError(
                f"data.fanout = {list(run.data.fanout)} has {len(run.data.fanout)} numbers, but "
                f"{code.name} has {layers} layers. Give a number for each layer."
            )


def _make_network(run: Run, table: Table, code: UserNetwork, data: Dataset) -> Architecture:
    network = Architecture(run.model.name, table, run.model.dtype, code)
    if network.batch_norms and run.train.batch < 2:
        raise ConfigError(
            f"train.batch = 1 with the batch normalisation {next(iter(network.batch_norms))} of "
            f"{run.model.name}: batch statistics need at least 2 examples."
        )
    network.require_usable(network.lengths)
    if code.graph:
        assert isinstance(data.train, GraphSplit), "a network for graphs has graphs"
        nodes, _ = data.train.measure_examples(run.train.batch, run.train.seed)
        network.nodes = (nodes, len(data.train.graph))
    return network
