"""A started command of several ranks, whose processes are known."""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

SECONDS_TO_START = 300
_LOOK = 0.002

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",
    # Open MPI refuses root and more ranks than cores unless told.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def launcher() -> list[str]:
    """The mpirun to take: $MPIRUN, or the one on the PATH."""
    return shlex.split(os.environ.get("MPIRUN", "mpirun"))


class Job:
    """A started command: `ranks` has the processes, `end` waits for the launcher."""

    def __init__(self, folder: Path, ranks: int, command: Sequence[str]):
        self._log = folder / "log"
        self._processes = Path(tempfile.mkdtemp(dir=folder))
        self._count = ranks
        # The shell turns into the rank, so that its number is the rank's.
        note = 'rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; echo $$ >"$0/.$rank"; mv "$0/.$rank" "$0/$rank"; exec "$@"'
        self.words = shlex.join(command)
        with self._log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*launcher(), "-n", str(ranks), "sh", "-c", note, str(self._processes), *command],
                env={**ENVIRONMENT, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def ranks(self) -> list[int]:
        """Their process numbers in their order, as soon as all have begun; fewer when the job ends before."""
        end = time.monotonic() + SECONDS_TO_START
        while len(found := list(self._processes.glob("[0-9]*"))) < self._count and not self.over:
            if time.monotonic() > end:
                raise TimeoutError("ranks do not begin")
            time.sleep(_LOOK)
        return [int(path.read_text()) for path in sorted(found, key=lambda path: int(path.name))]

    def end(self, seconds: float) -> int:
        """Its exit code; TimeoutError, with everything killed, when it does not end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"it does not end within {seconds:g} s") from None

    def kill(self) -> None:
        """End launcher and ranks, whatever they do."""
        for process in [self.process.pid, *(int(path.read_text()) for path in self._processes.glob("[0-9]*"))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()


def rounds_of(out: Path) -> int:
    """The rounds that the run's metrics have."""
    with contextlib.suppress(OSError):
        return (out / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def wait_until(happens: Callable[[], bool], job: Job, seconds: float = SECONDS_TO_START) -> None:
    """Until it does, or the job is over; TimeoutError after so long."""
    end = time.monotonic() + seconds
    while not happens() and not job.over:
        if time.monotonic() > end:
            raise TimeoutError(f"nothing happens within {seconds:g} s")
        time.sleep(_LOOK)
