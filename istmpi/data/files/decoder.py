"""Files that are an example each, decoded in the order of storage into rows in the order of names."""

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from istmpi.data.dataset import SPLITS
from istmpi.data.files.archive import Archive, store
from istmpi.data.files.notes import Notes
from istmpi.data.holdout import held_out
from istmpi.data.writer import Chosen, Progress
from istmpi.errors import DataError

NAMED = 3


class BadFileError(Exception):
    """A file that cannot be decoded; it is skipped, within limits."""


@dataclass(frozen=True, slots=True)
class Example:
    """A file of an archive, with the label and the split that its name says."""

    name: str
    label: str
    split: str


class Decoder:
    """Decodes files into examples with bounded memory; a context that owns the scratch files.

    Rows go to a nameless file in ``scratch``, a folder on the disk of the target, because a tar file's order is not
    that of the names and because only the end tells how many files were unreadable. ``max_bad`` is the share of the
    files that may be.
    """

    def __init__(self, scratch: str | os.PathLike, progress: Progress, max_bad: float):
        self.folder, self.progress, self._max_bad = scratch, progress, max_bad
        self.split = "as SRC has it"
        """A sentence on the splits."""
        self.notes = Notes()
        self._stack = ExitStack()

    def __enter__(self) -> "Decoder":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(
        self,
        archive: Archive,
        examples: list[Example],
        decode: Callable[[str, bytes], np.ndarray],
        most_bytes: int,
    ) -> tuple[dict[str, tuple[Chosen, np.ndarray]], tuple[str, ...], list[str]]:
        """Return all examples and their classes' numbers per split, the classes, sorted, and the files that are bad.

        ``decode(name, content)`` gives arrays of one shape and type, or raises BadFileError.
        """
        classes = tuple(sorted({example.label for example in examples}))
        examples = sorted(examples, key=lambda example: example.name)
        row_of = {example.name: row for row, example in enumerate(examples)}
        scratch, row, bad = self.scratch(), np.zeros(1, np.uint8), {}
        for done, (name, content) in enumerate(archive.read(row_of, most_bytes), start=1):
            try:
                row = np.ascontiguousarray(decode(name, content))
                store(scratch, row, row_of[name] * row.nbytes, self.folder)
            except BadFileError as error:
                bad[name] = str(error)
                self.refuse(archive, bad, len(examples))
            self.progress("decoding", done, len(examples))
        os.ftruncate(scratch, len(examples) * row.nbytes)
        codes, splits = {label: code for code, label in enumerate(classes)}, {}
        with os.fdopen(os.dup(scratch), "rb") as file:
            rows = np.memmap(file, row.dtype, "r", shape=(len(examples), *row.shape))
        for split in SPLITS:
            part = [example for example in examples if example.split == split and example.name not in bad]
            if not part and split != "validation":
                raise DataError(
                    f"{archive.path} has no {split} examples; a data set needs at least one. Check its layout."
                )
            if part:
                x = Chosen(rows, np.array([row_of[example.name] for example in part]))
                splits[split] = x, np.array([codes[example.label] for example in part], np.int64)
        return splits, classes, sorted(bad)

    def scratch(self) -> int:
        """Return the number of a new nameless file on the disk of the target, there until the end."""
        return self._stack.enter_context(tempfile.TemporaryFile(dir=self.folder, buffering=0)).fileno()  # noqa: SIM115

    def refuse(self, archive: Archive, bad: dict[str, str], total: int, what: str = "files") -> None:
        """Raise DataError where more of a total are bad, each with a reason, than may be."""
        if len(bad) <= self._max_bad * total:
            return
        names = sorted(bad)[:NAMED]
        raise DataError(
            f"{archive.path}: {len(bad)} of {total} {what} cannot be read, more than {self._max_bad:.1%}, among them "
            f"{', '.join(names)} ({bad[names[0]]}). Repair them, or allow more with --max-bad."
        )


def with_holdout(examples: list[Example]) -> list[Example]:
    """Return the examples of an archive without splits, one in five of each class a test example."""
    examples = sorted(examples, key=lambda example: example.name)
    _, codes = np.unique([example.label for example in examples], return_inverse=True)
    test = held_out(len(examples), codes)
    return [replace(example, split="test" if chosen else "train") for example, chosen in zip(examples, test)]
