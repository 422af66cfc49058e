"""Tests of the folder for checkpoints: all hosts must see each other's bytes there, and writers leave valid files."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from istmpi.checkpoint.folder import require_valid
from istmpi.checkpoint.format import DataSummary, Header
from istmpi.checkpoint.saver import commit
from istmpi.checkpoint.state import model_pieces, versions
from istmpi.checkpoint.writers import available
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.doctor.finding import Finding, green, red
from istmpi.engine.store import ParameterStore
from istmpi.errors import IstmpiError
from istmpi.models import mlp_network
from istmpi.report.units import size
from istmpi.tasks import REGRESSION

TEST_BYTES = 2**26
"""The bytes that all ranks together write."""
_WIDTH = 4096
"""The width of a network with a matrix of 64 MiB."""


@contextmanager
def _scratch(communicator: Communicator, folder: Path) -> Iterator[tuple[Path, str]]:
    """A folder for a test, or the reason why there is none. Collective."""
    path, problem = "", ""
    if communicator.rank == 0:
        try:
            path = tempfile.mkdtemp(prefix=".istmpi-doctor-", dir=folder)
            (Path(path) / "parts").touch()
        except OSError as error:
            problem = error.strerror
    path, problem = communicator.broadcast_from_root((path, problem))
    try:
        yield Path(path), problem
    finally:
        communicator.barrier()
        if communicator.rank == 0 and path:
            shutil.rmtree(path, ignore_errors=True)


def write_test(communicator: Communicator, folder: Path) -> list[Finding]:
    """Let all ranks write their parts of one file, sync it, and read each other's. Collective; leaves nothing."""
    with _scratch(communicator, folder) as (scratch, problem):
        if problem:
            return [red("folder", f"{folder} cannot be written ({problem})", "Name another: --folder FOLDER.")]
        return [_test(communicator, folder, scratch / "parts")]


def _test(communicator: Communicator, folder: Path, path: Path) -> Finding:
    rank, ranks = communicator.rank, communicator.size
    part = max(TEST_BYTES // ranks, 4096)
    if unseen := _ranks_where(communicator, not path.exists()):
        hosts = communicator.hosts()
        fact = f"{folder} is not shared: rank {unseen[0]} on {hosts[unseen[0]]} does not see what {hosts[0]} wrote"
        cure = "Name a folder that all hosts mount: --folder FOLDER, and --out FOLDER for training."
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
            return red("folder", fact, "Free space or name another folder.")
    neighbour = (rank + 1) % ranks
    with path.open("rb") as file:
        file.seek(neighbour * part)
        changed = file.read(part) != bytes([neighbour % 251]) * part
    if wrong := _ranks_where(communicator, changed):
        fact = f"{folder}: rank {wrong[0]} does not read what its neighbour wrote and synced"
        return red("folder", fact, "Name a folder on a file system that shows hosts each other's writes after fsync.")
    rate, space = part * ranks / max(seconds for _, seconds in per_rank), shutil.disk_usage(folder).free
    return green("folder", f"{folder}: {size(rate)}/s written and synced by all ranks at once, {size(space)} free")


def _write(path: Path, offset: int, values: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(offset)
        while values:
            values = values[file.write(values) :]
        os.fsync(file.fileno())


def _ranks_where(communicator: Communicator, fact: bool) -> list[int]:
    return [rank for rank, true in enumerate(communicator.allgather(fact)) if true]


def writers(communicator: Communicator, folder: Path) -> list[Finding]:
    """Write a checkpoint with each writer into a shared folder, and check all its bytes. Collective; leaves nothing."""
    run = Run().override({"model.hidden": [_WIDTH]})
    network = mlp_network(_WIDTH, [_WIDTH], 2)
    store = ParameterStore(network.parameters, network.lengths, communicator.size, communicator.rank)
    store.initialise(0)
    data = DataSummary("", "", REGRESSION, (_WIDTH,), 2, 0, 0)
    header = Header(run, communicator.size, 0, 0, 0, 0.0, 0, 0.0, data, versions=versions())
    nbytes = sum(parameter.itemsize * parameter.size(network.lengths) for parameter in network.parameters.values())
    rates, failures = [], []
    with _scratch(communicator, folder) as (scratch, _):
        for name in available(communicator):
            path, start = scratch / f"{name}.h5", time.perf_counter()
            try:
                commit(path, header, list(model_pieces(store)), name, communicator)
                rates.append(f"{name} {size(nbytes / (time.perf_counter() - start))}/s")
                require_valid(path, communicator)
            except IstmpiError as error:
                failures.append(f"{name}: {error}")
    if failures:
        return [red("HDF5", "; ".join(failures), "Use the other writer: istmpi train --writer direct, or mpio.")]
    only = "; h5py has no MPI, which nothing needs" * (len(rates) == 1)
    return [green("HDF5", f"a valid checkpoint through {', '.join(rates)}{only}")]
