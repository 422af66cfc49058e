"""Stopping early: a signal, a file or the end of a job's time asks any rank, and all ranks come to know of it."""

import math
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from istmpi.comm import Communicator, StopGossip
from istmpi.errors import ConfigError
from istmpi.signals import receiver

FILE = "STOP"
"""A file of this name in the run's folder asks the run to stop."""

_FILE_REASON = "the file "

_SECONDS_BETWEEN_LOOKS = 1.0


class StopSign:
    """Whether this run shall stop early, and why. Making it is collective.

    ``file``: asks when it exists. ``deadline``: asks from that Unix time on. Both are looked at by rank 0.
    """

    def __init__(self, communicator: Communicator, file: Path | None = None, deadline: float | None = None):
        self.reason = ""
        self._rank = communicator.rank
        self._gossip = StopGossip(communicator)
        self._signal = ""
        self._file = file
        self._deadline = None if deadline is None else time.monotonic() + deadline - time.time()
        """The time by the monotonic clock, which nobody sets while the run lasts."""
        self._looked = 0.0

    def asked(self) -> bool:
        """Whether this rank knows of a wish to stop; it passes the wish on. Cheap enough for every local step."""
        if not self.reason and (reason := self._signal or self._look() or self._gossip.poll()):
            self.reason = reason
            self._gossip.notify(reason)
        return bool(self.reason)

    @property
    def cure(self) -> str:
        """What to do, if anything, before the run can go on."""
        return f"Remove {self._file}; then the same" if self.reason.startswith(_FILE_REASON) else "The same"

    def wished(self) -> str:
        """Why this rank may be asked to stop as soon as it looks; passes nothing on. From any thread."""
        return self.reason or self._signal or ("" if self._rank else self._seen())

    def settle(self, reasons: list[str]) -> None:
        """Adopt the first of all ranks' reasons, gathered from them, and end what `asked` began. Collective."""
        self.reason = next(filter(None, reasons), "")
        if self.reason:
            self._gossip.settle()

    def listen(self) -> None:
        """Take the process's signals as wishes to stop, as `istmpi.signals.Receiver` does. From the main thread."""
        receiver().listen(self._take)

    def _take(self, name: str) -> None:
        self._signal = name

    def _look(self) -> str:
        now = time.monotonic()
        if self._rank or now - self._looked < _SECONDS_BETWEEN_LOOKS:
            return ""
        self._looked = now
        return self._seen()

    def _seen(self) -> str:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return "the end of the job's time"
        return f"{_FILE_REASON}{self._file}" if self._file and self._file.exists() else ""


def end_of_job() -> float:
    """When this SLURM job's time is up, as Unix time; ConfigError where that cannot be known. Asks the scheduler."""
    given = os.environ.get("SLURM_JOB_END_TIME")
    if given is not None:
        with suppress(ValueError):
            if math.isfinite(end := float(given)):
                return end
        raise ConfigError(
            f"--stop-before-walltime: SLURM_JOB_END_TIME = {given!r} must be the Unix time when the job's time is up. "
            f"Correct it, or leave the option out."
        )
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise ConfigError(
            "--stop-before-walltime needs to know when the job's time is up: this is no SLURM job, and "
            "SLURM_JOB_END_TIME (Unix time) is not set. Set it, or leave the option out."
        )
    query = ["squeue", "--noheader", "--jobs", job, "--Format", "EndTime"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
        return time.mktime(time.strptime(said, "%Y-%m-%dT%H:%M:%S"))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"--stop-before-walltime: {' '.join(query)} does not tell when the job's time is up ({error})."
        ) from None
