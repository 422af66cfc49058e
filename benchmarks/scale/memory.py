"""The kernel's figures of the memory of this process, and of a command."""

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def status(field: str) -> float:
    """A line of this process's /proc/self/status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024e-6


@contextmanager
def watched(name: str, peaks: dict[str, float]) -> Iterator[None]:
    """Note the peaks of resident and anonymous memory while the body runs."""
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew.
    over, anonymous = threading.Event(), [status("RssAnon")]

    def sample() -> None:
        while not over.wait(0.003):
            anonymous.append(status("RssAnon"))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    peaks[f"{name}, resident"] = status("VmHWM")
    peaks[f"{name}, anonymous"] = max(anonymous)


def watching(peaks: Path, memory: float = 0) -> list[str]:
    """The words before a command that have its peak written to a file in ``peaks``; ``memory``: bytes it may have."""
    return [sys.executable, "-m", "benchmarks.scale.memory", str(peaks), str(memory)]


def watch(peaks: Path, memory: float, command: Sequence[str]) -> None:
    """Run a command, write its peak of resident memory, and end as it did."""

    def limited() -> None:
        if memory:
            resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))

    # MPICH tells a rank its place by a descriptor, which therefore stays open.
    done = subprocess.run(command, preexec_fn=limited, close_fds=False)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    # A rank's file has its number, where the launcher tells it.
    (peaks / os.environ.get("PMI_RANK", str(os.getpid()))).write_text(str(peak))
    sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)


def planned(command: Sequence[object]) -> float:
    """Bytes of a rank's memory by ``istmpi costmodel``."""
    words = ["istmpi", "costmodel", *map(str, command), "--compare", "ist", "--json"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["rows"][0]["memory_bytes"]


if __name__ == "__main__":
    watch(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
