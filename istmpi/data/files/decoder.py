"""One file, one example: decode them all, in the order of storage, into rows in the order of names."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from istmpi.data.dense.material import Block, Material, Progress, rows_per_block
from istmpi.data.files.archive import Archive, store
from istmpi.data.files.notes import Notes
from istmpi.data.holdout import held_out
from istmpi.errors import DataError
from istmpi.tasks import CLASSIFICATION

NAMED = 3
"""How many unreadable files a message names."""


class BadFileError(Exception):
    """A file that cannot be decoded; it is skipped, within limits."""


@dataclass(frozen=True, slots=True)
class Example:
    """A file of an archive, and what its name says of it."""

    name: str
    label: str
    split: str


class Decoder:
    """Decodes files into Material with bounded memory; a context that owns the scratch files.

    Rows go to a nameless file in ``scratch``, a folder on the disk of the target, because a tar file's order is not
    that of the names and because only the end tells how many files were unreadable. ``max_bad`` is the share of the
    files that may be.
    """

    def __init__(self, scratch: str | os.PathLike, progress: Progress, max_bad: float):
        self.folder, self.progress, self._max_bad = scratch, progress, max_bad
        self.split = "as SRC has it"
        """How the examples came to be in their splits, in words."""
        self.notes = Notes()
        self._stack = ExitStack()
        self._rows: int | None = None

    def __enter__(self) -> "Decoder":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(
        self,
        archive: Archive,
        examples: list[Example],
        decode: Callable[[str, bytes], np.ndarray],
        shape: tuple[int, ...],
        dtype: np.dtype,
        groups: int,
        most_bytes: int,
    ) -> Material:
        """All examples as a classification set whose classes are their labels, sorted.

        ``decode(name, content)`` gives an array of ``shape`` and ``dtype`` or raises BadFileError. Raises DataError
        where a file has more than ``most_bytes``, where too many files are bad, or where none is left in the training
        or the test split.
        """
        classes = tuple(sorted({example.label for example in examples}))
        examples = sorted(examples, key=lambda example: example.name)
        row_of = {example.name: row for row, example in enumerate(examples)}
        row_bytes = int(np.prod(shape)) * dtype.itemsize
        scratch = self._emptied()
        bad: dict[str, str] = {}
        for done, (name, content) in enumerate(archive.read(row_of, most_bytes), start=1):
            try:
                row = np.ascontiguousarray(decode(name, content), dtype)
                assert row.nbytes == row_bytes, (name, row.shape, row.dtype)
                store(scratch, row, row_of[name] * row_bytes, self.folder)
            except BadFileError as error:
                bad[name] = str(error)
                self.refuse(archive, bad, len(examples))
            self.progress("decoding", done, len(examples))
        kept = [example for example in examples if example.name not in bad]
        counts = _counts(archive, kept)
        codes = {label: code for code, label in enumerate(classes)}
        blocks = _blocks(scratch, row_of, kept, codes, row_bytes, dtype)
        return Material(CLASSIFICATION, shape, len(classes), classes, dtype, groups, counts, blocks, sorted(bad))

    def scratch(self) -> int:
        """The number of a new nameless file on the disk of the target, there until the end."""
        return self._stack.enter_context(tempfile.TemporaryFile(dir=self.folder, buffering=0)).fileno()  # noqa: SIM115

    def _emptied(self) -> int:
        if self._rows is None:
            self._rows = self.scratch()
        os.ftruncate(self._rows, 0)
        return self._rows

    def refuse(self, archive: Archive, bad: dict[str, str], total: int, what: str = "files") -> None:
        """DataError where more of a total are bad, each with a reason, than may be."""
        if len(bad) <= self._max_bad * total:
            return
        names = sorted(bad)[:NAMED]
        raise DataError(
            f"{archive.path}: {len(bad)} of {total} {what} cannot be read, more than {self._max_bad:.1%}, among them "
            f"{', '.join(names)} ({bad[names[0]]}). Repair them, or allow more with --max-bad."
        )


def with_holdout(examples: list[Example]) -> list[Example]:
    """The same examples, one in five of each class a test example: for an archive that has no splits."""
    examples = sorted(examples, key=lambda example: example.name)
    _, codes = np.unique([example.label for example in examples], return_inverse=True)
    test = held_out(len(examples), codes)
    splits = np.where(test, "test", "train").tolist()
    return [Example(e.name, e.label, split) for e, split in zip(examples, splits)]


def _counts(archive: Archive, kept: list[Example]) -> dict[str, int]:
    splits = [example.split for example in kept]
    counts = {split: splits.count(split) for split in ("train", "test", "validation") if split in splits}
    for split in ("train", "test"):
        if split not in counts:
            raise DataError(f"{archive.path} has no {split} examples; a data set needs at least one. Check its layout.")
    return counts


def _blocks(
    scratch: int, row_of: dict[str, int], kept: list[Example], codes: dict[str, int], row_bytes: int, dtype: np.dtype
) -> Iterator[Block]:
    """The kept rows, split by split, read back in runs of neighbours."""
    features = row_bytes // dtype.itemsize
    step = rows_per_block(features)
    for split in ("train", "test", "validation"):
        chosen = [example for example in kept if example.split == split]
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            x = np.empty((len(part), features), dtype)
            for row, example in zip(x, part):
                os.preadv(scratch, [row], row_of[example.name] * row_bytes)
            yield split, x, np.array([codes[example.label] for example in part], dtype=np.int64)
