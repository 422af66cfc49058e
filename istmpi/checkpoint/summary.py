"""Describes a checkpoint in plain values, for tables and for other programs. Needs neither MPI nor torch."""

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.checkpoint.folder import FOLDER
from istmpi.checkpoint.format import FORMAT
from istmpi.checkpoint.reader import MOMENTS, Checkpoint, Tensor, open_checkpoint
from istmpi.engine.slots import Slot
from istmpi.errors import DataError
from istmpi.methods import METHODS


def files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Give a run's folder, or its folder of checkpoints.")
    try:
        places = [sorted(place.glob("*.h5"), key=lambda path: path.stem) for place in (folder / FOLDER, folder)]
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}).") from None
    hdf5_files = [path for paths in places for path in paths if path.is_file()]
    if not hdf5_files:
        raise DataError(f"{folder} has no checkpoints, nor a folder {FOLDER}. Give a run's folder.")
    return hdf5_files


def entry(path: Path, folder: Path) -> dict[str, Any] | None:
    """Describe one file of a folder; facts that cannot be read are None, and so is the entry of a file removed since.

    ``local_steps``: of each rank since the start; None where a round is passes over the data.
    """
    facts = {"file": str(path.relative_to(folder)), "bytes": 0, "modified": "", "problem": None}
    facts |= dict.fromkeys(("round", "rounds", "local_steps", "ranks", "method"))
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return facts | {"problem": f"{error.strerror}."}
    modified = datetime.fromtimestamp(status.st_mtime, timezone.utc).isoformat(timespec="seconds")
    facts |= {"bytes": status.st_size, "modified": modified}
    try:
        with open_checkpoint(path) as checkpoint:
            header = checkpoint.header
    except DataError as error:
        return facts | {"problem": str(error).removeprefix(f"{path}: ")} if path.exists() else None
    method = header.run.method
    in_passes = method.name in METHODS and METHODS[method.name].in_passes
    return facts | {
        "round": header.round,
        "rounds": header.run.train.rounds,
        "local_steps": None if in_passes else header.round * method.local_steps,
        "ranks": header.ranks,
        "method": method.name,
    }


def contents(checkpoint: Checkpoint) -> dict[str, Any]:
    header = checkpoint.header
    values = {item.name: getattr(header, item.name) for item in dataclasses.fields(header)}
    tensors = {True: [], False: []}
    for tensor in checkpoint.tensors.values():
        tensors[isinstance(tensor.name, Slot)].append(_tensor(tensor))
    return {
        "path": str(checkpoint.path),
        "format": FORMAT,
        "version": checkpoint.version,
        "header": values | {"run": header.run.tree(), "data": dataclasses.asdict(header.data)},
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
