"""Builds a run's networks, the same on all ranks. Rank 0 makes and sends the table of a network, if
none is built in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from istmpi.comm import Communicator
from istmpi.comm.agreement import Agreement, find_shared_error
from istmpi.comm.root import ask_root
from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.errors import ConfigError
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import find_origin
from istmpi.training.network import EXAMPLES, find_table_of, load_code, try_table, write_table
from istmpi.units import list_first

if TYPE_CHECKING:
    import torch

    from istmpi.network.user import UserNetwork

Networks = dict[int, Architecture]
"""The networks of a run by the side of their images, 0 for the full size."""

COMPARED = 4096
"""The most output values that are compared between ranks, over all `EXAMPLES`."""


def build_network(run: Run, data: Dataset, communicator: Communicator) -> Architecture:
    """Return the network of a run for ``data``, as `build_networks` does. Collective."""
    return build_networks(run, lambda: {0: data}, communicator, lambda networks: None)[0]


def build_networks(
    run: Run,
    open_data: Callable[[], Mapping[int, Dataset]],
    communicator: Communicator,
    use: Callable[[Networks], None],
) -> Networks:
    """Return the networks of a run for the data of each size, after ``use`` of them on this rank.
    Collective.

    ``use`` is a part of the agreement on the networks, which costs a round trip. Its last call
    counts.

    Raises the same error on every rank: ConfigError if a network cannot be trained or differs
    between ranks, or what ``open_data`` or ``use`` raises.
    """
    tables: _Tables = {}
    drafts = _Drafts(run, open_data)
    inspected = find_origin(run.model.name).is_inspected
    if inspected:
        tables = ask_root(communicator, drafts.find)
    networks: Networks = {}
    with communicator.agreed() as agreement:
        drafts.make()
        agreement.value = drafts.describe()
        with agreement.going_on():
            networks = drafts.complete(tables)
            agreement.value = drafts.describe(tables)
            if networks:
                use(networks)
    if inspected:
        _require_same(run, drafts, agreement, communicator)
    elif drafts.are_tried and all(digests == agreement.by_rank[0] for digests in agreement.by_rank):
        # All ranks have tried the same written tables.
        agreement.raise_later()
    else:
        networks = _take_tables_of_root(drafts, communicator, use)
    return networks


class _Digests(NamedTuple):
    """The parts of a draft that ranks compare."""

    source: str
    """The digest of the source if the table is found by inspection, else empty: a written table
    does not depend on the source."""
    table: str
    """The digest of the written table; empty without one."""
    tried: bool
    """True if the network with the written table has passed its trial on this rank."""
    alike: bool
    """True if an inspected network computes rank 0's outputs, as far as is known."""


_DigestsBySide = dict[int, _Digests]
_Tables = dict[int, tuple[Mapping[str, Any], np.ndarray | None]]
"""The table that rank 0 found for each size, and its outputs."""


@dataclass(frozen=True)
class _Draft:
    """A rank's network before the ranks have agreed on its table."""

    data: Dataset
    code: UserNetwork
    tree: Mapping[str, Any] | None
    """The written table as a tree; None if the table is found by inspection."""
    network: Architecture | None
    """The network with the written table after its trial; None if that failed, or without such a
    table."""

    def describe(self) -> _Digests:
        if self.tree is None:
            return _Digests(source=self.code.source.hash, table="", tried=False, alike=True)
        digest = hashlib.sha256(json.dumps(self.tree, sort_keys=True).encode()).hexdigest()
        return _Digests(source="", table=digest, tried=self.network is not None, alike=True)


