"""A map-style data set of the user's own as a split: examples are read one by one, and collated."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from istmpi import rng
from istmpi.code import short
from istmpi.data.batch import Batch
from istmpi.data.callable.drawing import drawing
from istmpi.data.dataset import Split
from istmpi.data.holdout import divided
from istmpi.errors import DataError
from istmpi.trees import Named, tensors_of

SAMPLED = 16
"""Examples that the fingerprint of a split is made of."""
READ = 1024
"""Examples in memory at a time while labels are read."""


@dataclass(eq=False)
class OwnSplit(Split):
    """Examples ``(inputs, target)``, or dicts; what they draw at random depends on a batch's key and their number."""

    dataset: Any
    name: str
    """The source and the split, for messages."""
    collate: Callable[[list[Any]], Any]
    named: Collection[str] | None = None
    """The arguments that ``forward`` takes by name; None for all of a dict."""
    whole: bool = True
    """Targets are the batch as it was collated, for a loss of the user's; else classes or numbers to predict."""
    shape: tuple[int, ...] = ()
    """The shape of an example as the network gets it, of such data."""
    classes: int = 0
    rows: np.ndarray | None = None
    """The examples of the data set that this split has; None for all."""
    ahead: int = 0

    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        rows = np.asarray(indices if self.rows is None else self.rows[indices]).tolist()
        with drawing() as seed:
            items = []
            for row in rows:
                seed(rng.key(key or 0, row))
                try:
                    items.append(self.dataset[row])
                except Exception as error:
                    raise DataError(f"{self.name} example {row} cannot be read: {short(error)}.") from error
            seed(rng.key(key or 0, "collate"))
            batch = self._collated(items, rows)
        if isinstance(batch, Mapping):
            takes = batch if self.named is None else self.named
            return Batch((Named({key: value for key, value in batch.items() if key in takes}),), batch, len(rows))
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise DataError(f"{self.name}: a batch is {_form(batch)}; an example must be (inputs, target), or a dict.")
        inputs, target = batch
        if not self.whole:
            return Batch((inputs.reshape(len(inputs), *self.shape),), self._checked(target, rows), len(rows))
        if isinstance(inputs, Mapping):
            inputs = (Named(inputs),)
        return Batch(tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,), batch, len(rows))

    def _collated(self, items: list[Any], rows: list[int]) -> Any:
        try:
            return self.collate(items)
        except Exception as error:
            for row, item in zip(rows, items):  # the first that does not go with the first, or by itself
                try:
                    self.collate([items[0], item])
                except Exception as cause:
                    raise DataError(
                        f"{self.name} example {row} does not go into a batch with example {rows[0]}: {short(cause)}. "
                        f"Give examples a common shape, or write collate(items) in the file of the data."
                    ) from error
            raise DataError(f"{self.name}: collate fails: {short(error)}.") from error

    def _checked(self, target: torch.Tensor, rows: list[int]) -> torch.Tensor:
        if not self.classes:
            return target.reshape(len(target), -1)
        wrong = ((target < 0) | (target >= self.classes)).nonzero()
        if len(wrong):
            at = int(wrong[0])
            raise DataError(
                f"{self.name} example {rows[at]} has class {int(target[at])}; there are {self.classes}, from 0 on."
            )
        return target.long()

    def __len__(self) -> int:
        return len(self.dataset if self.rows is None else self.rows)

    def labels(self) -> np.ndarray:
        """Return the classes of all examples, which are read for it; zeros where they have none."""
        return super().labels() if self.whole or not self.classes else self._classes

    @cached_property
    def _classes(self) -> np.ndarray:
        parts = np.array_split(np.arange(len(self)), -(-len(self) // READ))
        return np.concatenate([self.batch(part).targets.numpy() for part in parts])

    def reshaped(self, shape: tuple[int, ...]) -> OwnSplit:
        return self if self.whole else replace(self, shape=shape)

    def divided(self, fraction: float, seed: int) -> tuple[OwnSplit, OwnSplit]:
        rows = np.arange(len(self)) if self.rows is None else self.rows
        train, held = divided(len(self), fraction, seed)
        return replace(self, rows=rows[train]), replace(self, rows=rows[held])

    @cached_property
    def _checksums(self) -> tuple[int, int]:
        rows = np.unique(np.linspace(0, len(self) - 1, SAMPLED).astype(np.int64))
        batches = [self.batch(np.array([row])) for row in rows]
        return _checksum([batch.inputs for batch in batches]), _checksum([batch.targets for batch in batches])

    @property
    def features_checksum(self) -> int:
        return self._checksums[0]

    @property
    def labels_checksum(self) -> int:
        return self._checksums[1]


def _checksum(tree: Any) -> int:
    checksum = 0
    for tensor in tensors_of(tree):
        checksum = zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(), checksum)
    return checksum


def _form(batch: Any) -> str:
    return f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, list | tuple) else type(batch).__name__
