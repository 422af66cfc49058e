"""Finds out whether all ranks see one folder. Names of hosts do not tell, because a host may mount
it or not."""

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from istmpi.checkpoint.writers import has_parallel_hdf5
from istmpi.comm import Communicator

PROBE = "seen"
"""The name of the file that ranks look for, between a dot and random words."""
PATIENCE = 5.0
"""The longest time in seconds until a network file system shows a new file."""


@dataclass(frozen=True)
class Place:
    """A run's folder as this rank sees it."""

    unseen: str = ""
    """The rank that does not see rank 0's folder, in words; empty if all see it."""
    shared: bool = True
    """True if this rank sees rank 0's folder."""
    keeps: bool = False
    """True if this rank locks and tidies the folder that it sees."""
    parallel: bool = False
    """True if all ranks have parallel HDF5."""


@dataclass(frozen=True)
class Probe:
    """A file that all ranks look for."""

    name: str
    content: str


class Look(NamedTuple):
    """The message of a rank that has looked for rank 0's file."""

    sees: bool
    host: str
    parallel_hdf5: bool


def look_for(folder: Path, communicator: Communicator) -> Place:
    """Return whether this rank sees the folder in which rank 0 writes, and which rank does not.
    Collective; leaves no file.

    All ranks see it if rank 0 cannot write there: then the next write says why.
    """
    probe: Probe | None = None
    if communicator.rank == 0:
        probe = leave_probe(folder, communicator)
    return find_probe(communicator.broadcast_from_root(probe), folder, communicator)


def leave_probe(folder: Path, communicator: Communicator) -> Probe | None:
    """Write a file for `find_probe`, on rank 0. None if a process is alone or cannot write."""
    if communicator.size == 1:
        return None
    name = f".{PROBE}.{secrets.token_hex(8)}.tmp"
    probe = Probe(name=name, content=secrets.token_hex(16))
    try:
        (folder / probe.name).write_text(probe.content, encoding="ascii")
    except OSError:
        return None
    return probe


def find_probe(probe: Probe | None, folder: Path, communicator: Communicator) -> Place:
    """Return what `look_for` does, by the file that rank 0 left. Collective; deletes the file."""
    keeps = communicator.rank == 0
    # What writers need to know travels in the same message.
    looks = communicator.allgather(
        Look(sees=_sees(folder, probe), host=os.uname().nodename, parallel_hdf5=has_parallel_hdf5())
    )
    if keeps and probe is not None:
        with contextlib.suppress(OSError):
            (folder / probe.name).unlink()
    unseen = ""
    blind = [rank for rank, look in enumerate(looks) if not look.sees]
    if blind:
        rank = blind[0]
        unseen = (
            f"rank {rank} on {looks[rank].host} does not see {folder} of rank 0 on {looks[0].host}"
        )
    return Place(
        unseen=unseen,
        shared=looks[communicator.rank].sees,
        keeps=keeps,
        parallel=all(look.parallel_hdf5 for look in looks),
    )


def _sees(folder: Path, probe: Probe | None) -> bool:
    """Return True if this rank sees rank 0's file, or if there is none."""
    if probe is None:
        return True
    # Each rank looks in the folder that it was given, which may be another path.
    path = folder / probe.name
    end = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="ascii") == probe.content:
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
