"""From the files that data come in to one prepared file.

To add a kind, write a module with a function ``read(archive, decoder, **options) -> Material`` and name it in KINDS.
Its keyword-only arguments are the options that the kind takes.
"""

import inspect
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data.dense import arrays, idx, speech, tables
from istmpi.data.dense.material import Material, Progress
from istmpi.data.files.archive import Archive
from istmpi.data.files.decoder import Decoder
from istmpi.data.files.notes import Note, Notes
from istmpi.data.graph import prepare as graph
from istmpi.data.graph.prepare import Facts as GraphFacts
from istmpi.data.graph.prepare import GraphMaterial
from istmpi.data.hdf5 import Writer
from istmpi.data.images import prepare as images
from istmpi.data.offsets import NarrowError
from istmpi.data.sparse import prepare as xc
from istmpi.data.sparse.prepare import Facts as RowFacts
from istmpi.data.sparse.prepare import SparseMaterial
from istmpi.data.text import prepare as text
from istmpi.data.text.prepare import Corpus, Facts
from istmpi.data.writer import check_target
from istmpi.errors import ConfigError, did_you_mean
from istmpi.tasks import CLASSIFICATION, DENSE_LABELS
from istmpi.units import counted

AnyMaterial = Material | Corpus | SparseMaterial | GraphMaterial

KINDS: dict[str, Callable[..., AnyMaterial]] = {
    "speech": speech.read,
    "images": images.read,
    "idx": idx.read,
    "arrays": arrays.read,
    "csv": tables.read,
    "text": text.read,
    "xc": xc.read,
    "graph": graph.read,
}


@dataclass(frozen=True)
class Report:
    """What was written: ``counts`` per split, the names of the ``skipped`` files, ``bytes`` of the file.

    ``split`` says how examples came to be in their splits, ``of_class`` how many each class or label has for training.
    ``assumed`` and ``left_out`` are the notes of the reader, ``reading`` the conventions that the file keeps. Text,
    whose counts are tokens, has no shape and says more in ``text``; sparse rows say more in ``rows``, and a graph,
    whose counts are nodes, in ``graph``.
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
    text: Facts | None = None
    rows: RowFacts | None = None
    graph: GraphFacts | None = None


def prepare(
    kind: str,
    source: str | os.PathLike,
    target: str | os.PathLike,
    *,
    progress: Progress | None = None,
    force: bool = False,
    max_bad: float = 0.01,
    **options: object,
) -> Report:
    """Turn ``source`` (a folder, a .tar, .tar.gz or a file) of a kind into the prepared file ``target``.

    ``force`` replaces an existing target; ``max_bad`` is the share of the files that may be unreadable. ``options`` are
    the kind's own: images take size, arrays take task and channels, csv takes label, task, header and delimiter, text
    takes tokenizer and key, xc takes counted_from, a graph takes clusters, directed, normalise and split. Raises
    DataError for input that cannot be used, ConfigError for a kind, an option or a target that cannot be, OutputError
    where writing fails; then nothing is left behind and an existing target is as it was.
    """
    started = time.monotonic()
    target = Path(target)
    progress = progress or _silent
    read = KINDS.get(kind)
    if read is None:
        raise ConfigError(f"data kind {kind!r} does not exist{did_you_mean(kind, KINDS)}")
    _check_options(kind, read, options)
    if not 0 <= max_bad <= 1:
        raise ConfigError(f"max_bad is {max_bad}; it is a share of the files, from 0 to 1, for example 0.01.")
    check_target(target, force)
    archive = Archive(source, target.parent)
    with Decoder(target.parent, progress, max_bad) as decoder:
        material = read(archive, decoder, **options)
        try:
            of_class = _write(material, decoder.notes, {}, kind, str(source), target, force, progress)
        except NarrowError as narrow:  # rare: so all is read again, and nobody else pays for it
            decoder.notes = Notes()
            material = read(archive, decoder, **options)
            of_class = _write(material, decoder.notes, narrow.offsets, kind, str(source), target, force, progress)
        notes = decoder.notes
    if archive.linked:
        notes.assume(f"{counted(len(archive.linked), 'link')} followed, such as {min(archive.linked)}")
    for line in archive.passed_over():
        notes.leave_out(line)
    return Report(
        target=target,
        task=material.task,
        shape=material.shape,
        features=material.features,
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
        text=material.facts if isinstance(material, Corpus) else None,
        rows=material.facts if isinstance(material, SparseMaterial) else None,
        graph=material.facts if isinstance(material, GraphMaterial) else None,
    )


def _write(
    material: AnyMaterial,
    notes: Notes,
    offsets: Mapping[str, np.ndarray],
    kind: str,
    source: str,
    target: Path,
    force: bool,
    progress: Progress,
) -> tuple[int, ...] | None:
    """Write the file; how many training examples each class has, or each label where they have any number of them."""
    done, total = 0, sum(material.counts.values())
    counted = material.task in (CLASSIFICATION, DENSE_LABELS)
    of_class = np.zeros(material.outputs, np.int64) if counted else None
    writer = material.writer(kind, source, target, force)
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
    if isinstance(writer, Writer):
        for remark in writer.differences.remarks:
            notes.assume(remark)
    return None if of_class is None else tuple(of_class.tolist())


def _check_options(kind: str, read: Callable[..., AnyMaterial], options: dict[str, object]) -> None:
    parameters = inspect.signature(read).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            takes = did_you_mean(option, known) if known else "; it takes none"
            raise ConfigError(f"data kind {kind} has no option {option}{takes}")


def _silent(stage: str, done: int, total: int) -> None:
    pass
