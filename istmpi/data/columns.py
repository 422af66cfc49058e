"""A table whose columns are divided among ranks (``data.columns``), as among sites that know
different facts about the same people.

The whole table is the ranks' columns side by side, in the order of the ranks. An example of a rank
is as long as one of the whole table, with zeros in place of the columns of other ranks, which the
rank never reads. The network, its deal and its files are therefore those of the whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain

import numpy as np

from istmpi.data.dataset import Dataset
from istmpi.data.dense.split import DenseSplit
from istmpi.data.moments import Normalisation
from istmpi.engine.partition import blocks
from istmpi.errors import ConfigError

EVEN = "even"
OWN = "own"


@dataclass(eq=False, kw_only=True)
class ColumnSplit(DenseSplit):
    """Rows of which this rank has the columns from number ``first`` on; the others are 0."""

    first: int
    whole: int
    """The number of columns of the whole table."""

    @property
    def read_shape(self) -> tuple[int, ...]:
        return (self.whole,)

    def _read(self, indices: np.ndarray, key: int | None) -> np.ndarray:
        x = self.features(indices)
        # Zeros also after normalisation: a column that is 0 adds nothing to a layer's sums.
        rows = np.zeros((len(x), self.whole), np.float32)
        rows[:, self.first : self.first + x.shape[1]] = x
        return rows

    def with_normalisation(self, normalisation: Normalisation | None) -> DenseSplit:
        """Return the split with its part of a ``normalisation`` of the whole table."""
        if normalisation is not None:
            part = slice(self.first, self.first + self.x.shape[1])
            normalisation = Normalisation(
                mean=normalisation.mean[part],
                std=normalisation.std[part],
                offset=_cut(normalisation.offset, part),
            )
        return super().with_normalisation(normalisation)


@dataclass(frozen=True)
class Columns:
    """The number, names and normalisation of a table's columns."""

    count: int
    names: Sequence[str | None] | None = None
    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    offset: np.ndarray | None = None

    @staticmethod
    def from_data(data: Dataset) -> Columns:
        return Columns(
            count=data.features,
            names=data.reading.get("columns"),
            mean=data.mean,
            std=data.std,
            offset=data.offset,
        )

    def divide(self, counts: Sequence[int]) -> Iterator[Columns]:
        """Yield the columns of each rank, of which there are ``counts``."""
        first = 0
        for count in counts:
            part = slice(first, first + count)
            names = self.names
            if names is not None:
                names = names[part]
            yield Columns(
                count=count,
                names=names,
                mean=_cut(self.mean, part),
                std=_cut(self.std, part),
                offset=_cut(self.offset, part),
            )
            first += count

    @staticmethod
    def join(parts: Sequence[Columns]) -> Columns:
        """Return the columns of all ranks, side by side."""
        counts = [part.count for part in parts]
        # Names are compared by their places, so they are known of all columns or of none.
        names = None
        named = [part.names for part in parts if part.names is not None]
        if len(named) == len(parts):
            names = [*chain.from_iterable(named)]
        return Columns(
            count=sum(counts),
            names=names,
            mean=_join([part.mean for part in parts], counts, default=0),
            std=_join([part.std for part in parts], counts, default=1),
            offset=_join([part.offset for part in parts], counts, default=0),
        )


def require_table(data: Dataset) -> None:
    """Raise ConfigError unless the data are a table, whose columns can be divided."""
    is_table = isinstance(data.train, DenseSplit) and len(data.shape) == 1
    if not is_table:
        raise ConfigError(
            f"data.columns needs a table, with one row of numbers for each example, but "
            f"{data.source} is of kind {data.kind}. Leave it out, or give a table."
        )


def take_part(data: Dataset, rank: int, ranks: int) -> Dataset:
    """Return the columns of a table that ``rank`` gets if it is divided evenly, without the others.

    Raises ConfigError if there are too few.
    """
    if data.features < ranks:
        raise ConfigError(
            f"{data.source} has {data.features} columns for {ranks} ranks; each rank needs at "
            "least one. Use fewer ranks."
        )
    counts = blocks(data.features, ranks)
    first = sum(counts[:rank])
    part = slice(first, first + counts[rank])
    splits = {}
    for name, split in data.splits.items():
        assert isinstance(split, DenseSplit), split
        splits[name] = replace(
            split,
            x=split.x[:, part],
            mean=_cut(split.mean, part),
            std=_cut(split.std, part),
            offset=_cut(split.offset, part),
            shift=_cut(split.shift, part),
            shape=(counts[rank],),
            input_shape=(),
        )
    columns = [*Columns.from_data(data).divide(counts)][rank]
    return _with_columns(replace(data, splits=splits), columns)


def place_columns(data: Dataset, parts: Sequence[Columns], rank: int) -> Dataset:
    """Return the table of all ranks' columns ``parts``, of which ``rank`` has those of ``data``."""
    whole = Columns.join(parts)
    counts = tuple(part.count for part in parts)
    splits = {}
    for name, split in data.splits.items():
        assert isinstance(split, DenseSplit), split
        present = {field.name: getattr(split, field.name) for field in fields(DenseSplit)}
        present["input_shape"] = ()
        splits[name] = ColumnSplit(**present, first=sum(counts[:rank]), whole=whole.count)
    return _with_columns(replace(data, splits=splits, columns=counts), whole)


def keep_labels(data: Dataset, labels_on: int, rank: int) -> Dataset:
    """Return the data of ``rank``, without labels unless it is the rank ``labels_on``."""
    splits = dict(data.splits)
    if rank != labels_on:
        for name, split in data.splits.items():
            assert isinstance(split, DenseSplit), split
            # Zeros without memory.
            zeros = np.broadcast_to(split.y.dtype.type(0), split.y.shape)
            splits[name] = replace(split, y=zeros)
    return replace(data, splits=splits, labels_on=labels_on)


def _with_columns(data: Dataset, columns: Columns) -> Dataset:
    """Return the data with the facts of ``columns`` in place of those of its own columns."""
    reading = {**data.reading, "columns": columns.names}
    if columns.names is None:
        del reading["columns"]
    return replace(
        data,
        shape=(columns.count,),
        mean=columns.mean,
        std=columns.std,
        offset=columns.offset,
        reading=reading,
    )


def _cut(values: np.ndarray | None, part: slice) -> np.ndarray | None:
    if values is None:
        return None
    return values[part]


def _join(
    parts: Sequence[np.ndarray | None], counts: Sequence[int], default: float
) -> np.ndarray | None:
    """Return all ranks' values, with the ``default`` of ranks without any; None if none has
    values."""
    if all(part is None for part in parts):
        return None
    filled = []
    for part, count in zip(parts, counts, strict=True):
        if part is None:
            part = np.full(count, default, np.float32)
        filled.append(part)
    return np.concatenate(filled)
