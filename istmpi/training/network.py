"""Builds a run's network, the same on all ranks. Rank 0 makes and sends the network's table, if
none is built in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from istmpi.comm import Communicator
from istmpi.comm.root import ask_root
from istmpi.config import Run
from istmpi.config.sections import Train
from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import GraphSplit
from istmpi.data.settings import Data
from istmpi.data.sparse.split import SparseSplit
from istmpi.errors import ConfigError
from istmpi.models.tables import Facts, find_table
from istmpi.network.architecture import Architecture
from istmpi.units import list_first

if TYPE_CHECKING:
    import torch

    from istmpi.network.table import Table
    from istmpi.network.user import UserNetwork

T = TypeVar("T")

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
    table = _write_table(run.train, code, data)
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
    # All ranks have tried the same written table: there is nothing left to agree on.
    if draft.network is not None and all(digests == draft.digests for digests in by_rank):
        return draft.network
    _require_same_source(draft.code.name, [digests.source for digests in by_rank])
    tree = draft.tree
    if tree is None:
        return _complete_inspected(run, data, draft.code, communicator)
    # decision 30: the table, which rank 0 sends, makes the ranks' networks equal.
    if any(digests != draft.digests for digests in by_rank):
        tree = communicator.broadcast_from_root(tree)
    with communicator.agreed():
        network, _, _ = _try_table(run, data, draft.code, tree)
    return network


def _complete_inspected(
    run: Run, data: Dataset, code: UserNetwork, communicator: Communicator
) -> Architecture:
    """Return the network with the table that rank 0 finds. Collective; raises what `build_network`
    does.

    Rank 0 sends its outputs with the table: so one agreement says that the other ranks can train
    the network, and that they compute the same.
    """
    own_trial: _Trial | None = None

    def find() -> tuple[Mapping[str, Any], np.ndarray | None]:
        nonlocal own_trial
        tree, trial = _find_table(code, partial(_try, run, data, code))
        own_trial = trial
        return tree, trial.sample

    tree, expected = ask_root(communicator, find)
    with communicator.agreed() as agreement:
        trial = own_trial or _try(run, data, code, tree)
        agreement.value = _are_alike(trial.sample, expected)
    differing = [rank for rank, same in enumerate(agreement.by_rank) if not same]
    if differing:
        _refuse_other_outputs(trial, differing, communicator)
    return trial.network


def _find_table(
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


def _require_same_source(network: str, sources: Sequence[str]) -> None:
    """Raise ConfigError if some rank's source of the network differs from rank 0's."""
    differing = [rank for rank, other in enumerate(sources) if other != sources[0]]
    _require_none(
        differing,
        network,
        "its file, or a file that it imports, differs on {}. Give all ranks the same files.",
    )


@dataclass(frozen=True)
class _Trial:
    """A network that has computed outputs on this rank."""

    network: Architecture
    inputs: tuple[torch.Tensor, ...]
    sample: np.ndarray | None
    """Outputs to compare between ranks (`_sample`); None if ranks have no batch in common."""


def _try(run: Run, data: Dataset, code: UserNetwork, tree: Mapping[str, Any]) -> _Trial:
    """Return the trial of an inspected network. Raises ConfigError if the network fails."""
    network, inputs, outputs = _try_table(run, data, code, tree)
    assert outputs is not None, "only a network with a written table computes nothing"
    # decision 38: local data never leave their rank, so there is no common batch.
    if run.data.differs:
        if data.example is None:
            # Data differ between ranks, but invented examples are the same on all.
            inputs = code.examples(EXAMPLES, outputs.dtype)
            outputs = _compute_outputs(network, inputs)
        elif data.network is None:
            return _Trial(network, inputs, None)
    return _Trial(network, inputs, _sample(outputs))


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


def _refuse_other_outputs(trial: _Trial, differing: list[int], communicator: Communicator) -> None:
    """Raise ConfigError if the forward of the ranks ``differing`` gives other outputs than rank 0's
    for the same batch and weights.

    Outputs that also differ between two calls on one rank are random; they are not refused.
    """
    # Random outputs differ between calls, too; a wrong network differs between ranks alone.
    with communicator.agreed() as agreement:
        again = _sample(_compute_outputs(trial.network, trial.inputs))
        agreement.value = _are_alike(again, trial.sample)
    if all(agreement.by_rank):
        what = "its forward gives other outputs for the same examples and weights on {}."
        _require_none(
            differing, trial.network.name, f"{what} Make it compute the same on all ranks."
        )


def _compute_outputs(network: Architecture, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    outputs = network.require_finite(*inputs)
    assert outputs is not None, "a network with a written table computes nothing before training"
    return outputs


def _require_none(differing: list[int], network: str, what: str) -> None:
    """Raise ConfigError if ranks differ from rank 0; ``what`` is the error about a ``network``,
    with {} for the ranks."""
    if not differing:
        return
    noun = "rank"
    if len(differing) > 1:
        noun = "ranks"
    ranks = f"{noun} {list_first(differing)} and rank 0"
    error = ConfigError(f"{network}: {what.format(ranks)}")
    error.everywhere = True
    raise error


def _sample(outputs: torch.Tensor) -> np.ndarray:
    """Return at most `COMPARED` of the outputs, [n] float64."""
    flat = outputs.detach().double().numpy().reshape(-1)
    return flat[:: max(-(-len(flat) // COMPARED), 1)]


def _are_alike(outputs: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Return True if outputs differ by at most 1/1000 of the largest magnitude in ``other``, or if
    there is nothing to compare."""
    if outputs is None or other is None:
        return True
    largest = abs(other).max(initial=0)
    return outputs.shape == other.shape and bool(
        abs(outputs - other).max(initial=0) <= 1e-3 * largest
    )


def plan_network(run: Run, data: Dataset) -> Architecture:
    """Return a run's network without other ranks or a pass of training examples. Raises ConfigError
    if unusable."""
    from istmpi.network.table import Table

    code = _load_code(run, data)
    table = _write_table(run.train, code, data)
    if table is not None:
        return _make_network(run, table, code, data)

    def make(tree: Mapping[str, Any]) -> Architecture:
        return _make_network(run, Table.from_tree(tree), code, data)

    _, network = _find_table(code, make)
    return network


def _load_code(run: Run, data: Dataset) -> UserNetwork:
    from istmpi.network.arguments import require_known, user_network

    require_known(run.model.name)
    arguments = run.model.arguments_for(data.task)
    facts = tuple(data.shape), data.outputs, arguments, data.task, data.example
    code = user_network(run.model.name, *facts, network=data.network)
    if code.graph:
        _require_fitting_batches(run.data, run.train.batch, code, data)
    return code


def _write_table(train: Train, code: UserNetwork, data: Dataset) -> Table | None:
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
