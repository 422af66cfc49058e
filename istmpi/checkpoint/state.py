"""Turns a rank's rows of parameters into pieces of a checkpoint, and back on any number of
ranks."""

import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isclose

import h5py
import numpy as np
import torch

from istmpi import __version__
from istmpi.checkpoint.format import Piece, place
from istmpi.checkpoint.reader import Checkpoint
from istmpi.comm import library
from istmpi.data.dataset import Dataset
from istmpi.engine.slots import Slot, select_weights, strip_slot
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError, DataError
from istmpi.network.architecture import Architecture
from istmpi.network.table import BatchNormalisation

STOPPED_START = "start"
"""A kind of slot in files of earlier versions: the weights at the start of a round that was
stopped."""

Moments = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


def model_pieces(store: ParameterStore) -> Iterator[Piece]:
    """Yield this rank's rows of all tensors of the store."""
    for name, parameter in store.parameters.items():
        shape = parameter.pattern.shape(store.owners.lengths)
        yield _own_block(
            store,
            path=place(name),
            shape=shape,
            dtype=parameter.dtype,
            values=_bytes(store.tensors[name]),
            first_row=store.owners.rows(shape[0], store.rank).start,
            axes=str(parameter.pattern),
        )


def frozen_pieces(network: Architecture, store: ParameterStore) -> Iterator[Piece]:
    """Yield this rank's rows of the frozen parameters whose values do not come from the
    constructor."""
    for name in sorted(network.code.given):
        values = network.frozen[name]
        rows = store.owners.rows(len(values), store.rank)
        yield _own_block(
            store,
            path=f"frozen/{name}",
            shape=tuple(values.shape),
            dtype=str(values.dtype).removeprefix("torch."),
            values=_bytes(values[rows.start : rows.stop]),
            first_row=rows.start,
            axes="",
        )


def restore_frozen(checkpoint: Checkpoint, network: Architecture) -> None:
    """Set the frozen parameters that a checkpoint has.

    Raises ConfigError if all frozen parameters together then differ from those of the saved run.
    """
    for name, tensor in checkpoint.frozen.items():
        if name in network.frozen and network.frozen[name].shape == tensor.shape:
            network.give(name, torch.from_numpy(tensor.rows()))
    saved = checkpoint.header.frozen
    # Another machine may compute the same weights with another rounding.
    if saved and not isclose(saved, network.code.frozen_digest, rel_tol=1e-4):
        raise ConfigError(
            f"{checkpoint.path}: the frozen weights of {network.name} differ from that run's. "
            "Make its constructor create the same weights, for example from the same file."
        )


def collect_inputs(data: Dataset) -> dict[str, np.ndarray]:
    """Return what prediction needs to know about inputs and outputs, by paths in the file."""
    mean_of_targets = std_of_targets = None
    if data.targets is not None:
        mean_of_targets, std_of_targets = data.targets
    stored: dict[str, np.ndarray | None] = {
        "input/mean": data.mean,
        "input/std": data.std,
        "output/mean": mean_of_targets,
        "output/std": std_of_targets,
        "input/offset": data.offset,
        "output/offset": data.target_offset,
        "input/classes": _encode_names(data.classes),
        "output/names": _encode_names(data.output_names),
    }
    arrays = {path: values for path, values in stored.items() if values is not None}
    if data.tokenizer and data.tokenizer.json:
        arrays["input/tokenizer"] = _encode_text(data.tokenizer.json)
    if data.reading:
        arrays["input/reading"] = _encode_text(json.dumps(data.reading))
    return arrays


def _encode_names(names: Sequence[str] | None) -> np.ndarray | None:
    if names is None:
        return None
    return np.array([name.encode() for name in names])


