"""The writers of checkpoints: which this machine has, and whether each leaves a valid file, and how fast."""

import shutil
import tempfile
import time
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

_WIDTH = 4096
"""Of a network with a matrix of 64 MiB."""


def writers(communicator: Communicator, folder: Path) -> list[Finding]:
    """Write a checkpoint with each writer and check every byte of it. Collective; leaves nothing behind.

    To be called when the folder is known to be shared and writable.
    """
    run = Run().override({"model.hidden": [_WIDTH]})
    network = mlp_network(_WIDTH, [_WIDTH], 2)
    store = ParameterStore(network.parameters, network.lengths, communicator.size, communicator.rank)
    store.initialise(0)
    data = DataSummary("", "", REGRESSION, (_WIDTH,), 2, 0, 0)
    header = Header(run, communicator.size, 0, 0, 0, 0.0, 0, 0.0, data, versions=versions())
    nbytes = sum(parameter.itemsize * parameter.size(network.lengths) for parameter in network.parameters.values())
    mine = tempfile.mkdtemp(prefix=".istmpi-doctor-", dir=folder) if communicator.rank == 0 else None
    scratch = Path(communicator.broadcast_from_root(mine))
    rates, failures = [], []
    try:
        for name in available(communicator):
            path = scratch / f"{name}.h5"
            try:
                start = time.perf_counter()
                commit(path, header, list(model_pieces(store)), name, communicator)
                rates.append(f"{name} {size(nbytes / (time.perf_counter() - start))}/s")
                require_valid(path, communicator)
            except IstmpiError as error:
                failures.append(f"{name}: {error}")
    finally:
        communicator.barrier()
        if communicator.rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
    if failures:
        return [red("HDF5", "; ".join(failures), "Use the other writer: istmpi train --writer direct, or mpio.")]
    only = "; h5py has no MPI, which nothing needs" * (len(rates) == 1)
    return [green("HDF5", f"a valid checkpoint through {', '.join(rates)}{only}")]
