"""An all-to-all exchange in pieces, of which a few are under way.

It is the setting comm.exchange = "pieces". ``MPI_Alltoallv`` posts whole messages. Two ranks that
send to the same rank share that rank's line, and leave half of their own lines idle. Here a rank
sends a piece to each of the ranks after it in turn (docs/running.md, decision 17).
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from istmpi.comm.backoff import Backoff

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


class Peers(Protocol):
    """Messages between two ranks of a group, as `Communicator` sends them."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def start_send(self, values: np.ndarray, peer: int, tag: int) -> Any: ...
    def start_receive(self, values: np.ndarray, peer: int, tag: int) -> Any: ...
    def test_some(self, requests: list[Any]) -> bool: ...
    def all_done(self, requests: Sequence[Any]) -> bool: ...


@dataclass(frozen=True)
class _Arriving:
    request: Any
    nbytes: int


def exchange_in_pieces(group: Peers, send: Staged, receive: Staged) -> None:
    """Send and receive all messages, with a copy of a rank's message to itself. Collective."""
    rank = group.rank
    _message(receive, rank)[:] = _message(send, rank)
    # Each rank begins with its next rank, so that no two ranks send to the same one at first.
    after = [(rank + step) % group.size for step in range(1, group.size)]
    before = [(rank - step) % group.size for step in range(1, group.size)]
    # All receives are posted at once: a message that is expected needs no buffer of MPI.
    receiving = [
        _Arriving(group.start_receive(piece, peer, TAG), len(piece))
        for peer, piece in _pieces(receive, before)
    ]
    unsent = deque(_pieces(send, after))
    sending: list[Any] = []
    began = time.perf_counter()
    arrived_bytes = 0
    backoff = Backoff()
    while unsent or sending or receiving:
        requests = [arriving.request for arriving in receiving]
        progress = group.test_some(requests + sending)
        if progress:
            for arriving in receiving:
                if group.all_done([arriving.request]):
                    arrived_bytes += arriving.nbytes
            receiving = [item for item in receiving if not group.all_done([item.request])]
            sending = [request for request in sending if not group.all_done([request])]
        # The line's rate is measured as the exchange goes on: hosts differ.
        rate = arrived_bytes / max(time.perf_counter() - began, SHORTEST)
        at_once = max(PIECES_AT_ONCE, rate * AHEAD_SECONDS / PIECE_BYTES)
        while unsent and len(sending) < at_once:
            peer, piece = unsent.popleft()
            sending.append(group.start_send(piece, peer, TAG))
            progress = True
        backoff.wait_unless(progress)


def _message(staged: Staged, rank: int) -> np.ndarray:
    buffer, counts, starts = staged
    return buffer[starts[rank] :][: counts[rank]]


def _pieces(staged: Staged, peers: list[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield a peer and a piece of its message, a piece of each message in turn."""
    messages = {peer: _message(staged, peer) for peer in peers}
    start = 0
    while True:
        messages = {peer: message for peer, message in messages.items() if len(message) > start}
        if not messages:
            return
        for peer, message in messages.items():
            yield peer, message[start : start + PIECE_BYTES]
        start += PIECE_BYTES
