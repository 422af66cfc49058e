"""Turns a rank's rows of parameters into pieces of a checkpoint, and back on any number of
ranks."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

import h5py
import numpy as np
import torch

from istmpi import __version__
from istmpi.checkpoint.format import Piece, place
from istmpi.checkpoint.reader import Checkpoint
from istmpi.comm import library
from istmpi.data.dataset import Dataset
from istmpi.engine.slots import Slot, parameter_of
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError, DataError
from istmpi.network.architecture import Architecture
from istmpi.network.table import BatchNormalisation

STOPPED_START = "start"
"""A kind of slot in files of earlier versions: the weights at the start of a round that was
stopped."""

Moments = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


def model_pieces(store: ParameterStore) -> Iterator[Piece]:
    for name, parameter in store.parameters.items():
        shape = parameter.pattern.shape(store.owners.lengths)
        first, values = store.owners.rows(shape[0], store.rank).start, _bytes(store.tensors[name])
        yield _part(
            store, place(name), shape, parameter.dtype, values, first, str(parameter.pattern)
        )


def frozen_pieces(network: Architecture, store: ParameterStore) -> Iterator[Piece]:
    """Yield this rank's rows of the frozen parameters whose values do not come from the
    constructor."""
    for name in sorted(network.code.given):
        values = network.frozen[name]
        rows, dtype = (
            store.owners.rows(len(values), store.rank),
            str(values.dtype).removeprefix("torch."),
        )
        part = _bytes(values[rows.start : rows.stop])
        yield _part(store, f"frozen/{name}", tuple(values.shape), dtype, part, rows.start, "")


def restore_frozen(checkpoint: Checkpoint, network: Architecture) -> None:
    for name, tensor in checkpoint.frozen.items():
        if name in network.frozen and network.frozen[name].shape == tensor.shape:
            network.give(name, torch.from_numpy(tensor.rows()))
    if (there := checkpoint.header.frozen) and not isclose(
        there, network.code.frozen_digest, rel_tol=1e-4
    ):
        raise ConfigError(
            f"{checkpoint.path}: the frozen weights of {network.name} differ from that run's. Make its "
            "constructor create the same weights, for example from the same file."
        )


def inputs_of(data: Dataset) -> dict[str, np.ndarray]:
    arrays = {}
    if data.mean is not None:
        arrays |= {"input/mean": data.mean, "input/std": data.std}
    if data.targets is not None:
        arrays |= dict(zip(("output/mean", "output/std"), data.targets))
    offsets = {"input/offset": data.offset, "output/offset": data.target_offset}
    arrays |= {path: offset for path, offset in offsets.items() if offset is not None}
    for path, names in {"input/classes": data.classes, "output/names": data.output_names}.items():
        if names is not None:
            arrays[path] = np.array([name.encode() for name in names])
    reading = json.dumps(data.reading) if data.reading else ""
    texts = {
        "input/tokenizer": data.tokenizer.json if data.tokenizer else "",
        "input/reading": reading,
    }
    return arrays | {
        path: np.frombuffer(text.encode(), np.uint8) for path, text in texts.items() if text
    }


def deployment_pieces(
    moments: Moments,
    norms: Mapping[str, BatchNormalisation],
    inputs: Mapping[str, np.ndarray],
    rank: int,
) -> Iterator[Piece]:
    """Yield the pieces that prediction needs beside weights: norms' moments, and `inputs_of`. Rank
    0 writes all."""
    arrays = {}
    for name, (mean, variance) in moments.items():
        arrays[f"norm/{name}/mean"] = mean.numpy()
        arrays[f"norm/{name}/std"] = np.sqrt(
            variance.numpy() + norms[name.rpartition("/")[2]].epsilon
        )
    arrays |= inputs
    for path, values in arrays.items():
        dtype = values.dtype.str[1:] if values.dtype.kind == "S" else values.dtype.name
        if rank == 0:
            yield Piece(path, values.shape, dtype, np.ascontiguousarray(values))
        else:
            yield Piece(path, values.shape, dtype, values[:0], block=None)


def own_pieces(tensors: Mapping[str, torch.Tensor], store: ParameterStore) -> Iterator[Piece]:
    """Yield a piece for each of ``tensors``, which differ between ranks after a round: each rank
    has a block of it."""
    for name, values in tensors.items():
        rows, *rest = values.shape
        parameter = store.parameters[parameter_of(name)]
        first, *other = parameter.pattern.axes
        within = str(rows) if len(first.segments) > 1 else str(first).strip("()")
        axes = f"(ranks {within}) {' '.join(map(str, other))}".strip()
        shape, path = (store.owners.ranks * rows, *rest), f"partial/{place(name)}"
        yield _part(store, path, shape, parameter.dtype, _bytes(values), store.rank * rows, axes)


def own_data_piece(contents: Sequence[int], store: ParameterStore) -> Piece:
    values = np.array([contents], dtype=np.int64)
    return _part(
        store, "data/own", (store.owners.ranks, len(contents)), "int64", values, store.rank
    )


def _part(store: ParameterStore, *dataset: Any) -> Piece:
    return Piece(*dataset, blocks=store.owners.ranks, block=store.rank)


def restore(checkpoint: Checkpoint, store: ParameterStore) -> dict[str, torch.Tensor]:
    """Fill the store from a checkpoint; return this rank's own tensors, which differ between ranks.

    Returns no tensors if the checkpoint was saved inside a round, or if the number of ranks has
    changed. After such a change, the store gets the means of the ranks' optimizer states. Raises
    DataError if the file lacks a tensor.
    """
    header = checkpoint.header
    slots = [
        name for name in checkpoint.tensors if isinstance(name, Slot) and name.kind != STOPPED_START
    ]
    store.add_slots(slots)
    fill(checkpoint, store)
    if header.local_step:
        return {}
    if header.ranks != store.owners.ranks:
        _take_means(checkpoint, store)
        return {}
    tensors = {}
    for name, tensor in checkpoint.own.items():
        rows = tensor.shape[0] // header.ranks
        dtype = store.tensors[parameter_of(name)].dtype
        tensors[name] = torch.empty((rows, *tensor.shape[1:]), dtype=dtype)
        tensor.read_bytes(
            rows * store.rank, rows * (store.rank + 1), _bytes(tensors[name]).reshape(-1)
        )
    return tensors


def _take_means(checkpoint: Checkpoint, store: ParameterStore) -> None:
    ranks = checkpoint.header.ranks
    for name, tensor in checkpoint.own.items():
        if isinstance(name, Slot) and name in store.tensors:
            length = tensor.shape[0] // ranks
            rows = store.owners.rows(length, store.rank)
            parts = (
                tensor.rows(at + rows.start, at + rows.stop)
                for at in range(0, tensor.shape[0], length)
            )
            store.tensors[name].copy_(torch.from_numpy(sum(parts) / ranks))


def fill(checkpoint: Checkpoint, store: ParameterStore) -> None:
    store.scale, store.fitted = checkpoint.header.scale, checkpoint.header.fitted
    for name, values in store.tensors.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            raise DataError(
                f"{checkpoint.path}: it lacks optimizer state {name}, which this run needs."
            )
        rows = store.owners.rows(tensor.shape[0], store.rank)
        tensor.read_bytes(rows.start, rows.stop, _bytes(values).reshape(-1))


def stored_moments(checkpoint: Checkpoint) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the mean and variance of each batch normalisation; the file has sqrt(variance +
    epsilon)."""
    moments = {}
    for name, (mean, std) in checkpoint.moments.items():
        epsilon = checkpoint.architecture.batch_norms[name.rpartition("/")[2]].epsilon
        variance = np.maximum(np.square(std, dtype=np.float64) - epsilon, 0).astype(std.dtype)
        moments[name] = torch.from_numpy(mean), torch.from_numpy(variance)
    return moments


def versions() -> dict[str, str]:
    return {
        "istmpi": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "h5py": h5py.__version__,
        "HDF5": h5py.version.hdf5_version,
        "MPI": library(),
    }


def _bytes(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.uint8).numpy()