class _Drafts:
    """The networks of a run on this rank, while the ranks agree on them."""

    def __init__(self, run: Run, open_data: Callable[[], Mapping[int, Dataset]]):
        self._run = run
        self._open_data = open_data
        self._error: Exception | None = None
        self.by_side: dict[int, _Draft] = {}
        self.trials: dict[int, _Trial] = {}
        """The trials of inspected networks."""

    def make(self) -> None:
        """Load the networks, unless that is done. Raises ConfigError if that fails, or if one does
        not fit its data."""
        if self._error:
            raise self._error
        if self.by_side:
            return
        try:
            for side, data in self._open_data().items():
                self.by_side[side] = _draft_network(self._run, data)
        except Exception as error:
            self._error = error
            raise

    def describe(self, tables: _Tables | None = None) -> _DigestsBySide:
        """Return what other ranks compare; after the trials, with rank 0's ``tables``."""
        digests = {side: draft.describe() for side, draft in self.by_side.items()}
        for side, (_, expected) in (tables or {}).items():
            alike = _are_alike(self.trials[side].sample, expected)
            digests[side] = digests[side]._replace(alike=alike)
        return digests

    def find(self) -> _Tables:
        """Return the tables of inspected networks, on rank 0; nothing if `make` fails, whose error
        other ranks may have, too. Raises ConfigError if the inspection fails."""
        try:
            self.make()
        except Exception as error:
            if find_shared_error(error) is None:
                raise
            return {}
        tables: _Tables = {}
        for side, draft in self.by_side.items():
            # Rank 0 sends its outputs, too: other ranks tell then if they compute the same.
            use = partial(_try, self._run, draft)
            tree, self.trials[side] = find_table_of(draft.code, use)
            tables[side] = (tree, self.trials[side].sample)
        return tables

    def complete(self, tables: _Tables) -> Networks:
        """Return the networks with the tables that rank 0 found, or with those that are written;
        nothing if one is not known yet. Raises ConfigError if a network fails."""
        networks: Networks = {}
        for side, draft in self.by_side.items():
            if draft.network is not None:
                networks[side] = draft.network
            # Without a table rank 0 has failed, and all ranks are about to raise its error.
            elif side in tables:
                if side not in self.trials:
                    tree, _ = tables[side]
                    self.trials[side] = _try(self._run, draft, tree)
                networks[side] = self.trials[side].network
        if len(networks) < len(self.by_side):
            return {}
        return networks

    def complete_written(self, trees: Mapping[int, Any]) -> Networks:
        """Return the networks with written tables, which rank 0 sends. Raises ConfigError if one
        fails."""
        networks: Networks = {}
        for side, draft in self.by_side.items():
            networks[side], _, _ = try_table(self._run, draft.data, draft.code, trees[side])
        return networks

    @property
    def are_tried(self) -> bool:
        return all(draft.network is not None for draft in self.by_side.values())

    @property
    def trees(self) -> dict[int, Mapping[str, Any] | None]:
        return {side: draft.tree for side, draft in self.by_side.items()}


def _take_tables_of_root(
    drafts: _Drafts, communicator: Communicator, use: Callable[[Networks], None]
) -> Networks:
    """Return the networks with the written tables of rank 0, after ``use`` of them. Collective;
    raises what `build_networks` does."""
    # decision 30: the table, which rank 0 sends, makes the ranks' networks equal.
    trees = communicator.broadcast_from_root(drafts.trees)
    with communicator.agreed():
        networks = drafts.complete_written(trees)
        use(networks)
    return networks


def _require_same(
    run: Run, drafts: _Drafts, agreement: Agreement, communicator: Communicator
) -> None:
    """Raise the error of a rank that cannot train an inspected network, or ConfigError if the
    sources or the outputs of ranks differ. Collective."""
    by_rank: Sequence[_DigestsBySide] = agreement.by_rank
    for side in drafts.by_side:
        _require_same_source(run.model.name, [digests[side].source for digests in by_rank])
    agreement.raise_later()
    for side, trial in drafts.trials.items():
        differing = [rank for rank, digests in enumerate(by_rank) if not digests[side].alike]
        if differing:
            _refuse_other_outputs(trial, differing, communicator)


def _draft_network(run: Run, data: Dataset) -> _Draft:
    code = load_code(run, data)
    table = write_table(run.train, code, data)
    if table is None:
        return _Draft(data, code, tree=None, network=None)
    tree = table.tree()
    network = None
    # Its error is raised after the ranks have compared their tables, which may be its cause.
    with suppress(ConfigError):
        network, _, _ = try_table(run, data, code, tree)
    return _Draft(data, code, tree, network)


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


def _try(run: Run, draft: _Draft, tree: Mapping[str, Any]) -> _Trial:
    """Return the trial of an inspected network. Raises ConfigError if the network fails."""
    data = draft.data
    code = draft.code
    network, inputs, outputs = try_table(run, data, code, tree)
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
