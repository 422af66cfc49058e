"""The checkpoints in a run's folder: their names and contents, the newest valid checkpoint, and
those to keep."""

import contextlib
import re
import shutil
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.checkpoint.format import FORMAT, Header
from istmpi.checkpoint.parts import Copy, is_round_of_parts, list_parts
from istmpi.checkpoint.reader import MOMENTS, Checkpoint, Tensor, open_file
from istmpi.checkpoint.sight import PROBE
from istmpi.config.methods import runs_in_passes
from istmpi.engine.slots import Slot
from istmpi.errors import DataError, OutputError

FOLDER = "checkpoints"
NETWORK = "network.h5"
BEST = "best.h5"

_PATTERN = "round-*.h5"
_NAME = re.compile(r"round-(\d+)(?:-step-(\d+))?(?:\.h5)?")


def file_name(header: Header) -> str:
    return f"round-{header.round:08d}.h5"


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a run's folder: `NETWORK`, then the others, the newest first; not
    `BEST`. One in parts is a folder.

    ``folder`` may also be the run's folder of checkpoints.
    """
    inside = folder
    if (folder / FOLDER).is_dir():
        inside = folder / FOLDER
    paths = [*inside.glob(_PATTERN), *filter(is_round_of_parts, inside.glob("round-*"))]
    # Round numbers have leading zeros, so that the order of names is that of rounds.
    paths.sort(key=lambda path: path.stem, reverse=True)
    if (folder / NETWORK).is_file():
        paths.insert(0, folder / NETWORK)
    return paths


def set_aside(folder: Path, start: Copy) -> list[Path]:
    """Rename the checkpoints that a later resume would take for newer than ``start``; return their
    new paths.

    An unreadable checkpoint has the round of its name. Raises OutputError if a file cannot be
    renamed.
    """
    newer = _find_newer(folder, start)
    if not newer:
        return []
    # All files of a call get the same number, so that a user can put them back together.
    number = next(n for n in count(1) if not any(folder.rglob(f"*.aside-{n}")))
    renamed = []
    for path in newer:
        aside = path.with_name(f"{path.name}.aside-{number}")
        try:
            path.rename(aside)
        except OSError as error:
            raise OutputError(f"{path}: cannot be renamed ({error.strerror}).") from None
        renamed.append(aside)
    return renamed


def _find_newer(folder: Path, start: Copy) -> list[Path]:
    paths = sorted(list_checkpoints(folder), key=_find_position, reverse=True)
    for number, path in enumerate(paths):
        if start.path.exists() and path.samefile(start.path):
            return paths[:number]
    # ``start`` lies in another folder, or on another host.
    position = _find_position(start.file)
    return [path for path in paths if _find_position(path) >= position]


def _find_position(path: Path) -> tuple[float, float]:
    file = path
    # All parts have the same header.
    if path.is_dir():
        _, file = next(list_parts(path))
    try:
        with open_file(file) as checkpoint:
            return checkpoint.header.position
    except DataError:
        # Files of earlier versions also have a step in their name.
        named = _NAME.fullmatch(path.name)
        if named is None:  # such as `NETWORK`, which is written last
            return float("inf"), 0
        return int(named[1]), int(named[2] or 0)


def retain(folder: Path, keep: int, valid: Sequence[Path]) -> None:
    """Remove all checkpoints except the last ``keep`` of ``valid``; if ``valid`` has fewer, remove
    nothing."""
    # Files of an earlier job may be the only valid ones.
    if len(valid) < keep:
        return
    for path in list_checkpoints(folder):
        if path not in valid[-keep:]:
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove a killed run's unfinished files from ``folder``: the run's folder, or its folder of
    checkpoints."""
    names = (_PATTERN, NETWORK, BEST, "progress.png", "run.toml", "summary.json", "metrics.jsonl")
    for name in (*names, PROBE):
        for path in folder.glob(f".{name}.*.tmp"):
            with contextlib.suppress(OSError):
                path.unlink()
    # A kill while parts are named or removed leaves an empty folder; others are not removed here.
    for path in folder.glob("round-*"):
        with contextlib.suppress(OSError):
            path.rmdir()


