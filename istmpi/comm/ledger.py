"""Counts what a rank sends, by purpose: rounds, evaluations, checkpoints, and the start of a job.

The purpose follows the clock's phases. From the first round on, what is neither an evaluation nor a
checkpoint belongs to the rounds.

Bytes are counted where they are handed to MPI, and each collective call once. So the purposes add
up to everything that a rank sends, objects of agreements included. Headers of the network, and the
messages that MPI itself sends, do not count.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

START = "start"
ROUNDS = "rounds"
EVALUATION = "evaluation"
SAVING = "saving"
PURPOSES = (START, ROUNDS, EVALUATION, SAVING)
GROUP = "group"
"""The purpose of bytes that members of a replica group send to each other. Only a leader's ledger
has this purpose, and counts all of them."""
_BY_PHASE = {"evaluate": EVALUATION, "save": SAVING}


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
    """Collective calls in which this rank has waited for others, one after the other."""


class Ledger:
    """The bytes and calls of a rank on all its communicators."""

    def __init__(self) -> None:
        self.purpose = START
        """The purpose of what the training thread sends now."""
        self.sent = {purpose: Sent() for purpose in PURPOSES}

    def begin_anew(self) -> None:
        """Forget what was sent: another run of the job begins."""
        self.purpose = START
        self.sent.update({purpose: Sent() for purpose in self.sent})

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
