"""A time limit for calls into MPI, in a process of its own: MPI_Init hangs with Python's lock held.

`Watchdog` starts this very file as a program; it must not import anything of istmpi's.
"""

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SYN_SENT = "02"
_LAST_WORDS = 1.0
"""Seconds for the messages of all ranks' watchdogs, before the launcher ends the job."""


class Watchdog:
    """A guard that ends this process, and with it the job, when a call hangs; it says where, and for whom it waits."""

    def __init__(self, rank: int):
        who = f"rank {rank} on {socket.gethostname()}"
        command = [sys.executable, "-S", __file__, str(os.getpid()), who]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    @contextmanager
    def limit(self, doing: str, seconds: float) -> Iterator[None]:
        self._tell(f"{seconds:g} {doing}")
        try:
            yield
        finally:
            self._tell("")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()


def unanswered(process: int) -> list[str]:
    """The addresses to which a process tries to connect without an answer."""
    sockets, table, addresses = set(), [], set()
    with suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                sockets.add(os.readlink(entry))
        table = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    for line in table:
        _, _, remote, state, *rest = line.split()
        if state == _SYN_SENT and f"socket:[{rest[5]}]" in sockets:
            addresses.add(socket.inet_ntoa(struct.pack("=I", int(remote.split(":")[0], 16))))
    return sorted(addresses)


def _watch(process: int, who: str) -> None:
    """Follow the lines of a `Watchdog` up to the end of its process, or end that process at a deadline."""
    deadline, doing, text = None, "", b""
    while True:
        wait = None if deadline is None else max(deadline - time.monotonic(), 0)
        if not select.select([0], [], [], wait)[0]:
            break
        more = os.read(0, 4096)
        if not more:
            return
        *lines, text = (text + more).split(b"\n")
        for line in lines:
            seconds, _, doing = line.decode().partition(" ")
            deadline = time.monotonic() + float(seconds) if doing else None
    silent = ", ".join(unanswered(process))
    silent = f"; no answer from {silent}" if silent else ""
    print(f"istmpi doctor: {who} hangs while {doing}{silent}", file=sys.stderr, flush=True)
    time.sleep(_LAST_WORDS)
    os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
