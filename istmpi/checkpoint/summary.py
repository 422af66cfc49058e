"""Describes a checkpoint in plain values, for tables and for other programs. Needs neither MPI nor torch."""

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.checkpoint.folder import FOLDER
from istmpi.checkpoint.format import FORMAT, Header
from istmpi.checkpoint.reader import MOMENTS, Checkpoint, Tensor, open_checkpoint
from istmpi.engine.slots import Slot
from istmpi.errors import DataError
from istmpi.hdf5 import Read, unheard
from istmpi.methods import METHODS


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file in a folder of checkpoints; facts that cannot be read are None."""

    file: str
    bytes: int
    modified: str
    """The time of writing: ISO 8601, UTC."""
    problem: str | None
    """The reason why it is not valid; None if it is."""
    round: int | None = None
    rounds: int | None = None
    local_steps: int | None = None
    """Local steps of each rank since the start; None where a round is passes over the data."""
    ranks: int | None = None
    method: str | None = None


def files(folder: Path) -> list[Path]:
    """List the HDF5 files of a run's folder or of a folder of checkpoints, by name; DataError where there are none."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Give that of a run, or of its checkpoints.")
    try:
        places = [sorted(place.glob("*.h5"), key=lambda path: path.stem) for place in (folder / FOLDER, folder)]
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}).") from None
    hdf5_files = [path for paths in places for path in paths if path.is_file()]
    if not hdf5_files:
        raise DataError(f"{folder} has no checkpoints, nor has a folder {FOLDER} in it. Give the folder of a run.")
    return hdf5_files


def entry(path: Path, folder: Path, verify: bool, read: Read = unheard) -> Entry | None:
    """Describe one file of a folder; None when it was removed since. With ``verify`` every byte of it is read."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return Entry(str(path.relative_to(folder)), 0, "", f"{error.strerror}.")
    modified = datetime.fromtimestamp(status.st_mtime, timezone.utc).isoformat(timespec="seconds")
    facts = {"file": str(path.relative_to(folder)), "bytes": status.st_size, "modified": modified, "problem": None}
    try:
        with open_checkpoint(path) as checkpoint:
            header = checkpoint.header
            method = header.run.method
            in_passes = method.name in METHODS and METHODS[method.name].in_passes
            facts |= {
                "round": header.round,
                "rounds": header.run.train.rounds,
                "local_steps": None if in_passes else header.round * method.local_steps,
                "ranks": header.ranks,
                "method": method.name,
            }
            if verify:
                facts["problem"] = next(checkpoint.errors(read=read), None)
    except DataError as error:
        if not path.exists():
            return None
        facts["problem"] = str(error).removeprefix(f"{path}: ")
    return Entry(**facts)


def header_values(header: Header) -> dict[str, Any]:
    values = {item.name: getattr(header, item.name) for item in dataclasses.fields(header)}
    return values | {
        "run": header.run.tree(),
        "data": dataclasses.asdict(header.data),
        "scale": dict(header.scale),
        "fitted": dict(header.fitted),
        "versions": dict(header.versions),
        "shares": {number: list(shares) for number, shares in header.shares.items()},
        "network": dict(header.network),
    }


def contents(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return everything but the values: header, tensors, moments, classes."""
    tensors = {True: [], False: []}
    for tensor in checkpoint.tensors.values():
        tensors[isinstance(tensor.name, Slot)].append(_tensor(tensor))
    return {
        "path": str(checkpoint.path),
        "format": FORMAT,
        "version": checkpoint.version,
        "header": header_values(checkpoint.header),
        "parameters": tensors[False],
        "optimizer": tensors[True],
        "own": [_tensor(tensor) for tensor in checkpoint.own.values()],
        "calibrated": checkpoint.calibrated,
        "norms": {stage: _moments(*pair) for stage, pair in checkpoint.moments.items()},
        "input": _moments(*checkpoint.normalisation[:2]) if checkpoint.normalisation else None,
        "classes": checkpoint.classes and list(checkpoint.classes),
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    nbytes = tensor.dataset.id.get_storage_size()
    axes = str(tensor.pattern)
    return {"name": tensor.name, "shape": list(tensor.shape), "axes": axes, "dtype": tensor.dtype, "bytes": nbytes}


def _moments(*pair: Sequence[float]) -> dict[str, Any]:
    ranges = {name: [float(np.min(values)), float(np.max(values))] for name, values in zip(MOMENTS, pair, strict=True)}
    return {"units": len(pair[0]), **ranges}
