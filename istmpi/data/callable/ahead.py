"""Batches that are read while the step before them computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class ReadAhead:
    """A thread that reads at most ``ahead`` batches behind the one that is asked for.

    ``reading`` gives the work of a step. What fails in the thread is raised at the step that wants the batch.
    """

    def __init__(self, reading: Callable[[int], Callable[[], Any]], ahead: int):
        self._reading, self._ahead = reading, ahead
        self._thread = ThreadPoolExecutor(1, "reader")
        self._waiting: dict[int, Future] = {}

    def at(self, step: int) -> Any:
        steps = range(step, step + self._ahead + 1)
        for passed in self._waiting.keys() - set(steps):
            self._waiting.pop(passed).cancel()
        for each in steps:
            if each not in self._waiting:
                self._waiting[each] = self._thread.submit(self._reading(each))
        return self._waiting.pop(step).result()
