"""Finds out whether all ranks see one folder. Names of hosts do not tell, because a host may mount
it or not."""

import contextlib
import os
import secrets
import time
from pathlib import Path

from istmpi.comm import Communicator

PATIENCE = 5.0
"""The longest time in seconds until a network file system shows a new file."""


def find_unseen(folder: Path, communicator: Communicator) -> str:
    """Return which rank does not see what rank 0 writes into a folder, in words; empty if all do.
    Collective; leaves no file.

    It is also empty if rank 0 cannot write there: then the next write says why.
    """
    if communicator.size == 1:
        return ""
    probe: Path | None = None
    content = ""
    if communicator.rank == 0:
        probe = folder / f".seen-{secrets.token_hex(8)}"
        content = secrets.token_hex(16)
        try:
            probe.write_text(content, encoding="ascii")
        except OSError:
            probe = None
    probe, content = communicator.broadcast_from_root((probe, content))
    if probe is None:
        return ""
    sees = communicator.allgather((_sees(probe, content), os.uname().nodename))
    if communicator.rank == 0:
        with contextlib.suppress(OSError):
            probe.unlink()
    for rank, (is_seen, host) in enumerate(sees):
        if not is_seen:
            _, writing_host = sees[0]
            return f"rank {rank} on {host} does not see {folder} of rank 0 on {writing_host}"
    return ""


def _sees(probe: Path, content: str) -> bool:
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            if probe.read_text(encoding="ascii") == content:
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
