"""Stopping early: a signal, a file or the job's time limit asks one rank to stop.

All ranks learn of it.
"""

import math
import os
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from istmpi.comm import mpi
from istmpi.comm.communicator import Communicator
from istmpi.errors import ConfigError
from istmpi.signals import receiver

FILE = "STOP"

_FILE_REASON = "the file "

_SECONDS_BETWEEN_LOOKS = 1.0


class StopGossip:
    """Spreads a reason to stop from any rank to all ranks. No rank waits for a reason.

    A rank to which `poll` returns a reason must call `notify`, which sends it to the ranks 1, 2, 4,
    ... after the rank. Creation and `settle` are collective.
    """

    def __init__(self, communicator: Communicator):
        self._communicator = communicator
        self._mpi = communicator.mpi
        # A tag, because a communicator of its own would cost a round trip at the start.
        self._tag = communicator.take_tag()
        self._rank = communicator.rank
        self._size = communicator.size
        self._steps = [2**power for power in range((self._size - 1).bit_length())]
        self._sent: list[Any] = []
        self._received_from: set[int] = set()

    def notify(self, reason: str) -> None:
        # Steps of powers of two reach all ranks in log2(P) hops.
        self._sent = [
            self._mpi.isend(reason, (self._rank + step) % self._size, self._tag)
            for step in self._steps
        ]

    def poll(self) -> str:
        """Return the reason if one has arrived, otherwise an empty text."""
        if not self._steps or not self._mpi.iprobe(
            tag=self._tag
        ):  # cheap enough for every local step
            return ""
        status = mpi.library_here().Status()
        self._mpi.iprobe(tag=self._tag, status=status)
        self._received_from.add(status.source)
        return self._mpi.recv(source=status.source, tag=self._tag)

    def settle(self) -> None:
        """Receive the messages of `notify` that no rank has read. Collective."""
        sent = self._communicator.allgather(bool(self._sent))
        for step in self._steps:
            source = (self._rank - step) % self._size
            # A rank that learnt of the reason otherwise has a message left in MPI.
            if sent[source] and source not in self._received_from:
                self._mpi.recv(source=source, tag=self._tag)
        for request in self._sent:
            request.wait()
        self._sent = []
        self._received_from = set()


class StopSign:
    """A request that this run stop early, and its reason. Creation is collective.

    A ``file`` requests a stop once it exists, a ``deadline`` from that Unix time on. Rank 0 checks
    file and deadline, and other ranks after `look_here`.
    """

    def __init__(
        self, communicator: Communicator, file: Path | None = None, deadline: float | None = None
    ):
        self.reason = ""
        self._looks = communicator.rank == 0
        self._gossip = StopGossip(communicator)
        self._signal = ""
        self.file = file
        self._deadline: float | None = None
        """The deadline by the monotonic clock, which no one can set."""
        if deadline is not None:
            self._deadline = time.monotonic() + deadline - time.time()
        self._looked = 0.0

    def look_here(self) -> None:
        """Let this rank look for the file, too, because its folder is not rank 0's."""
        self._looks = True

    def asked(self) -> bool:
        """Return True if a stop is requested. A rank that learns of a reason passes it on."""
        if self.reason:
            return True
        reason = self._signal or self._look() or self._gossip.poll()
        if reason:
            self.reason = reason
            self._gossip.notify(reason)
        return bool(reason)

    @property
    def cure(self) -> str:
        """The beginning of a sentence on how to continue.

        It names a stop file that must be removed first.
        """
        if self.reason.startswith(_FILE_REASON):
            return f"Remove {self.file} and run the same"
        return "Run the same"

    def wished(self) -> str:
        """Return this rank's reason to stop, or an empty text.

        Unread messages of other ranks do not count. Any thread may call it; it sends and receives
        no message.
        """
        reason = self.reason or self._signal
        if not reason and self._looks:
            reason = self._check()
        return reason

    def settle(self, reasons: list[str]) -> None:
        """Adopt the first reason in all ranks' ``reasons``. Collective.

        Finish the messages that `asked` began.
        """
        # All ranks must give the same reason, although each may have its own.
        self.reason = next(filter(None, reasons), "")
        if self.reason:
            self._gossip.settle()

    def listen(self) -> None:
        """Treat signals to this process as requests to stop (`istmpi.signals.Receiver`).

        Call it in the main thread. A simulated rank is a thread of a process whose signals are not
        the rank's own, so it does not listen.
        """
        if mpi.stand_in() is None:
            receiver().listen(self.take)

    def take(self, signal: str) -> None:
        """Note the name of a signal, if it is not empty, as a request to stop."""
        if signal:
            self._signal = signal

    def _look(self) -> str:
        """Return what `_check` finds, once in `_SECONDS_BETWEEN_LOOKS`, if this rank looks."""
        now = time.monotonic()
        # A look at a busy file server may take longer than a local step.
        if not self._looks or now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return ""
        self._looked = now
        return self._check()

    def _check(self) -> str:
        """Return the reason to stop that deadline and file give now, or an empty text."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return "the job's time limit"
        if self.file and self.file.exists():
            return f"{_FILE_REASON}{self.file}"
        return ""


@dataclass(frozen=True)
class StopSources:
    """The sources of a run's early stop: a file STOP in its folder, and what its caller names."""

    deadline: float | None = None
    """The Unix time at which the run stops; only rank 0's counts."""
    signals: bool = False
    """True if signals to the process stop it."""
    shared: StopSign | None = None
    """The sign of several runs in turns, which replaces file and deadline."""

    def open(self, communicator: Communicator) -> StopSign:
        """Return the sign of a run. Collective."""
        sign = self.shared or StopSign(communicator, deadline=self.deadline)
        if self.signals:
            sign.listen()
        return sign

    def look_in(self, folder: Path, sign: StopSign) -> None:
        """Let the sign of a run look for the file in its ``folder``."""
        if self.shared is None:
            sign.file = folder / FILE


NO_END = ("N/A", "NONE", "UNKNOWN", "UNLIMITED")
"""SLURM's answers for the end of a job without a time limit."""


def end_of_job() -> float:
    """Return the Unix time when this SLURM job's time is up.

    Raises ConfigError if the time is unknown.
    """
    text = os.environ.get("SLURM_JOB_END_TIME")
    if text is not None:
        return _parse_end(text)
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise ConfigError(
            "--stop-before-walltime needs the job's end: this is not a SLURM job, and "
            "SLURM_JOB_END_TIME (Unix time) is not set. Set it, or leave the option out."
        )
    return _ask_slurm(job)


def _parse_end(text: str) -> float:
    with suppress(ValueError):
        end = float(text)
        if math.isfinite(end):
            return end
    raise ConfigError(
        f"--stop-before-walltime: SLURM_JOB_END_TIME = {text!r} must be the Unix time of the job's "
        "end. Correct it, or leave the option out."
    )


def _ask_slurm(job: str) -> float:
    query = ["squeue", "--noheader", "--jobs", job, "--Format", "EndTime"]
    end = None
    try:
        process = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60)
        answer = process.stdout.strip()
        if answer.upper() not in NO_END:
            # SLURM prints local time, as mktime expects.
            end = time.mktime(time.strptime(answer, "%Y-%m-%dT%H:%M:%S"))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"--stop-before-walltime: {' '.join(query)} does not report the job's end ({error})."
        ) from None
    if end is None:
        raise ConfigError(
            f"--stop-before-walltime: job {job} has no time limit ({answer}). Submit it with "
            "--time, or leave the option out."
        )
    return end
