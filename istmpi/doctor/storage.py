"""A test of the folder for checkpoints: all hosts must see each other's bytes there."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from istmpi.comm import Communicator
from istmpi.doctor.finding import Finding, green, red
from istmpi.units import size

TEST_BYTES = 2**26


def write_test(communicator: Communicator, folder: Path) -> list[Finding]:
    """Let all ranks write their parts of one file, sync it, and read a neighbour's part.
    Collective; leaves no file."""
    scratch, problem = "", ""
    if communicator.rank == 0:
        try:
            scratch = tempfile.mkdtemp(prefix=".istmpi-doctor-", dir=folder)
            (Path(scratch) / "parts").touch()
        except OSError as error:
            problem = error.strerror
    scratch, problem = communicator.broadcast_from_root((scratch, problem))
    try:
        if problem:
            return [
                red(
                    "folder",
                    f"{folder} cannot be written ({problem})",
                    "Give another folder: --folder FOLDER.",
                )
            ]
        return [_test(communicator, folder, Path(scratch) / "parts")]
    finally:
        communicator.barrier()
        if communicator.rank == 0 and scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _test(communicator: Communicator, folder: Path, path: Path) -> Finding:
    rank, ranks = communicator.rank, communicator.size
    part = max(TEST_BYTES // ranks, 4096)
    if unseen := _ranks_where(communicator, not path.exists()):
        hosts = communicator.hosts()
        fact = f"{folder} is not shared: rank {unseen[0]} on {hosts[unseen[0]]} does not see what {hosts[0]} wrote"
        cure = "Give a folder that all hosts mount: --folder FOLDER, and --out FOLDER for training."
        return red("folder", fact, cure)
    start, problem = time.perf_counter(), ""
    try:
        _write(path, rank * part, bytes([rank % 251]) * part)
    except OSError as error:
        problem = error.strerror or str(error)
    per_rank = communicator.allgather((problem, time.perf_counter() - start))
    for number, (problem, _) in enumerate(per_rank):
        if problem:
            fact = f"{folder}: rank {number} cannot write ({problem})"
            return red("folder", fact, "Free space, or give another folder.")
    neighbour = (rank + 1) % ranks
    with path.open("rb") as file:
        file.seek(neighbour * part)
        changed = file.read(part) != bytes([neighbour % 251]) * part
    if wrong := _ranks_where(communicator, changed):
        fact = f"{folder}: rank {wrong[0]} cannot read what its neighbour wrote and synced"
        return red(
            "folder",
            fact,
            "Give a folder on a file system that shows hosts each other's writes after fsync.",
        )
    rate, space = (
        part * ranks / max(seconds for _, seconds in per_rank),
        shutil.disk_usage(folder).free,
    )
    return green(
        "folder",
        f"{folder}: {size(rate)}/s written and synced by all ranks at once, {size(space)} free",
    )


def _write(path: Path, offset: int, values: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(offset)
        while values:
            values = values[file.write(values) :]
        os.fsync(file.fileno())


def _ranks_where(communicator: Communicator, fact: bool) -> list[int]:
    return [rank for rank, true in enumerate(communicator.allgather(fact)) if true]
