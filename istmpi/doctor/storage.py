"""A test of the folder for checkpoints: all hosts must see each other's bytes there."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from istmpi.checkpoint.sight import look_for
from istmpi.comm import Communicator
from istmpi.doctor.finding import Finding, green, red, yellow
from istmpi.units import size

TEST_BYTES = 2**26


def check_folder(communicator: Communicator, folder: Path) -> list[Finding]:
    """Let all ranks write their parts of one file, sync it, and read a neighbour's part.

    Collective; leaves no file. A folder that not all ranks see is usable, with parts of checkpoints
    on each host.
    """
    unseen = look_for(folder, communicator).unseen
    if unseen:
        cure = "A run keeps parts of its checkpoints on each host (docs/running.md). Or give a "
        cure += "folder that all hosts mount: --folder FOLDER, and --out FOLDER for training."
        return [yellow("folder", f"{folder} is not shared: {unseen}", cure)]
    scratch = ""
    problem = ""
    if communicator.rank == 0:
        try:
            scratch = tempfile.mkdtemp(prefix=".istmpi-doctor-", dir=folder)
            (Path(scratch) / "parts").touch()
        except OSError as error:
            problem = error.strerror or str(error)
    scratch, problem = communicator.broadcast_from_root((scratch, problem))
    try:
        if problem:
            fact = f"{folder} cannot be written ({problem})"
            return [red("folder", fact, "Give another folder: --folder FOLDER.")]
        return [_check_file(communicator, folder, Path(scratch) / "parts")]
    finally:
        # No rank may still read when rank 0 removes the file.
        communicator.barrier()
        if communicator.rank == 0 and scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _check_file(communicator: Communicator, folder: Path, path: Path) -> Finding:
    part = max(TEST_BYTES // communicator.size, 4096)
    start = time.perf_counter()
    problem = ""
    try:
        _write(path, communicator.rank * part, _part(communicator.rank, part))
    except OSError as error:
        problem = error.strerror or str(error)
    per_rank = communicator.allgather((problem, time.perf_counter() - start))
    for rank, (problem, _) in enumerate(per_rank):
        if problem:
            fact = f"{folder}: rank {rank} cannot write ({problem})"
            return red("folder", fact, "Free space, or give another folder.")
    neighbour = (communicator.rank + 1) % communicator.size
    with path.open("rb") as file:
        file.seek(neighbour * part)
        changed = file.read(part) != _part(neighbour, part)
    wrong = _find_ranks(communicator, changed)
    if wrong:
        fact = f"{folder}: rank {wrong[0]} cannot read what its neighbour wrote and synced"
        cure = "Give a folder on a file system that shows hosts each other's writes after fsync."
        return red("folder", fact, cure)
    rate = part * communicator.size / max(seconds for _, seconds in per_rank)
    space = shutil.disk_usage(folder).free
    fact = f"{size(rate)}/s written and synced by all ranks at once, {size(space)} free"
    return green("folder", f"{folder}: {fact}")


def _part(rank: int, nbytes: int) -> bytes:
    """Return what a rank writes: its number, modulo a prime, so that neighbours differ."""
    return bytes([rank % 251]) * nbytes


def _write(path: Path, offset: int, values: bytes) -> None:
    # Without a buffer, so that the bytes are written here and not when the file is closed.
    with path.open("r+b", buffering=0) as file:
        file.seek(offset)
        while values:
            written = file.write(values)
            values = values[written:]
        os.fsync(file.fileno())


def _find_ranks(communicator: Communicator, fact: bool) -> list[int]:
    """Return the ranks on which a fact is true. Collective."""
    return [rank for rank, holds in enumerate(communicator.allgather(fact)) if holds]
