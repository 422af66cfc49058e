"""An all-to-all exchange in pieces, of which a few are under way: the setting comm.exchange =
"pieces".

``MPI_Alltoallv`` posts whole messages. Two ranks that send to the same rank share that rank's line,
and leave half of their own lines idle. Here a rank sends a piece to each of the ranks after it in
turn (docs/running.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from istmpi.comm.backoff import Backoff

if TYPE_CHECKING:
    from istmpi.comm.communicator import Communicator

Staged = tuple[np.ndarray, list[int], list[int]]
"""A byte buffer, the number of bytes of each rank's message in the buffer, and the start of each
message."""

PIECE_BYTES = 2**18
"""Bytes of a piece: much more than a message's overhead, much less than a slow line carries in a
second."""
PIECES_AT_ONCE = 4
"""The least number of pieces that a rank has under way, so that its line is never idle."""
AHEAD_SECONDS = 0.15
"""A fast line has the pieces of this many seconds under way. More pieces would hinder each
other."""
SHORTEST = 1e-6
"""The least seconds that a rate is computed from: a coarse clock may show none."""
TAG = 0


def exchange_in_pieces(communicator: Communicator, send: Staged, receive: Staged) -> None:
    """Send and receive all messages, with a copy of a rank's message to itself. Collective."""
    rank, ranks = communicator.rank, communicator.size
    _message(receive, rank)[:] = _message(send, rank)
    behind = [(rank + step) % ranks for step in range(1, ranks)]
    before = [(rank - step) % ranks for step in range(1, ranks)]
    receiving = [
        (communicator.start_receive(piece, peer, TAG), len(piece))
        for peer, piece in _pieces(receive, before)
    ]
    sending: list[Any] = []
    waiting, all_sent = _pieces(send, behind), False
    began, arrived, backoff = time.perf_counter(), 0, Backoff()
    while not all_sent or sending or receiving:
        progress = communicator.test_some([request for request, _ in receiving] + sending)
        if progress:
            arrived += sum(
                length for request, length in receiving if communicator.all_done([request])
            )
            receiving = [posted for posted in receiving if not communicator.all_done(posted[:1])]
            sending = [request for request in sending if not communicator.all_done([request])]
        rate = arrived / max(time.perf_counter() - began, SHORTEST)
        at_once = max(PIECES_AT_ONCE, rate * AHEAD_SECONDS / PIECE_BYTES)
        while not all_sent and len(sending) < at_once:
            peer, piece = next(waiting, (None, None))
            if peer is None:
                all_sent = True
            else:
                sending.append(communicator.start_send(piece, peer, TAG))
            progress = True
        backoff.wait_unless(progress)


def _message(staged: Staged, rank: int) -> np.ndarray:
    buffer, counts, starts = staged
    return buffer[starts[rank] :][: counts[rank]]


def _pieces(staged: Staged, peers: list[int]) -> Iterator[tuple[int, np.ndarray]]:
    messages = {peer: message for peer in peers if len(message := _message(staged, peer))}
    start = 0
    while messages:
        for peer, message in messages.items():
            yield peer, message[start : start + PIECE_BYTES]
        start += PIECE_BYTES
        messages = {peer: message for peer, message in messages.items() if len(message) > start}
