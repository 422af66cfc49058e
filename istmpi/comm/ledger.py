"""Counts what a rank sends, by purpose: rounds, evaluations, checkpoints, and the start of a job.

The purpose follows the clock's phases. From the first round on, what is neither an evaluation nor a
checkpoint belongs to the rounds.

Bytes are counted where they are handed to MPI, and each collective call once. So the purposes add
up to everything that a rank sends, objects of agreements included. Headers of the network, and the
messages that MPI itself sends, do not count: `estimate_line_bytes` adds them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import ceil, log2

from istmpi.comm.at_once import MOST_RANKS
from istmpi.comm.resends import Resends

START = "start"
ROUNDS = "rounds"
EVALUATION = "evaluation"
SAVING = "saving"
PURPOSES = (START, ROUNDS, EVALUATION, SAVING)
GROUP = "group"
"""The purpose of bytes that members of a replica group send to each other. Only a leader's ledger
has this purpose, and counts all of them."""
_BY_PHASE = {"evaluate": EVALUATION, "save": SAVING}

SEGMENT_BYTES = 1448
"""The most payload of a TCP segment in an Ethernet frame of 1,514 bytes."""
SEGMENT_FRAME = 66
"""Bytes of a segment's headers: of Ethernet (14), IP (20) and TCP (32)."""
SEGMENT_HEADERS = SEGMENT_FRAME + SEGMENT_FRAME / 2
"""Bytes that a full segment adds: its headers and an acknowledgement, which is as long, for every
two segments."""
RESENT_BYTES = SEGMENT_BYTES + SEGMENT_FRAME
"""Bytes of a segment that TCP sends again: almost all of them are full (decision 95)."""
MESSAGE_BYTES = 73
"""Bytes that a message adds beside its payload's: its envelope and the headers of its segment."""
HOST_BYTES = 10_000
"""Bytes that a host sends to mpirun in a job: MPI's start and end."""
PAIR_BYTES = 8_000
"""Bytes that a rank sends to each other one: addresses and connections.

These three were measured with MPICH on two and four hosts, and checked on eight (decision 95).
"""


@dataclass
class Traffic:
    """Bytes of arrays that a rank has sent."""

    bytes: int = 0

    def add(self, nbytes: int) -> None:
        self.bytes += nbytes


@dataclass
class Sent:
    """Bytes and calls for a purpose."""

    bytes: int = 0
    calls: int = 0
    """Collective calls in which this rank has waited for others, one after the other. A mean counts
    as two: sums of chunks, then their exchange."""


class Ledger:
    """The bytes and calls of a rank on all its communicators."""

    def __init__(self) -> None:
        self.purpose = START
        """The purpose of what the training thread sends now."""
        self.sent = {purpose: Sent() for purpose in PURPOSES}
        self.resends = Resends()

    def begin_anew(self) -> None:
        """Forget what was sent: another run of the job begins."""
        self.purpose = START
        self.sent.update({purpose: Sent() for purpose in self.sent})
        self.resends = Resends()

    @contextmanager
    def counting(self, purpose: str) -> Iterator[None]:
        """Within the context, the training thread sends for another purpose."""
        before = self.purpose
        self.purpose = purpose
        try:
            yield
        finally:
            self.purpose = before

    def follow(self, phase: str) -> AbstractContextManager[None]:
        """Return a context for a phase of the clock (`istmpi.comm.clock.Clock.followers`)."""
        if phase in _BY_PHASE:
            return self.counting(_BY_PHASE[phase])
        return nullcontext()

    def add(self, nbytes: int, calls: int, purpose: str = "") -> None:
        """Count what was sent; ``purpose`` is by default that of the training thread."""
        sent = self.sent[purpose or self.purpose]
        sent.bytes += nbytes
        sent.calls += calls


def add_up(ledgers: Sequence[Mapping[str, Sent]]) -> dict[str, Sent]:
    """Return all ranks' bytes by purpose, and the most calls of a rank."""
    totals: dict[str, Sent] = {}
    for purpose in PURPOSES:
        of_ranks = [ledger[purpose] for ledger in ledgers]
        totals[purpose] = Sent(
            bytes=sum(sent.bytes for sent in of_ranks),
            calls=max(sent.calls for sent in of_ranks),
        )
    return totals


def estimate_line_bytes(nbytes: int, calls: int, hosts: int) -> int:
    """Return about how many bytes the hosts' interfaces send over TCP for the bytes and calls that
    are counted, with one rank on each host. What TCP sends again is not in it."""
    if hosts < 2:
        return 0
    # Ranks pass few bytes on where they are many: a rank then sends to log2(P) others. A run has
    # about as many calls of many bytes.
    few = hosts - 1
    if hosts > MOST_RANKS:
        few = ceil(log2(hosts))
    peers = (few + hosts - 1) / 2
    start = HOST_BYTES * hosts + PAIR_BYTES * hosts * (hosts - 1)
    headers = nbytes * SEGMENT_HEADERS / SEGMENT_BYTES + calls * hosts * peers * MESSAGE_BYTES
    return round(start + nbytes + headers)
