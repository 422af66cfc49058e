"""Data sets as training sees them: named splits of examples that are read by number."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np

from istmpi import rng
from istmpi.data.batch import Batch
from istmpi.data.holdout import split_indices
from istmpi.data.moments import Normalisation
from istmpi.data.text.tokenizer import Tokenizer
from istmpi.errors import ConfigError, DataError
from istmpi.tasks import TASKS, Task
from istmpi.units import list_first

SPLITS = ("train", "test", "validation")
"""Names of splits. Every data set has train and test."""
WORDS = {
    "train": ("train", "training", "trn"),
    "test": ("test", "testing", "tst"),
    "validation": ("validation", "valid", "val", "dev"),
}
"""Words that name each split, alone or as a part of the name of a folder, file or array."""
_CONVENTIONS = {
    "counted_from": "its features were counted from {}, but from {}",
    "type": "its features are {}, but {}",
}


@dataclass(eq=False, kw_only=True)
class Split(ABC):
    """Examples that are read by number, without labels, shape or normalisation unless a class adds
    them."""

    ahead: int = 0
    """The number of batches that a thread reads ahead."""
    chosen: np.ndarray | None = None
    """The row numbers of this split's examples in the data; None for all rows."""

    def find_rows(self, indices: np.ndarray) -> np.ndarray:
        if self.chosen is None:
            return indices
        return self.chosen[indices]

    @abstractmethod
    def batch(self, indices: np.ndarray, key: int | None = None) -> Batch:
        """Return the examples ``indices`` [b] as a network takes them; ``key`` seeds random
        changes."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    def labels(self) -> np.ndarray:
        """Return a read-only target for each example: zeros [n], unless the split's class overrides
        the method."""
        # Zeros without memory: text may have billions of windows.
        return np.broadcast_to(np.int64(0), len(self))

    def reshape(self, shape: tuple[int, ...]) -> Split:
        return self

    def resize(self, side: int) -> Split:
        assert not side, side
        return self

    def with_normalisation(self, normalisation: Normalisation | None) -> Split:
        return self

    def with_target_offset(self, present: np.ndarray | None, target: np.ndarray | None) -> Split:
        """Return a split whose targets have the offset ``target`` in place of ``present``."""
        return self

    def with_standard_targets(self, targets: tuple[np.ndarray, np.ndarray] | None) -> Split:
        return self

    def hold_out(self, fraction: float, seed: int) -> tuple[Split, Split]:
        """Return the remaining examples and a held-out ``fraction``, drawn by ``seed``; nothing is
        copied.

        The fraction of each class of `balanced_classes` is held out. Raises ConfigError if a part
        is empty.
        """
        train, held = split_indices(len(self), fraction, seed, self.balanced_classes())
        return (
            replace(self, chosen=self.find_rows(train)),
            replace(self, chosen=self.find_rows(held)),
        )

    def balanced_classes(self) -> np.ndarray | None:
        """Return the class of each example ``[n]``, which `hold_out` balances; None for none."""
        return None

    @property
    @abstractmethod
    def features_checksum(self) -> int:
        """CRC-32 of the inputs before augmentation, or of a fixed sample of them."""

    @cached_property
    def labels_checksum(self) -> int:
        return add_to_checksum(0, self.labels())


def add_to_checksum(checksum: int, array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data, checksum)


def checksum_rows(
    rows: np.ndarray,
    read: Callable[[np.ndarray], Iterable[np.ndarray]],
    step: int = 64,
    first: int = 0,
) -> int:
    """Compute the CRC-32 of what ``read`` returns for ``rows``, ``step`` of them at a time."""
    checksum = first
    for start in range(0, len(rows), step):
        for array in read(rows[start : start + step]):
            checksum = add_to_checksum(checksum, array)
    return checksum


def draw_sample(count: int, limit: int, size: int = 0) -> np.ndarray:
    """Return the numbers below ``count`` or, above ``limit``, a fixed sample of ``size`` (0:
    ``limit``) of them."""
    if count <= limit:
        return np.arange(count)
    # Every rank and every later run must draw the same rows, so the key has no seed.
    numbers = rng.bits(rng.key("fingerprint"), 0, size or limit) % np.uint64(count)
    return np.sort(numbers).astype(np.int64)


def have_same_form(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Return True if two shapes are equal without axes of length 1, or have the same size and one
    of them is flat."""
    # A network of numbers takes an image flat, and an axis of length 1 changes nothing.
    first = without_ones(first)
    second = without_ones(second)
    is_flat = min(len(first), len(second)) <= 1
    return first == second or (is_flat and prod(first) == prod(second))


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def describe_difference(given: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Describe the first convention that the ``reading`` of two data sets states differently; empty
    text if none."""
    for key, text in _CONVENTIONS.items():
        if key in given and key in expected and given[key] != expected[key]:
            return text.format(given[key], expected[key])
    # A category is a feature, which has the same place in both or means something else. A column
    # of categories in one alone has another number of features, or is in another rank's file.
    categories = _list_categories(given)
    for name, in_training in _list_categories(expected).items():
        if categories.get(name, in_training) != in_training:
            return (
                f"its column {_show_column(name)} has the categories "
                f"{list_first([*map(str, categories[name])])}, but the categories "
                f"{list_first([*map(str, in_training)])}"
            )
    # Only tables have columns, and files of earlier versions do not state them.
    if "columns" not in given or "columns" not in expected:
        return ""
    pairs = zip_longest(given["columns"] or (), expected["columns"] or ())
    for number, (name, other) in enumerate(pairs):
        if name != other:
            return f"feature {number} is {_show_column(name)}, but {_show_column(other)}"
    return ""


def _list_categories(reading: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Return the categories of each column of categories."""
    encoding = reading.get("encoding")
    if not isinstance(encoding, Mapping):
        return {}
    categories = encoding.get("categories")
    if not isinstance(categories, Mapping):
        return {}
    return categories


def _show_column(name: str | None) -> str:
    return "without a name" if name is None else repr(name)


def require_finite(x: np.ndarray, what: str, source: str, first: int = 0) -> None:
    """Raise DataError if x [b, features] is not finite in float32. The message calls row i ``what``
    ``first`` + i."""
    if x.dtype.kind != "f":
        return
    # A float64 above the largest of float32 becomes infinite, and is found below.
    with np.errstate(over="ignore"):
        finite = np.isfinite(x.astype(np.float32, copy=False))
    if not finite.all():
        row, feature = np.argwhere(~finite)[0]
        raise DataError(
            f"{source}: {what} {first + row} has {x[row, feature]} as feature {feature}; features "
            "must be finite, at most 3.4e38 (float32). Remove, fill or scale such examples first."
        )


@dataclass(frozen=True)
class Dataset:
    """A data set that is ready to train on.

    ``shape`` is the shape of an example, channels first. ``outputs`` is the number of classes,
    tokens, labels or numbers to predict. The splits normalise with ``mean`` and ``std`` [features].
    """

    splits: Mapping[str, Split]
    task: str
    shape: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...] | None
    source: str
    kind: str
    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    targets: tuple[np.ndarray, np.ndarray] | None = None
    """The mean and deviation ``[outputs]`` by which batches standardise numbers to predict; None if
    not used."""
    bytes_per_token: float | None = None
    tokenizer: Tokenizer | None = None
    output_names: tuple[str, ...] | None = None
    assumed: tuple[str, ...] = ()
    """Assumptions about an .npz that is used without `istmpi prepare`, as texts."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    offset: np.ndarray | None = None
    """Float64 ``[features]`` that was subtracted from examples; ``target_offset`` is the same for
    targets."""
    target_offset: np.ndarray | None = None
    own_task: type[Task] | None = None
    network: type | None = None
    example: tuple[Any, ...] | None = None
    """Inputs of a sample batch, perhaps trees; only for data that ``shape`` does not describe."""
    columns: tuple[int, ...] = ()
    """The number of columns of each rank, if ranks have different columns of the same rows; empty
    otherwise."""
    labels_on: int | None = None
    """The only rank that has labels; None if all ranks have them."""

    def require_split(self, split: str, source: object) -> None:
        if split not in self.splits:
            raise DataError(f"{source} has no split {split}; it has {', '.join(self.splits)}.")

    @property
    def scoring(self) -> type[Task]:
        return self.own_task or TASKS[self.task]

    @property
    def features(self) -> int:
        return prod(self.shape)

    @property
    def train(self) -> Split:
        return self.splits["train"]

    @property
    def test(self) -> Split:
        return self.splits["test"]

    def with_normalisation(self, normalisation: Normalisation | None) -> Dataset:
        splits = {
            name: split.with_normalisation(normalisation) for name, split in self.splits.items()
        }
        # Examples as they are stored still lack their offset.
        mean, std, offset = normalisation or (None, None, self.offset)
        return replace(self, splits=splits, mean=mean, std=std, offset=offset)

    def with_target_offset(self, offset: np.ndarray | None) -> Dataset:
        splits = {
            name: split.with_target_offset(self.target_offset, offset)
            for name, split in self.splits.items()
        }
        return replace(self, splits=splits, target_offset=offset)

    def with_standard_targets(self, targets: tuple[np.ndarray, np.ndarray] | None) -> Dataset:
        splits = {name: split.with_standard_targets(targets) for name, split in self.splits.items()}
        return replace(self, splits=splits, targets=targets)

    def reshape(self, shape: tuple[int, ...]) -> Dataset:
        return replace(
            self, splits={name: split.reshape(shape) for name, split in self.splits.items()}
        )

    def with_validation(self, fraction: float, seed: int) -> Dataset:
        """Hold out a ``fraction`` of the training examples as validation, drawn by ``seed``.

        Raises ConfigError if there is a validation split already.
        """
        if not fraction:
            return self
        if "validation" in self.splits:
            raise ConfigError(
                f"data.validation = {fraction}, but {self.source} has a validation split. Leave "
                "data.validation out to use it."
            )
        train, validation = self.train.hold_out(fraction, seed)
        return replace(self, splits={**self.splits, "train": train, "validation": validation})
