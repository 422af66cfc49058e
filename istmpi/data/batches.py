"""The training rows that each stream draws from, and the batches of a stream.

    shared      every stream draws from all rows
    sharded     disjoint random shards that cover all rows; their sizes differ by at most one
    by-label    disjoint shards that cover all rows; the streams' shares of a class are drawn from
                a symmetric Dirichlet distribution with parameter alpha (Hsu et al. 2019, arXiv
                1909.06335)
    label-shards    rows sorted by label are cut into equal shards, of which every stream gets
                the same number at random (McMahan et al. 2017, arXiv 1602.05629, section 3)
    local       every stream has its own file and draws from all of it

Every stream computes its rows, and any batch, without communication.
"""

from collections.abc import Sized
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from istmpi import rng
from istmpi.data.batch import Batch
from istmpi.data.dataset import Split
from istmpi.errors import ConfigError, DataError


class Batches:
    """The batches of a stream: passes over ``rows`` [n], joined end to end, each in a new random
    order.

    Batch k has positions k * batch .. (k + 1) * batch - 1 of the joined passes. Orders depend only
    on ``seed`` and ``stream``.
    """

    def __init__(self, split: Split, rows: np.ndarray, batch: int, seed: int, stream: int):
        assert batch > 0 and len(rows) > 0, (batch, len(rows))
        self.batch = batch
        self._split = split
        self._rows = np.asarray(rows, dtype=np.int64)
        self._seed = seed
        self._stream = stream
        self._cached: tuple[int, np.ndarray] | None = None
        # One thread: a user's data set need not be safe for several.
        self._reader = ThreadPoolExecutor(1, "reader")
        self._reads_begun: dict[int, Future] = {}
        """Reads of batches that the thread has begun or will begin, by their steps; `at` takes them
        out."""

    def at(self, step: int) -> Batch:
        """Return a step's batch; a thread reads ``split.ahead`` more. A failed batch raises its
        error at its step."""
        if not self._split.ahead:
            return self._split.batch(self.indices(step), self._key(step))
        steps = range(step, step + self._split.ahead + 1)
        # After a return to an earlier round, batches that were read ahead are not needed.
        for passed in self._reads_begun.keys() - set(steps):
            self._reads_begun.pop(passed).cancel()
        for coming in steps:
            if coming not in self._reads_begun:
                self._reads_begun[coming] = self._reader.submit(
                    self._split.batch, self.indices(coming), self._key(coming)
                )
        return self._reads_begun.pop(step).result()

    @property
    def labels(self) -> np.ndarray:
        return self._split.labels()[self._rows]

    @property
    def examples(self) -> int:
        return len(self._rows)

    @property
    def in_a_pass(self) -> int:
        return -(-len(self._rows) // self.batch)

    def read_from_pass(self, number: int, place: int) -> Batch:
        """Return batch ``place`` of pass ``number``; the last batch of a pass may be smaller."""
        rows = self._order(number)[place * self.batch : (place + 1) * self.batch]
        return self._split.batch(rows, self._key(number * self.in_a_pass + place))

    def indices(self, step: int) -> np.ndarray:
        length = len(self._rows)
        position = step * self.batch
        end = position + self.batch
        parts = []
        # A batch may be larger than a pass, and then has rows of several.
        while position < end:
            number, start = divmod(position, length)
            part = self._order(number)[start : start + end - position]
            parts.append(part)
            position += len(part)
        return np.concatenate(parts)

    def _key(self, step: int) -> int:
        # By step and not by example, so that an example changes anew in each pass.
        return rng.key(self._seed, "batch", self._stream, step)

    def _order(self, number: int) -> np.ndarray:
        # Steps come in order: an order is drawn once for each pass.
        if self._cached is None or self._cached[0] != number:
            key = rng.key(self._seed, "batches", self._stream, number)
            self._cached = number, self._rows[rng.permutation(len(self._rows), key)]
        return self._cached[1]


PLACEMENTS = ("shared", "sharded", "by-label", "label-shards", "local")
BY_CLASS = ("by-label", "label-shards")
"""Placements that need the class of each example."""


def place(
    placement: str,
    labels: Sized,
    stream: int,
    streams: int,
    seed: int,
    alpha: float = 1.0,
    shards: int = 2,
) -> np.ndarray:
    """Return the rows from which ``stream`` of ``streams`` draws: [m] int64, ascending, the same on
    every machine.

    ``labels``: those of all rows; only `BY_CLASS` read more than their number, and raise
    ConfigError without classes. ``alpha`` is for ``by-label``. ``shards``: those of a stream with
    ``label-shards``. Raises DataError if the stream has no rows.
    """
    assert 0 <= stream < streams and placement in PLACEMENTS, (stream, streams, placement)
    if placement == "sharded":
        rows = _draw_shard(len(labels), stream, streams, seed)
    elif placement in BY_CLASS:
        rows = _draw_by_class(placement, labels, streams, seed, alpha, shards)[stream]
    else:
        rows = np.arange(len(labels))
    _require_rows(rows, placement, stream, streams, len(labels))
    return rows


def count_rows(
    placement: str, labels: Sized, streams: int, seed: int, alpha: float = 1.0, shards: int = 2
) -> set[int]:
    """Return the numbers of rows from which ``streams`` draw, with the arguments of `place`.

    Raises its errors only for `BY_CLASS`; with sharded placement a stream without rows counts 0.
    """
    length = len(labels)
    if placement in BY_CLASS:
        by_stream = _draw_by_class(placement, labels, streams, seed, alpha, shards)
        for stream, rows in enumerate(by_stream):
            _require_rows(rows, placement, stream, streams, length)
        return {len(rows) for rows in by_stream}
    if placement == "sharded":
        return {length // streams, -(-length // streams)}
    return {length}


def _require_rows(rows: np.ndarray, placement: str, stream: int, streams: int, length: int) -> None:
    if len(rows) > 0:
        return
    cure = "use fewer ranks"
    if placement == "by-label":
        cure = "raise alpha, change the seed or use fewer ranks"
    if placement == "label-shards":
        cure = "use fewer shards or fewer ranks"
    raise DataError(
        f"rank {stream} of {streams} gets no training example of {length} with {placement} "
        f"placement; {cure}."
    )


def _draw_shard(length: int, stream: int, streams: int, seed: int) -> np.ndarray:
    order = rng.permutation(length, rng.key(seed, "placement", "sharded"))
    return np.sort(order[stream::streams])


def _draw_by_class(
    placement: str, labels: Sized, streams: int, seed: int, alpha: float, shards: int
) -> list[np.ndarray]:
    """Return the rows of each stream."""
    assert isinstance(labels, np.ndarray), labels
    if labels.ndim != 1:
        raise ConfigError(
            f"{placement} placement needs classes, but this is a regression task. Use sharded "
            "placement."
        )
    if placement == "by-label":
        return _draw_shards_by_label(labels, streams, seed, alpha)
    parts = np.array_split(np.argsort(labels, kind="stable"), shards * streams)
    dealt = rng.permutation(len(parts), rng.key(seed, "placement", "label-shards"))
    by_stream = []
    for stream in range(streams):
        of_stream = [parts[number] for number in dealt[stream::streams]]
        by_stream.append(np.sort(np.concatenate(of_stream)))
    return by_stream


def _draw_shards_by_label(
    labels: np.ndarray, streams: int, seed: int, alpha: float
) -> list[np.ndarray]:
    shards: list[list[np.ndarray]] = [[] for _ in range(streams)]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rows = rows[rng.permutation(len(rows), rng.key(seed, "placement", "rows", int(label)))]
        shares = _draw_shares(alpha, streams, rng.key(seed, "placement", "shares", int(label)))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        for shard, part in zip(shards, np.split(rows, cuts), strict=True):
            shard.append(part)
    return [np.sort(np.concatenate(shard)) for shard in shards]


def _draw_shares(alpha: float, streams: int, key: int) -> np.ndarray:
    # RandomState's numbers are the same in all versions of NumPy, those of a Generator are not.
    state = np.random.RandomState(key & 0xFFFFFFFF)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = state.dirichlet(np.full(streams, alpha))
    if not np.isfinite(shares).all():
        # A tiny alpha underflows to 0 / 0; its limit is that one stream takes the whole class.
        shares = np.eye(streams)[state.randint(streams)]
    return shares
