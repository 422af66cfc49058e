"""A test of the folder for checkpoints: all hosts must see it, and each other's bytes in it."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from istmpi.comm import Communicator
from istmpi.doctor.finding import Finding, green, red
from istmpi.report.units import size

TEST_BYTES = 2**26
"""The bytes that all ranks together write."""


def write_test(communicator: Communicator, folder: Path) -> list[Finding]:
    """Let all ranks write their parts of one file, sync it, and read each other's. Collective; leaves nothing."""
    scratch, error = None, None
    if communicator.rank == 0:
        try:
            scratch = tempfile.mkdtemp(prefix=".istmpi-doctor-", dir=folder)
            (Path(scratch) / "parts").touch()
        except OSError as refused:
            error = refused.strerror
    scratch, error = communicator.broadcast_from_root((scratch, error))
    try:
        if error:
            return [red("folder", f"{folder} cannot be written ({error})", "Name another: --folder FOLDER.")]
        return _tests(communicator, folder, Path(scratch) / "parts")
    finally:
        communicator.barrier()
        if communicator.rank == 0 and scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _tests(communicator: Communicator, folder: Path, path: Path) -> list[Finding]:
    rank, ranks = communicator.rank, communicator.size
    part = max(TEST_BYTES // ranks, 4096)
    if unseen := _ranks_where(communicator, not path.exists()):
        hosts = communicator.hosts()
        fact = f"{folder} is not shared: rank {unseen[0]} on {hosts[unseen[0]]} does not see what {hosts[0]} wrote"
        cure = "Name a folder that all hosts mount: --folder FOLDER, and --out FOLDER for training."
        return [red("folder", fact, cure)]
    start = time.perf_counter()
    failed = ""
    try:
        _write(path, rank * part, bytes([rank % 251]) * part)
    except OSError as error:
        failed = error.strerror or str(error)
    per_rank = communicator.allgather((failed, time.perf_counter() - start))
    for number, (error, _) in enumerate(per_rank):
        if error:
            fact = f"{folder}: rank {number} cannot write ({error})"
            return [red("folder", fact, "Free space or name another folder.")]
    neighbour = (rank + 1) % ranks
    with path.open("rb") as file:
        file.seek(neighbour * part)
        changed = file.read(part) != bytes([neighbour % 251]) * part
    if wrong := _ranks_where(communicator, changed):
        fact = f"{folder}: rank {wrong[0]} does not read what its neighbour wrote and synced"
        return [red("folder", fact, "Name a folder on a file system that shows hosts each other's writes after fsync.")]
    rate, space = part * ranks / max(seconds for _, seconds in per_rank), shutil.disk_usage(folder).free
    fact = f"{folder}: {size(rate)}/s written and synced by all ranks at once, {size(space)} free"
    return [green("folder", fact)]


def _write(path: Path, offset: int, values: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(offset)
        while values:
            values = values[file.write(values) :]
        os.fsync(file.fileno())


def _ranks_where(communicator: Communicator, fact: bool) -> list[int]:
    return [rank for rank, true in enumerate(communicator.allgather(fact)) if true]
