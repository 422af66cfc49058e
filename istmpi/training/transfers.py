"""ISTMPI_DEBUG=1: a line on stderr for each rank, round and transfer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from istmpi.comm import Communicator, Sent
from istmpi.comm.clock import Clock

VARIABLE = "ISTMPI_DEBUG"


@contextmanager
def told(communicator: Communicator, clock: Clock, rounds_done: Callable[[], int]) -> Iterator[None]:
    """Print the transfers of this rank meanwhile, where the environment asks for it."""
    with ExitStack() as until_then:
        if os.environ.get(VARIABLE, "0") not in ("", "0"):
            lines = TransferLines(communicator.rank, rounds_done)
            until_then.enter_context(following(communicator, clock, lines.phase, lines.sent))
        yield


@contextmanager
def following(
    communicator: Communicator,
    clock: Clock,
    phase: Callable,
    sent: Callable[[Sent], None],
) -> Iterator[None]:
    """Call two functions for every phase and for every message in them meanwhile."""
    clock.followers.append(phase)
    communicator.traffic.followers.append(sent)
    try:
        yield
    finally:
        clock.followers.remove(phase)
        communicator.traffic.followers.remove(sent)


class TransferLines:
    """Prints a line for all calls of a kind in a phase, once the phase is left; it has no message of its own."""

    def __init__(self, rank: int, rounds_done: Callable[[], int]):
        self._rank, self._rounds_done = rank, rounds_done
        self._inside: list[list[Sent]] = [[]]
        """Messages of each of the phases that are open, the innermost last."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Between entering and leaving a phase."""
        self._inside.append([])
        round = self._rounds_done() + (name not in ("evaluate", "save"))
        try:
            yield
        finally:
            self._print(round, name, self._inside.pop())

    def sent(self, transfer: Sent) -> None:
        """Take note of a call."""
        self._inside[-1].append(transfer)
        if len(self._inside) == 1:
            self._print(self._rounds_done(), "between rounds", [self._inside[0].pop()])

    def _print(self, round: int, phase: str, transfers: list[Sent]) -> None:
        for call in dict.fromkeys(transfer.call for transfer in transfers):
            these = [transfer for transfer in transfers if transfer.call == call]
            nbytes = sum(transfer.bytes for transfer in these)
            seconds = sum(transfer.ended - transfer.began for transfer in these)
            rate = f"{nbytes / seconds / 1e6:.1f}" if seconds > 0 else "-"
            times = f" x {len(these)}" * (len(these) > 1)
            figures = f"{nbytes} bytes, {seconds:.6f} s, {rate} MB/s"
            # In one piece, for ranks share the line.
            sys.stderr.write(f"[rank {self._rank}] round {round}, {phase}: {call}{times}, {figures}\n")
        sys.stderr.flush()
