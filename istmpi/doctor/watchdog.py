"""A time limit for calls into MPI.

These release Python's lock, so a thread can end the job if a call hangs.
"""

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

_SYN_SENT = "02"  # Linux: the state of a connection that waits for its first answer
_LAST_WORDS = 1.0
"""Seconds for all ranks to print their messages, before the launcher ends the job."""


@contextmanager
def limit(rank: int, doing: str, seconds: float) -> Iterator[None]:
    """End this process, and so the job, if the block takes ``seconds``.

    It prints what ``rank`` was ``doing``.
    """
    words = f"rank {rank} on {socket.gethostname()} hangs while {doing}"
    timer = threading.Timer(seconds, _end, (words,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(words: str) -> None:
    silent = ", ".join(find_unanswered(os.getpid()))
    if silent:
        words += f"; no answer from {silent}"
    print(f"istmpi doctor: {words}", file=sys.stderr, flush=True)
    time.sleep(_LAST_WORDS)
    # No other signal and no exception ends a thread that hangs in C.
    os.kill(os.getpid(), signal.SIGKILL)


def find_unanswered(process: int) -> list[str]:
    """Return the addresses to which a process tries to connect without an answer."""
    sockets = set()
    table = []
    with suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                sockets.add(os.readlink(entry))
        # The table has all connections of the machine; a line ends in its socket's number.
        table = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    addresses = set()
    for line in table:
        _, _, remote, state, *rest = line.split()
        if state == _SYN_SENT and f"socket:[{rest[5]}]" in sockets:
            address = int(remote.split(":")[0], 16)
            addresses.add(socket.inet_ntoa(struct.pack("=I", address)))
    return sorted(addresses)
