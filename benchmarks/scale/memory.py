"""What the kernel says of this process's memory."""

import threading
from collections.abc import Iterator
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
