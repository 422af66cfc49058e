"""Passes of a user's score over the batches of a loader, on a rank and on the members of its
replica group."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from istmpi.amounts import amounts_in
from istmpi.code import calling
from istmpi.devices import HOST
from istmpi.engine.replica_group import ReplicaGroup
from istmpi.errors import ConfigError, IstmpiError
from istmpi.program.loaders import count_examples, share_batches
from istmpi.trees import list_tensors, map_tensors

ScoreOf = Callable[[nn.Module, Any], Any]
Sums = dict[str, np.ndarray]
"""The sum over examples of each score, and the number of examples, ``[2]``."""
Part = tuple[Sums, IstmpiError | None]
"""The sums of a member of a replica group, or the error of its score."""


class Passes:
    """The passes of one evaluation: of the batches ``place``, ``place + places`` and so on of a
    loader."""

    def __init__(
        self, module: nn.Module, score: ScoreOf, device: torch.device, note: Callable[[str], None]
    ):
        """``note`` gets a sentence if the number of a batch's examples is in doubt."""
        self._module = module
        self._score = score
        self._device = device
        self._note = note

    def add_up(self, loader: Iterable[Any], place: int, places: int, seed: int) -> Sums:
        """Return the sums over these batches; empty without a batch. Raises ConfigError for an
        unusable score."""
        sums: Sums = {}
        with torch.no_grad():
            for batch in share_batches(loader, place, places, seed):
                with calling("the score"):
                    returned = self._score(self._module, to_device(batch, self._device))
                amounts = amounts_in(returned, count_examples(batch), "the score")
                if not sums:
                    sums = {name: np.zeros(2) for name in amounts}
                # A pair has a count of its own; only a mean is weighted by the rows.
                elif all(amount.is_mean for amount in amounts.values()):
                    self._note_unequal_rows(batch)
                if sums.keys() != amounts.keys():
                    raise ConfigError(
                        f"the score has {[*amounts]} for a batch, but {[*sums]} for earlier "
                        "batches."
                    )
                for name, amount in amounts.items():
                    sums[name] += np.array([amount.total, amount.count])
        return sums

    def try_to_add_up(self, loader: Iterable[Any], place: int, places: int, seed: int) -> Part:
        """Return what `add_up` does, or its error, because other members wait for either."""
        try:
            return self.add_up(loader, place, places, seed), None
        except IstmpiError as error:
            return {}, error

    def _note_unequal_rows(self, batch: Any) -> None:
        rows = {len(tensor) for tensor in list_tensors(batch) if tensor.ndim}
        if len(rows) > 1:
            self._note(
                "the tensors of a batch to evaluate have different first axes: the first tensor's "
                "rows count as examples. Put the batch's axis first, or return a sum and a count."
            )


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on a device."""
    if device == HOST:
        return batch
    # A batch of another type, such as a graph's, moves itself.
    is_tree = type(batch) in (dict, list, tuple) or isinstance(batch, torch.Tensor)
    if not is_tree and hasattr(batch, "to"):
        return batch.to(device)
    return map_tensors(lambda x: x.to(device) if x.device == HOST else x, batch)


def join_parts(parts: Sequence[Part]) -> Sums:
    """Return the sums over the members of a replica group; raise the first error."""
    for _, error in parts:
        if error:
            raise error
    with_batches = [sums for sums, _ in parts if sums]
    if not with_batches:
        return {}
    return add_sums(with_batches)


def add_sums(parts: Sequence[Sums]) -> Sums:
    """Return the sums over ranks, or members, that have batches. Raises ConfigError if some have
    other scores."""
    names = [*parts[0]]
    for sums in parts:
        if set(sums) != set(names):
            raise ConfigError(
                f"the score has {names} on a rank and {[*sums]} on another. Return equal names."
            )
    totals = {name: np.zeros(2) for name in names}
    for sums in parts:
        for name in names:
            totals[name] += sums[name]
    return totals


def require_examples(totals: Sums) -> None:
    """Raise ConfigError if a score counts nothing."""
    for name, (_, count) in totals.items():
        if not count:
            raise ConfigError(
                f"the score {name or '(a pair)'} has 0 examples in all batches; return at least 1."
            )


def choose_batches(rank: int, ranks: int, group: ReplicaGroup | None) -> tuple[int, int]:
    """Return the place and places of `Passes.add_up`, of a process of one of so many ``ranks``."""
    if group is None:
        return rank, ranks
    return group.find_place(rank, ranks)
