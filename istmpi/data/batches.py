"""The batches of a stream, any of which can be computed at any time."""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from istmpi import rng
from istmpi.data.batch import Batch
from istmpi.data.dataset import Split


class Batches:
    """The batches of a stream: its ``rows`` [n] in a fresh order on every pass, the passes laid end to end.

    Batch k is positions k * batch .. (k + 1) * batch - 1 of that, a pure function of (seed, stream, step).
    """

    def __init__(self, split: Split, rows: np.ndarray, batch: int, seed: int, stream: int):
        assert batch > 0 and len(rows) > 0, (batch, len(rows))
        self.batch = batch
        self._split = split
        self._rows = np.asarray(rows, dtype=np.int64)
        self._seed, self._stream = seed, stream
        self._cached: tuple[int, np.ndarray] | None = None
        self._reader = ThreadPoolExecutor(1, "reader")
        self._waiting: dict[int, Future] = {}

    def at(self, step: int) -> Batch:
        """Return a batch; a thread reads those behind it where the split says so, and its errors are raised at their
        step."""
        if not self._split.ahead:
            return self._split.batch(self.indices(step), self._key(step))
        steps = range(step, step + self._split.ahead + 1)
        for passed in self._waiting.keys() - set(steps):
            self._waiting.pop(passed).cancel()
        for each in steps:
            if each not in self._waiting:
                self._waiting[each] = self._reader.submit(self._split.batch, self.indices(each), self._key(each))
        return self._waiting.pop(step).result()

    @property
    def labels(self) -> np.ndarray:
        return self._split.labels()[self._rows]

    @property
    def examples(self) -> int:
        return len(self._rows)

    @property
    def in_a_pass(self) -> int:
        return -(-len(self._rows) // self.batch)

    def of_pass(self, number: int, place: int) -> Batch:
        """Return batch ``place`` of a pass, whose last batch is the rest."""
        rows = self._order(number)[place * self.batch : (place + 1) * self.batch]
        return self._split.batch(rows, self._key(number * self.in_a_pass + place))

    def indices(self, step: int) -> np.ndarray:
        """Return the rows of the split that make batch ``step``: [batch] int64."""
        length = len(self._rows)
        position, end = step * self.batch, (step + 1) * self.batch
        parts = []
        while position < end:
            number, start = divmod(position, length)
            part = self._order(number)[start : start + end - position]
            parts.append(part)
            position += len(part)
        return np.concatenate(parts)

    def _key(self, step: int) -> int:
        return rng.key(self._seed, "batch", self._stream, step)

    def _order(self, number: int) -> np.ndarray:
        if self._cached is None or self._cached[0] != number:
            key = rng.key(self._seed, "batches", self._stream, number)
            self._cached = number, self._rows[rng.permutation(len(self._rows), key)]
        return self._cached[1]
