"""A time limit for calls into MPI, which release Python's lock: a thread can end the job if a call
hangs."""

import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SYN_SENT = "02"
_LAST_WORDS = 1.0
"""Seconds for all ranks to print their messages, before the launcher ends the job."""


@contextmanager
def limit(rank: int, doing: str, seconds: float) -> Iterator[None]:
    """End this process, and so the job, if the block takes ``seconds``; print what ``rank`` was
    ``doing``."""
    timer = threading.Timer(
        seconds, _end, (f"rank {rank} on {socket.gethostname()} hangs while {doing}",)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(words: str) -> None:
    silent = ", ".join(unanswered(os.getpid()))
    print(
        f"istmpi doctor: {words}{f'; no answer from {silent}' * bool(silent)}",
        file=sys.stderr,
        flush=True,
    )
    time.sleep(_LAST_WORDS)
    os.kill(os.getpid(), signal.SIGKILL)


def unanswered(process: int) -> list[str]:
    """Return the addresses to which a process tries to connect without an answer."""
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
