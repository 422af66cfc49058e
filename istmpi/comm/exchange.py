"""Every rank's message to every other between hosts, in pieces, of which a few are under way.

``MPI_Alltoallv`` posts whole messages: where two ranks send to a third, each of them gets half of its line, and its own
is half idle until they are through. Here a rank sends to those behind it in turn, a piece to each, and has a few under
way; so all lines carry something until the end. What it is worth: benchmarks/results/exchange-4.md, exchange-8.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from istmpi.comm.communicator import Communicator, Staged

PIECE_BYTES = 2**18
"""Long enough for a message's overhead not to count, and short against what a slow line carries in a second."""
PIECES_AT_ONCE = 4
"""A rank's pieces that are on their way at least, so that its line is never idle."""
AHEAD_SECONDS = 0.15
"""And as many as have arrived in so long: more of them hinder each other again."""
TAG = 0


class Exchange:
    """Messages on their way; whoever calls `advance` often enough moves them.

    ``send`` and ``receive``: a byte buffer each, not to be touched until it is `done`, with the count and the start of
    each rank's message. What a rank keeps for itself is copied.
    """

    def __init__(self, communicator: Communicator, send: Staged, receive: Staged):
        rank, ranks = communicator.rank, communicator.size
        self._communicator = communicator
        _message(receive, rank)[:] = _message(send, rank)
        behind = [(rank + step) % ranks for step in range(1, ranks)]
        before = [(rank - step) % ranks for step in range(1, ranks)]
        self._sending: list[Any] = []
        self._receiving = [
            (communicator.start_receive(piece, peer, TAG), len(piece)) for peer, piece in _pieces(receive, before)
        ]
        self._began, self._arrived = time.perf_counter(), 0
        self._waiting = _pieces(send, behind)
        self._all_sent = False

    @property
    def done(self) -> bool:
        return self._all_sent and not self._sending and not self._receiving

    def advance(self) -> bool:
        """Do what can be done now; whether that was anything."""
        communicator = self._communicator
        moved = communicator.test_some([request for request, _ in self._receiving] + self._sending)
        if moved:
            self._arrived += sum(length for request, length in self._receiving if communicator.all_done([request]))
            self._receiving = [one for one in self._receiving if not communicator.all_done(one[:1])]
            self._sending = [one for one in self._sending if not communicator.all_done([one])]
        rate = self._arrived / (time.perf_counter() - self._began)
        at_once = max(PIECES_AT_ONCE, rate * AHEAD_SECONDS / PIECE_BYTES)
        while not self._all_sent and len(self._sending) < at_once:
            peer, piece = next(self._waiting, (None, None))
            if peer is None:
                self._all_sent = True
            else:
                self._sending.append(communicator.start_send(piece, peer, TAG))
            moved = True
        return moved


def _message(staged: Staged, rank: int) -> np.ndarray:
    buffer, counts, starts = staged
    return buffer[starts[rank] :][: counts[rank]]


def _pieces(staged: Staged, peers: list[int]) -> Iterator[tuple[int, np.ndarray]]:
    """The pieces of all peers' messages, one of each in turn."""
    messages = {peer: message for peer in peers if len(message := _message(staged, peer))}
    start = 0
    while messages:
        for peer, message in messages.items():
            yield peer, message[start : start + PIECE_BYTES]
        start += PIECE_BYTES
        messages = {peer: message for peer, message in messages.items() if len(message) > start}
