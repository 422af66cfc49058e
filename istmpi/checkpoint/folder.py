"""The checkpoints in a run's folder: their names and contents, the newest valid checkpoint, and
those to keep."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.checkpoint.format import FORMAT, Header
from istmpi.checkpoint.reader import MOMENTS, Checkpoint, Tensor, open_checkpoint
from istmpi.comm import Communicator
from istmpi.config.methods import METHODS
from istmpi.engine.slots import Slot
from istmpi.errors import DataError, OutputError

FOLDER = "checkpoints"
NETWORK = "network.h5"
BEST = "best.h5"

_PATTERN = "round-*.h5"
_NAME = re.compile(r"round-(\d+)(?:-step-(\d+))?\.h5")


def name(header: Header) -> str:
    return f"round-{header.round:08d}.h5"


def listed(folder: Path) -> list[Path]:
    """List the checkpoints of a run's folder: `NETWORK`, then the others, the newest first; not
    `BEST`.

    ``folder`` may also be the run's folder of checkpoints.
    """
    inside = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    network = [folder / NETWORK] if (folder / NETWORK).is_file() else []
    return network + sorted(inside.glob(_PATTERN), key=lambda path: path.stem, reverse=True)


def newest_valid(
    folder: Path, communicator: Communicator, note: Callable[[str], None]
) -> Path | None:
    """Return the valid checkpoint of the latest round: its checksums fit. Collective.

    Returns None if there are no checkpoints. Raises DataError on every rank if none of them is
    valid. Rank 0 calls ``note`` with a message about each invalid checkpoint.
    """
    paths = communicator.broadcast_from_root(
        _by_position(folder, note) if communicator.rank == 0 else None
    )
    for path in paths:
        try:
            require_valid(path, communicator)
            return path
        except DataError as error:
            if communicator.rank == 0:
                note(f"{error} Skipped.")
    there = communicator.broadcast_from_root(bool(listed(folder)))
    with communicator.agreed():
        if there:
            raise DataError(
                f"{folder}: no checkpoint in it is valid on every rank. Put it where all ranks see it, remove "
                "its checkpoints, or give another --out."
            )
    return None


def require_valid(path: Path, communicator: Communicator) -> None:
    """Verify a checkpoint, a part on each rank. Raises DataError on every rank if it is damaged.
    Collective."""
    with communicator.agreed(), open_checkpoint(path) as checkpoint:
        checkpoint.require_valid(communicator.rank, communicator.size)


def _by_position(folder: Path, note: Callable[[str], None]) -> list[Path]:
    positions = []
    for path in listed(folder):
        try:
            with open_checkpoint(path) as checkpoint:
                positions.append((checkpoint.header.position, path))
        except DataError as error:
            note(f"{error} Skipped.")
    return [path for _, path in sorted(positions, key=lambda entry: entry[0], reverse=True)]


def set_aside(folder: Path, start: Path) -> list[Path]:
    """Rename the checkpoints that a later resume would take for newer than ``start``; return their
    new paths.

    An unreadable checkpoint has the round of its name. Raises OutputError if a file cannot be
    renamed.
    """
    paths = sorted(listed(folder), key=_position, reverse=True)
    inside = next((number for number, path in enumerate(paths) if path.samefile(start)), None)
    beyond = (
        [path for path in paths if _position(path) >= _position(start)]
        if inside is None
        else paths[:inside]
    )
    ending = (
        next(f".aside-{n}" for n in count(1) if not any(folder.rglob(f"*.aside-{n}")))
        if beyond
        else ""
    )
    for path in beyond:
        try:
            path.rename(path.with_name(path.name + ending))
        except OSError as error:
            raise OutputError(f"{path}: cannot be renamed ({error.strerror}).") from None
    return [path.with_name(path.name + ending) for path in beyond]


def _position(path: Path) -> tuple[float, float]:
    try:
        with open_checkpoint(path) as checkpoint:
            return checkpoint.header.position
    except DataError:
        named = _NAME.fullmatch(path.name)
        return (int(named[1]), int(named[2] or 0)) if named else (float("inf"), 0)


def retain(folder: Path, keep: int, valid: Sequence[Path]) -> None:
    """Remove all checkpoints except the last ``keep`` of ``valid``; if ``valid`` has fewer, remove
    nothing."""
    if len(valid) < keep:
        return
    for path in listed(folder):
        if path not in valid[-keep:]:
            with contextlib.suppress(OSError):
                path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove a killed run's unfinished files from ``folder``: the run's folder, or its folder of
    checkpoints."""
    names = _PATTERN, NETWORK, BEST, "progress.png", "run.toml", "summary.json", "metrics.jsonl"
    for path in (path for name in names for path in folder.glob(f".{name}.*.tmp")):
        with contextlib.suppress(OSError):
            path.unlink()


def files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder. Give a run's folder, or its folder of checkpoints."
        )
    try:
        places = [
            sorted(place.glob("*.h5"), key=lambda path: path.stem)
            for place in (folder / FOLDER, folder)
        ]
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}).") from None
    hdf5_files = [path for paths in places for path in paths if path.is_file()]
    if not hdf5_files:
        raise DataError(f"{folder} has no checkpoints, nor a folder {FOLDER}. Give a run's folder.")
    return hdf5_files


def entry(path: Path, folder: Path) -> dict[str, Any] | None:
    """Return facts about a file of a folder; None if it is gone. ``problem``: the reason why it is
    unreadable.

    ``local_steps`` counts each rank's steps since the start; it is None if a round consists of
    passes over the data.
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
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "axes": axes,
        "dtype": tensor.dtype,
        "bytes": nbytes,
    }


def _moments(*pair: Sequence[float]) -> dict[str, Any]:
    ranges = {
        name: [float(np.min(values)), float(np.max(values))]
        for name, values in zip(MOMENTS, pair, strict=True)
    }
    return {"units": len(pair[0]), **ranges}
