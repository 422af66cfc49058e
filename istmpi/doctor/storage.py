"""The folder for checkpoints: whether all hosts see it, how fast it takes what ranks write, and what it cannot do."""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from istmpi.comm import Communicator
from istmpi.doctor.finding import Finding, green, red, yellow
from istmpi.report.units import size

TEST_BYTES = 2**26
"""Written by all ranks together."""


def write_test(communicator: Communicator, folder: Path) -> list[Finding]:
    """All ranks write their parts of one file, sync it, and read each other's. Collective; leaves nothing behind."""
    scratch = _on_first(communicator, lambda: tempfile.mkdtemp(prefix=".istmpi-doctor-", dir=folder))
    if isinstance(scratch, OSError):
        return [red("folder", f"{folder} cannot be written ({scratch.strerror})", "Name another: --folder FOLDER.")]
    try:
        return _tests(communicator, folder, Path(scratch) / "parts")
    finally:
        communicator.barrier()
        if communicator.rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)


def _tests(communicator: Communicator, folder: Path, path: Path) -> list[Finding]:
    rank, ranks = communicator.rank, communicator.size
    part = max(TEST_BYTES // ranks, 4096)
    made = _on_first(communicator, lambda: path.touch())
    if isinstance(made, OSError):
        return [red("folder", f"{folder} cannot be written ({made.strerror})", "Name another: --folder FOLDER.")]
    unseen = _ranks_where(communicator, not path.exists())
    if unseen:
        hosts = communicator.hosts()
        fact = f"{folder} is not shared: rank {unseen[0]} on {hosts[unseen[0]]} does not see what {hosts[0]} wrote"
        cure = "Name a folder that all hosts mount: --folder FOLDER, and --out FOLDER for training."
        return [red("folder", fact, cure)]
    communicator.barrier()
    start = time.perf_counter()
    failed = _attempt(lambda: _write(path, rank * part, bytes([rank % 251]) * part))
    seconds = time.perf_counter() - start
    per_rank = communicator.allgather((failed, seconds))
    troubles = [(number, error) for number, (error, _) in enumerate(per_rank) if error]
    if troubles:
        number, error = troubles[0]
        return [red("folder", f"{folder}: rank {number} cannot write ({error})", "Free space or name another folder.")]
    slowest = max(seconds for _, seconds in per_rank)
    neighbour = (rank + 1) % ranks
    changed = _ranks_where(communicator, _read(path, neighbour * part, part) != bytes([neighbour % 251]) * part)
    if changed:
        cure = "Name a folder on a file system that shows hosts each other's writes after fsync."
        return [red("folder", f"{folder}: rank {changed[0]} does not read what its neighbour wrote and synced", cure)]
    space = size(shutil.disk_usage(folder).free)
    fact = f"{folder}: {size(part * ranks / slowest)}/s written and synced by all ranks at once, {space} free"
    found = [green("folder", fact)]
    locks = {error for error in communicator.allgather(_attempt(lambda: _lock(path))) if error}
    if locks:
        cure = "istmpi opens without locks and needs none; for other HDF5 tools: export HDF5_USE_FILE_LOCKING=FALSE."
        found.append(yellow("locking", f"{folder} has no file locks ({', '.join(sorted(locks))})", cure))
    else:
        found.append(green("locking", "files can be locked"))
    return found


def _write(path: Path, offset: int, values: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        done = 0
        while done < len(values):
            done += os.pwrite(descriptor, values[done:], offset + done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path, offset: int, count: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(count)


def _lock(path: Path) -> None:
    """Lock as HDF5 does; that another rank holds the lock just now shows that locks work."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise


def _attempt(work: Callable[[], object]) -> str:
    try:
        work()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _on_first(communicator: Communicator, work: Callable[[], object]) -> object:
    """What the work returns on rank 0, or the OSError that it raises there, on every rank."""
    result: object = None
    if communicator.rank == 0:
        try:
            result = work()
        except OSError as error:
            result = error
    return communicator.broadcast_from_root(result)


def _ranks_where(communicator: Communicator, fact: bool) -> list[int]:
    return [rank for rank, true in enumerate(communicator.allgather(fact)) if true]
