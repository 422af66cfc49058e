"""The sums over ranks of the outputs of a round's batches (`istmpi.methods.joint`)."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import torch

from istmpi import rng
from istmpi.comm import Communicator, Traffic, threads_may_call
from istmpi.comm.allreduce import MeanOverRanks
from istmpi.comm.background import BackgroundRunner
from istmpi.engine.output_sums import NAME, split_steps

if TYPE_CHECKING:
    from istmpi.comm.codec import Wire


class OutputSums:
    """The sums over ranks of the outputs of a round's ``count`` batches, as they were at the
    round's start. The sums arrive in the background, if threads may call MPI."""

    def __init__(self, communicator: Communicator, count: int, wire: Wire | None):
        self._communicator = communicator
        communicator.traffic = Traffic()
        self._wire = wire
        self._messages = list(split_steps(count))
        self._starts: list[torch.Tensor] = []
        self._totals: dict[int, torch.Tensor] = {}
        """The sums that have arrived, by local step; flat, in host memory."""
        self._arrived = [threading.Event() for _ in self._messages]
        self._runner = BackgroundRunner("outputs")
        self._finished = False

    def put(self, outputs: torch.Tensor) -> None:
        """Hand over the outputs of the next batch; they leave with the last batch of a message."""
        self._starts.append(outputs)
        for number, steps in enumerate(self._messages):
            if steps.stop == len(self._starts):
                flat = torch.cat([self._starts[step].reshape(-1) for step in steps]).cpu()
                work = partial(self._add_up, number, flat)
                if threads_may_call():
                    self._runner.put(work)
                else:
                    # A rank that leaves the round must have taken part in all sums.
                    work()

    @property
    def complete(self) -> bool:
        """True if all batches' outputs were handed over."""
        return len(self._starts) == self._messages[-1].stop

    def wait(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's outputs of a batch at the round's start, and the sum of all ranks'."""
        start = self._starts[step]
        number = next(n for n, steps in enumerate(self._messages) if step in steps)
        with self._communicator.waiting_for_itself("outputs"):
            self._arrived[number].wait()
        if step not in self._totals:
            # The thread has failed: `finish` raises its error.
            self._finish_runner()
        total = self._totals[step].view(start.shape)
        return start, total.to(start.device)

    def finish(self, traffic: Traffic) -> None:
        """Wait for all sums that are under way, and count their bytes in ``traffic``."""
        self._finish_runner()
        traffic.add(self._communicator.traffic.bytes)

    def _finish_runner(self) -> None:
        if not self._finished:
            self._finished = True
            self._runner.finish()

    def _add_up(self, number: int, flat: torch.Tensor) -> None:
        """Replace a message's values by their sums over ranks."""
        steps = self._messages[number]
        try:
            forms = {}
            key = 0
            if self._wire:
                forms[NAME] = self._wire.kind
                key = rng.key(self._wire.key, number)
            mean = MeanOverRanks({NAME: flat.nbytes}, self._communicator, forms, key)
            mean.add(NAME, flat)
            mean.finish()
            flat *= self._communicator.size
            sizes = [self._starts[step].numel() for step in steps]
            self._totals.update(zip(steps, flat.split(sizes), strict=True))
        finally:
            self._arrived[number].set()