def find_files(folder: Path) -> list[Path]:
    """Return the HDF5 files of a run's folder, or of its folder of checkpoints.

    Raises DataError if there are none.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder. Give a run's folder, or its folder of checkpoints."
        )
    hdf5_files: list[Path] = []
    try:
        for place in (folder / FOLDER, folder):
            hdf5_files += sorted(place.glob("*.h5"), key=lambda path: path.stem)
            hdf5_files += [
                path for round in sorted(place.glob("round-*")) for _, path in list_parts(round)
            ]
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}).") from None
    hdf5_files = [path for path in hdf5_files if path.is_file()]
    if not hdf5_files:
        raise DataError(f"{folder} has no checkpoints, nor a folder {FOLDER}. Give a run's folder.")
    return hdf5_files


def describe_file(path: Path, folder: Path) -> dict[str, Any] | None:
    """Return facts about a file of a folder; None if it is gone. ``problem``: the reason why it is
    unreadable.

    ``local_steps`` counts each rank's steps since the start; it is None if a round consists of
    passes over the data.
    """
    facts: dict[str, Any] = {
        "file": str(path.relative_to(folder)),
        "bytes": 0,
        "modified": "",
        "problem": None,
        "round": None,
        "rounds": None,
        "local_steps": None,
        "ranks": None,
        "method": None,
    }
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return facts | {"problem": f"{error.strerror}."}
    modified = datetime.fromtimestamp(status.st_mtime, timezone.utc)
    facts["bytes"] = status.st_size
    facts["modified"] = modified.isoformat(timespec="seconds")
    try:
        with open_file(path) as checkpoint:
            header = checkpoint.header
    except DataError as error:
        if not path.exists():  # a run beside has removed it
            return None
        return facts | {"problem": str(error).removeprefix(f"{path}: ")}
    return facts | _describe_run(header)


def _describe_run(header: Header) -> dict[str, Any]:
    method = header.run.method
    local_steps: int | None = header.round * method.local_steps
    if runs_in_passes(method.name):
        local_steps = None
    return {
        "round": header.round,
        "rounds": header.run.train.rounds,
        "local_steps": local_steps,
        "ranks": header.ranks,
        "method": method.name,
    }


def describe_contents(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the facts about a checkpoint's contents as a tree for JSON."""
    parameters = []
    slots = []
    for tensor in checkpoint.tensors.values():
        if isinstance(tensor.name, Slot):
            slots.append(_describe_tensor(tensor))
        else:
            parameters.append(_describe_tensor(tensor))
    norms = {stage: _describe_moments(*pair) for stage, pair in checkpoint.moments.items()}
    normalisation = checkpoint.normalisation
    inputs = None
    if normalisation:
        inputs = _describe_moments(normalisation.mean, normalisation.std)
    return {
        "path": str(checkpoint.path),
        "format": FORMAT,
        "version": checkpoint.version,
        "header": checkpoint.header.tree(),
        "parameters": parameters,
        "optimizer": slots,
        "own": [_describe_tensor(tensor) for tensor in checkpoint.own.values()],
        "calibrated": checkpoint.calibrated,
        "norms": norms,
        "input": inputs,
        "classes": checkpoint.classes and list(checkpoint.classes),
    }


def _describe_tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "axes": str(tensor.pattern),
        "dtype": tensor.dtype,
        "bytes": tensor.dataset.id.get_storage_size(),
    }


def _describe_moments(mean: np.ndarray, std: np.ndarray) -> dict[str, Any]:
    facts: dict[str, Any] = {"units": len(mean)}
    for name, values in zip(MOMENTS, (mean, std), strict=True):
        facts[name] = [float(np.min(values)), float(np.max(values))]
    return facts
