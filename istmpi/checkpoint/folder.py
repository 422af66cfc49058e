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
from istmpi.config.methods import runs_in_passes
from istmpi.engine.slots import Slot
from istmpi.errors import DataError, OutputError

FOLDER = "checkpoints"
NETWORK = "network.h5"
BEST = "best.h5"

_PATTERN = "round-*.h5"
_NAME = re.compile(r"round-(\d+)(?:-step-(\d+))?\.h5")


def file_name(header: Header) -> str:
    return f"round-{header.round:08d}.h5"


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a run's folder: `NETWORK`, then the others, the newest first; not
    `BEST`.

    ``folder`` may also be the run's folder of checkpoints.
    """
    inside = folder
    if (folder / FOLDER).is_dir():
        inside = folder / FOLDER
    # Round numbers have leading zeros, so that the order of names is that of rounds.
    paths = sorted(inside.glob(_PATTERN), key=lambda path: path.stem, reverse=True)
    if (folder / NETWORK).is_file():
        paths.insert(0, folder / NETWORK)
    return paths


def find_newest_valid(
    folder: Path, communicator: Communicator, note: Callable[[str], None]
) -> Path | None:
    """Return the valid checkpoint of the latest round: its checksums fit. Collective.

    Returns None if there are no checkpoints. Raises DataError on every rank if none of them is
    valid. Rank 0 calls ``note`` with a message about each invalid checkpoint.
    """
    paths: list[Path] = []
    if communicator.rank == 0:
        paths = _sort_by_position(folder, note)
    for path in communicator.broadcast_from_root(paths):
        try:
            require_valid(path, communicator)
            return path
        except DataError as error:
            if communicator.rank == 0:
                note(f"{error} Skipped.")
    # Rank 0 decides, for a rank may not see the folder.
    has_checkpoints = communicator.broadcast_from_root(bool(list_checkpoints(folder)))
    with communicator.agreed():
        if has_checkpoints:
            raise DataError(
                f"{folder}: no checkpoint in it is valid on every rank. "
                "Put it where all ranks see it, remove its checkpoints, or give another --out."
            )
    return None


def require_valid(path: Path, communicator: Communicator) -> None:
    """Verify a checkpoint, a part on each rank. Raises DataError on every rank if it is damaged.
    Collective."""
    with communicator.agreed(), open_checkpoint(path) as checkpoint:
        checkpoint.require_valid(communicator.rank, communicator.size)


def _sort_by_position(folder: Path, note: Callable[[str], None]) -> list[Path]:
    """Return the readable checkpoints, those of the latest round first."""
    positions = {}
    for path in list_checkpoints(folder):
        try:
            with open_checkpoint(path) as checkpoint:
                positions[path] = checkpoint.header.position
        except DataError as error:
            note(f"{error} Skipped.")
    return sorted(positions, key=lambda path: positions[path], reverse=True)


def set_aside(folder: Path, start: Path) -> list[Path]:
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


def _find_newer(folder: Path, start: Path) -> list[Path]:
    paths = sorted(list_checkpoints(folder), key=_find_position, reverse=True)
    for number, path in enumerate(paths):
        if path.samefile(start):
            return paths[:number]
    # ``start`` lies in another folder.
    return [path for path in paths if _find_position(path) >= _find_position(start)]


def _find_position(path: Path) -> tuple[float, float]:
    try:
        with open_checkpoint(path) as checkpoint:
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
            with contextlib.suppress(OSError):
                path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove a killed run's unfinished files from ``folder``: the run's folder, or its folder of
    checkpoints."""
    names = (_PATTERN, NETWORK, BEST, "progress.png", "run.toml", "summary.json", "metrics.jsonl")
    for name in names:
        for path in folder.glob(f".{name}.*.tmp"):
            with contextlib.suppress(OSError):
                path.unlink()


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
        with open_checkpoint(path) as checkpoint:
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
    header = checkpoint.header
    values = {item.name: getattr(header, item.name) for item in dataclasses.fields(header)}
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
        "header": values | {"run": header.run.tree(), "data": dataclasses.asdict(header.data)},
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
