"""Turns files of data into one prepared file."""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data import KINDS
from istmpi.data.archive import Archive
from istmpi.data.decoder import Decoder, Note, Notes, list_first
from istmpi.data.writer import Material, Progress, check_target, write
from istmpi.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Report:
    target: Path
    task: str
    shape: tuple[int, ...]
    features: int
    classes: tuple[str, ...] | None
    counts: Mapping[str, int]
    split: str
    class_counts: tuple[int, ...] | None
    """The number of training examples of each class; None without classes."""
    skipped: Sequence[str]
    assumed: list[Note]
    left_out: list[Note]
    reading: dict[str, Any]
    seconds: float
    bytes: int
    facts: Mapping[str, Any]


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
    started = time.monotonic()
    target = Path(target)
    _require_options(kind, options)
    if not 0 <= max_bad <= 1:
        raise ConfigError(
            f"max_bad is {max_bad}; it must be a fraction of the files from 0 to 1, such as 0.01."
        )
    # Before anything is read: a wrong name must not cost hours.
    check_target(target, force)
    archive = Archive(source, target.parent)
    with Decoder(target.parent, progress, max_bad) as decoder:
        material = KINDS[kind].read(archive, decoder, **options)
        write(kind, material, target, force, decoder.notes.reading, progress)
    # Only now is it known which files a reader took.
    for line in archive.list_unread():
        decoder.notes.leave_out(line)
    _note_untested(material, decoder.notes)
    return _report(target, material, decoder, time.monotonic() - started)


def _note_untested(material: Material, notes: Notes) -> None:
    """Note the classes that the test split lacks."""
    tested = zip(material.classes or (), _count_classes(material, "test") or ())
    absent = [name for name, count in tested if not count]
    if absent:
        notes.leave_out(f"the test split has no example of {list_first(absent)}")


def _report(target: Path, material: Material, decoder: Decoder, seconds: float) -> Report:
    notes = decoder.notes
    return Report(
        target=target,
        task=material.task,
        shape=material.shape,
        features=prod(material.shape) if material.shape else 0,
        classes=material.classes,
        counts=material.counts,
        split=decoder.split,
        class_counts=_count_classes(material, "train"),
        skipped=material.skipped,
        assumed=notes.assumed,
        left_out=notes.left_out,
        reading=notes.reading,
        seconds=seconds,
        bytes=target.stat().st_size,
        facts=material.facts,
    )


def _require_options(kind: str, options: Collection[str]) -> None:
    """Raise ConfigError for an unknown kind, or an option that the kind does not have."""
    if kind not in KINDS:
        raise ConfigError(f"data kind {kind!r} does not exist{did_you_mean(kind, KINDS)}")
    names = [name for name, _, _ in KINDS[kind].options]
    for option in options:
        if option not in names:
            takes = did_you_mean(option, names) if names else "; it has no options"
            raise ConfigError(f"data kind {kind} has no option {option}{takes}")


def _count_classes(material: Material, split: str) -> tuple[int, ...] | None:
    """Return the number of a split's examples of each class or label; None without either."""
    y = material.datasets.get(f"{split}/y")
    # Floats are numbers to predict.
    if y is None or y.dtype.kind == "f":
        return None
    if y.ndim == 1:
        return tuple(np.bincount(y, minlength=material.outputs).tolist())
    return tuple(y.sum(axis=0, dtype=np.int64).tolist())
