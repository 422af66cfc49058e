"""The network on disk: one HDF5 file that every rank fills with its own rows, and that anyone can read.

    /                       attributes: format, version, run (TOML), round, ranks
    /model/PARAMETER        the whole parameter, in its global shape; attribute: axes
    /optim/PARAMETER/SLOT   optimizer state that is carried along, likewise
    /norm/STAGE/{mean,std}  calibrated moments of each unit, where the stage has a batch normalisation

Rank 0 lays the datasets out, contiguous and allocated up front, so that each has a known place in the file; then every
rank writes its rows there through MPI-IO. That needs no parallel HDF5, and no rank ever has more than its rows. The
file appears under its name when it is complete: it is written beside it, synced and renamed.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np
import torch

from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.hdf5 import sync
from istmpi.errors import OutputError
from istmpi.models.norms import EPSILON
from istmpi.store import ParameterStore

FORMAT, VERSION = "istmpi-checkpoint", 1

Moments = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


def save(path: Path, run: Run, round: int, store: ParameterStore, moments: Moments, communicator: Communicator) -> None:
    """Write the store of all ranks into one file. Collective; ``moments`` (mean, variance by stage) count on rank 0.

    Raises OutputError on every rank when the file cannot be written; an older file of that name is then untouched.
    """
    beside = path.with_name(f".{path.name}.{communicator.from_first(os.getpid())}")
    offsets: dict[str, int] = {}
    try:
        with communicator.agreed():
            if communicator.rank == 0:
                with _output(path):
                    offsets = _lay_out(beside, run, round, store, moments)
        offsets = communicator.from_first(offsets)
        with communicator.agreed(), _output(path):
            communicator.write(str(beside), [(offsets[name] + start, part) for name, start, part in _rows(store)])
        with communicator.agreed():
            if communicator.rank == 0:
                with _output(path):
                    os.replace(beside, path)
                    sync(path.parent)
    finally:
        if communicator.rank == 0:
            beside.unlink(missing_ok=True)


def _lay_out(path: Path, run: Run, round: int, store: ParameterStore, moments: Moments) -> dict[str, int]:
    """Make the file with everything but the rows; returns where in it each tensor begins."""
    offsets = {}
    with h5py.File(path, "x") as file:
        file.attrs.update(format=FORMAT, version=VERSION, run=run.toml(), round=round, ranks=store.owners.ranks)
        for name, parameter in store.parameters.items():
            dataset = _allocate(file, _place(name), parameter.pattern.shape(store.owners.lengths), parameter.dtype)
            dataset.attrs["axes"] = str(parameter.pattern)
            offsets[name] = dataset.id.get_offset()
        for stage, (mean, variance) in moments.items():
            file[f"norm/{stage}/mean"] = mean.numpy()
            file[f"norm/{stage}/std"] = np.sqrt(variance.numpy() + EPSILON)
    return offsets


def _allocate(file: h5py.File, name: str, shape: tuple[int, ...], dtype: str) -> h5py.Dataset:
    """A contiguous dataset that has its place in the file from the start and is not filled."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    folder = file.require_group(name.rpartition("/")[0])
    space, kind = h5py.h5s.create_simple(shape), h5py.h5t.py_create(np.dtype(dtype))
    return h5py.Dataset(h5py.h5d.create(folder.id, name.rpartition("/")[2].encode(), kind, space, layout))


def _place(name: str) -> str:
    """Where a stored tensor lies: PARAMETER in /model, PARAMETER/SLOT in /optim."""
    return f"optim/{name}" if "/" in name else f"model/{name}"


def _rows(store: ParameterStore) -> list[tuple[str, int, np.ndarray]]:
    """This rank's rows of every tensor, and the bytes before them in the whole one."""
    return [
        (name, store.first_element(parameter) * parameter.itemsize, store.tensors[name].numpy())
        for name, parameter in store.parameters.items()
    ]


@contextlib.contextmanager
def _output(path: Path):
    """Turn what goes wrong while writing into one line."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error}).") from None
