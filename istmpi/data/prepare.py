"""The way from the files that data come in to one prepared file.

A source is a module with a function ``read(archive, decoder, **options) -> Material`` (`istmpi.data.kinds`); its
keyword-only arguments are the options that it takes.
"""

import inspect
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder, Progress
from istmpi.data.files.notes import Note, Notes
from istmpi.data.kinds import KINDS
from istmpi.data.offsets import NarrowError
from istmpi.data.writer import Material, check_target
from istmpi.errors import ConfigError, did_you_mean
from istmpi.tasks import TASKS
from istmpi.units import counted


@dataclass(frozen=True)
class Report:
    """A finished preparation; ``of_class`` says how many training examples each class or label has.

    ``text``, ``rows`` and ``graph`` are the facts of these kinds.
    """

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
    text: Any = None
    rows: Any = None
    graph: Any = None


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
    """Turn ``source`` (a folder, a .tar, .tar.gz or a file) of a kind into the prepared file ``target``.

    ``max_bad`` is the share of the files that may be unreadable; ``options`` are those of the kind's reader. Where it
    fails, nothing is left behind and an existing target is as it was.
    """
    started, target = time.monotonic(), Path(target)
    if kind not in KINDS:
        raise ConfigError(f"data kind {kind!r} does not exist{did_you_mean(kind, KINDS)}")
    read = import_module(f"istmpi.data.{KINDS[kind]}").read
    parameters = inspect.signature(read).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for option in (option for option in options if option not in names):
        takes = did_you_mean(option, names) if names else "; it takes none"
        raise ConfigError(f"data kind {kind} has no option {option}{takes}")
    if not 0 <= max_bad <= 1:
        raise ConfigError(f"max_bad is {max_bad}; it is a share of the files, from 0 to 1, for example 0.01.")
    check_target(target, force)
    archive = Archive(source, target.parent)
    with Decoder(target.parent, progress, max_bad) as decoder:
        material = read(archive, decoder, **options)
        try:
            of_class = _write(material, decoder.notes, {}, target, force, progress)
        except NarrowError as narrow:  # rare: so all is read again, and nobody else pays for it
            decoder.notes = Notes()
            material = read(archive, decoder, **options)
            of_class = _write(material, decoder.notes, narrow.offsets, target, force, progress)
        notes = decoder.notes
    if archive.linked:
        notes.assume(f"{counted(len(archive.linked), 'link')} followed, such as {min(archive.linked)}")
    for line in archive.passed_over():
        notes.leave_out(line)
    return Report(
        target=target,
        task=material.task,
        shape=material.shape,
        features=int(np.prod(material.shape)) if material.shape else 0,
        classes=material.classes,
        counts=material.counts,
        split=decoder.split,
        of_class=of_class,
        skipped=material.skipped,
        assumed=notes.assumed,
        left_out=notes.left_out,
        reading=notes.reading,
        seconds=time.monotonic() - started,
        bytes=target.stat().st_size,
        **material.facts,
    )


def _write(
    material: Material,
    notes: Notes,
    offsets: Mapping[str, np.ndarray],
    target: Path,
    force: bool,
    progress: Progress,
) -> tuple[int, ...] | None:
    """Write the file; return how many training examples each class or label has, where there are some."""
    done, total, task = 0, sum(material.counts.values()), TASKS[material.task]
    of_class = np.zeros(material.outputs, np.int64) if task.one_class or task.several_labels else None
    writer = material.writes(target, material, force)
    writer.reading = notes.reading
    if offsets:
        writer.differences.offsets = offsets
    with writer:
        for split, *rows in material.blocks:
            writer.append(split, *rows)
            done += len(rows[0])
            progress("writing", done, total)
            if of_class is not None and split == "train":
                y = rows[1]
                of_class += np.bincount(y, minlength=len(of_class)) if y.ndim == 1 else y.sum(axis=0, dtype=np.int64)
    for remark in writer.remarks:
        notes.assume(remark)
    return None if of_class is None else tuple(of_class.tolist())
