"""Turns files of data into one prepared file."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data import KINDS
from istmpi.data.archive import Archive
from istmpi.data.decoder import Decoder, Note, first_of
from istmpi.data.writer import Material, Progress, check_target, write
from istmpi.errors import ConfigError, did_you_mean
from istmpi.tasks import TASKS


@dataclass(frozen=True)
class Report:
    target: Path
    task: str
    shape: tuple[int, ...]
    features: int
    classes: tuple[str, ...] | None
    counts: dict[str, int]
    split: str
    of_class: tuple[int, ...] | None
    skipped: list[str]
    assumed: list[Note]
    left_out: list[Note]
    reading: dict[str, Any]
    seconds: float
    bytes: int
    facts: dict[str, Any]


def prepare(
    kind: str,
    source: str | os.PathLike,
    target: str | os.PathLike,
    *,
    progress: Progress = lambda stage, done, total: None,
    force: bool = False,
    max_bad: float = 0.01,
    **options: object,
) -> Report:
    """Turn ``source`` (a folder, a .tar, .tar.gz or a file) of a kind into the prepared file
    ``target``.

    ``max_bad`` is the fraction of files that may be unreadable. ``options`` go to the kind's
    reader. A failure leaves ``target`` as it was. Raises ConfigError, DataError or OutputError.
    """
    started, target = time.monotonic(), Path(target)
    if kind not in KINDS:
        raise ConfigError(f"data kind {kind!r} does not exist{did_you_mean(kind, KINDS)}")
    names = [name for name, _, _ in KINDS[kind].options]
    for option in (option for option in options if option not in names):
        takes = did_you_mean(option, names) if names else "; it has no options"
        raise ConfigError(f"data kind {kind} has no option {option}{takes}")
    if not 0 <= max_bad <= 1:
        raise ConfigError(
            f"max_bad is {max_bad}; it must be a fraction of the files from 0 to 1, such as 0.01."
        )
    check_target(target, force)
    archive = Archive(source, target.parent)
    with Decoder(target.parent, progress, max_bad) as decoder:
        material, notes = KINDS[kind].read(archive, decoder, **options), decoder.notes
        write(kind, material, target, force, notes.reading, progress)
    for line in archive.passed_over():
        notes.leave_out(line)
    tested = zip(material.classes or (), _of_class(material, "test") or ())
    if absent := [name for name, count in tested if not count]:
        notes.leave_out(f"the test split has no example of {first_of(absent)}")
    return Report(
        target=target,
        features=int(np.prod(material.shape)) if material.shape else 0,
        split=decoder.split,
        of_class=_of_class(material),
        seconds=time.monotonic() - started,
        bytes=target.stat().st_size,
        **{
            name: getattr(material, name)
            for name in ("task", "shape", "classes", "counts", "skipped", "facts")
        },
        **vars(notes),
    )


def _of_class(material: Material, split: str = "train") -> tuple[int, ...] | None:
    task, y = TASKS[material.task], material.datasets.get(f"{split}/y")
    if task.one_class:
        return tuple(np.bincount(y, minlength=material.outputs).tolist())
    return tuple(y.sum(axis=0, dtype=np.int64).tolist()) if task.several_labels else None