def _encode_text(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def deployment_pieces(
    moments: Moments,
    norms: Mapping[str, BatchNormalisation],
    inputs: Mapping[str, np.ndarray],
    rank: int,
) -> Iterator[Piece]:
    """Yield on rank 0 the pieces that prediction needs beside weights: norms' moments, and
    `collect_inputs`. Other ranks list none, and need no moments."""
    if rank:
        return
    arrays: dict[str, np.ndarray] = {}
    for name, (mean, variance) in moments.items():
        arrays[f"norm/{name}/mean"] = mean.numpy()
        epsilon = _find_norm(norms, name).epsilon
        arrays[f"norm/{name}/std"] = np.sqrt(variance.numpy() + epsilon)
    arrays |= inputs
    for path, values in arrays.items():
        dtype = values.dtype.name
        if values.dtype.kind == "S":  # such as |S12; its name is bytes96
            dtype = values.dtype.str[1:]
        yield Piece(
            path=path,
            shape=values.shape,
            dtype=dtype,
            values=np.ascontiguousarray(values),
            of_root=True,
        )


def _find_norm(norms: Mapping[str, BatchNormalisation], name: str) -> BatchNormalisation:
    """Return the normalisation ``name``, which in a subnet side by side is NUMBER/NAME."""
    return norms[name.rpartition("/")[2]]


def own_pieces(tensors: Mapping[str, torch.Tensor], store: ParameterStore) -> Iterator[Piece]:
    """Yield a piece for each of ``tensors``, which differ between ranks after a round: each rank
    has a block of it."""
    for name, values in tensors.items():
        rows, *rest = values.shape
        parameter = store.parameters[strip_slot(name)]
        first, *others = parameter.pattern.axes
        # The pattern language has no product of ranks and a sum of segments.
        within = str(rows) if len(first.segments) > 1 else str(first).strip("()")
        axes = f"(ranks {within}) {' '.join(map(str, others))}"
        yield _own_block(
            store,
            path=f"partial/{place(name)}",
            shape=(store.owners.ranks * rows, *rest),
            dtype=parameter.dtype,
            values=_bytes(values),
            first_row=store.rank * rows,
            axes=axes.strip(),
        )


def own_data_piece(contents: Sequence[int], store: ParameterStore) -> Piece:
    """Return the piece with the fingerprints of this rank's own data: one row of int64."""
    return _own_block(
        store,
        path="data/own",
        shape=(store.owners.ranks, len(contents)),
        dtype="int64",
        values=np.array([contents], dtype=np.int64),
        first_row=store.rank,
        axes=None,
    )


def _own_block(
    store: ParameterStore,
    path: str,
    shape: tuple[int, ...],
    dtype: str,
    values: np.ndarray,
    first_row: int,
    axes: str | None,
) -> Piece:
    """Return the piece of a dataset of which every rank has one block."""
    return Piece(
        path=path,
        shape=shape,
        dtype=dtype,
        values=values,
        first_row=first_row,
        axes=axes,
        blocks=store.owners.ranks,
        block=store.rank,
    )


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
    # Only files of earlier versions were saved inside a round.
    if header.local_step:
        return {}
    if header.ranks != store.owners.ranks:
        _take_means(checkpoint, store)
        return {}
    tensors = {}
    for name, tensor in checkpoint.own.items():
        rows = tensor.shape[0] // header.ranks
        dtype = store.tensors[strip_slot(name)].dtype
        values = torch.empty((rows, *tensor.shape[1:]), dtype=dtype)
        first = rows * store.rank
        tensor.read_bytes(first, first + rows, _bytes(values).reshape(-1))
        tensors[name] = values
    return tensors


def read_own(checkpoint: Checkpoint) -> Callable[[int], dict[str, torch.Tensor]] | None:
    """Return a function that returns the weights that a subnet has alone, by the subnet's number;
    None unless the network is the sum of its subnets."""
    header = checkpoint.header
    if not header.is_sum:
        return None
    values_by_name = {}
    for name in select_weights(checkpoint.own):
        values_by_name[name] = checkpoint.own[name].rows()

    def values_of(number: int) -> dict[str, torch.Tensor]:
        values = {}
        for name, joined in values_by_name.items():
            of_number = np.split(joined, header.ranks)[number]
            values[name] = torch.from_numpy(of_number)
        return values

    return values_of


def _take_means(checkpoint: Checkpoint, store: ParameterStore) -> None:
    """Set the store's rows of optimizer states to the means over the ranks of the saved run."""
    ranks = checkpoint.header.ranks
    for name, tensor in checkpoint.own.items():
        if not isinstance(name, Slot) or name not in store.tensors:
            continue
        length = tensor.shape[0] // ranks
        rows = store.owners.rows(length, store.rank)
        # One rank's rows at a time, since all of them may exceed the memory.
        total = np.zeros((), dtype=np.float32)
        for rank in range(ranks):
            first = rank * length
            total = total + tensor.rows(first + rows.start, first + rows.stop)
        store.tensors[name].copy_(torch.from_numpy(total / ranks))


def fill(checkpoint: Checkpoint, store: ParameterStore) -> None:
    """Set a store's rows, and its factors of the full network, to those of a checkpoint.

    Raises DataError if the file lacks a tensor.
    """
    store.scale = checkpoint.header.scale
    store.fitted = checkpoint.header.fitted
    store.seed = None
    for name, values in store.tensors.items():
        tensor = checkpoint.tensors.get(name)
        if tensor is None:
            raise DataError(
                f"{checkpoint.path}: it lacks optimizer state {name}, which this run needs."
            )
        rows = store.owners.rows(tensor.shape[0], store.rank)
        tensor.read_bytes(rows.start, rows.stop, _bytes(values).reshape(-1))


def read_moments(checkpoint: Checkpoint) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the mean and variance of each batch normalisation; the file has sqrt(variance +
    epsilon)."""
    moments = {}
    for name, (mean, std) in checkpoint.moments.items():
        epsilon = _find_norm(checkpoint.architecture.batch_norms, name).epsilon
        # Rounding may make the difference negative.
        variance = np.maximum(np.square(std, dtype=np.float64) - epsilon, 0).astype(std.dtype)
        moments[name] = (torch.from_numpy(mean), torch.from_numpy(variance))
    return moments


def list_versions() -> dict[str, str]:
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
