"""Lists of the rows of a file that belong to each split, a number from 1 a line."""

import numpy as np

from istmpi.data.files.archive import Archive
from istmpi.data.files.notes import Notes
from istmpi.data.sparse.csr import Csr
from istmpi.data.sparse.lines import blocks_of_lines, count_of
from istmpi.errors import DataError
from istmpi.units import counted


def masks_of(archive: Archive, source: Csr, lists: dict[str, str], notes: Notes) -> dict[str, np.ndarray]:
    """Return the rows of each split, ``[rows]`` bool, by its list's name."""
    masks = {}
    for split, name in lists.items():
        rows = _row_list(archive, name, notes)
        if (last := int(rows.max())) >= len(source):
            raise DataError(
                f"{name}, line {int(rows.argmax()) + 1}: there is no row {last + 1:,}; {source.name} has "
                f"{len(source):,}. Take the lists that belong to it."
            )
        masks[split] = np.zeros(len(source), bool)
        masks[split][rows] = True
    times = np.sum(list(masks.values()), axis=0)
    both, none = np.flatnonzero(times > 1) + 1, np.flatnonzero(times == 0) + 1
    if len(both):
        raise DataError(
            f"{archive.path}: {source.name} has {counted(len(both), 'row')} that two lists name, such as row "
            f"{both[0]:,}. Take it out of one."
        )
    if len(none):
        notes.leave_out(f"{counted(len(none), 'row')} of {source.name} that no list names, such as row {none[0]:,}")
    return masks


def _row_list(archive: Archive, name: str, notes: Notes) -> np.ndarray:
    """Return the rows that a list names, from 0; of several columns, each another split, the first."""
    rows, line, columns = [], 1, 1
    for _, pieces in archive.pieces({name}):
        for block in blocks_of_lines(name, pieces):
            for number, text in enumerate(block.split(b"\n")[:-1], line):
                words = text.split()
                word, columns = words[:1], max(columns, len(words))
                if word and not (word[0].isdigit() and 1 <= count_of(word[0]) < 2**62):
                    raise DataError(f"{name}, line {number}: needed is the number of a row, from 1. Correct the line.")
                rows += [count_of(digits) - 1 for digits in word]
            line += block.count(b"\n")
    if not rows:
        raise DataError(f"{name}, line 1: it names no rows: the file is empty. Give one with numbers of rows.")
    if columns > 1:
        notes.assume(f"the first of the {columns} columns of {name} is the split")
    if again := len(rows) - len(set(rows)):
        notes.leave_out(f"{counted(again, 'line')} of {name} with a row that it has already")
    return np.array(rows)
