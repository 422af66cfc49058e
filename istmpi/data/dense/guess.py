"""Guesses which columns of a table are left out, filled or categories, for a table that a run
names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice

from istmpi.data.archive import Archive
from istmpi.data.decoder import Note, Notes, list_first
from istmpi.data.dense.delimiters import guess_delimiter
from istmpi.data.dense.encoding import MEAN, is_index, is_missing
from istmpi.data.dense.tables import Row, read_rows
from istmpi.foreign import is_number, printable

MOST_CATEGORIES = 50
ROWS_OF_A_CATEGORY = 5
"""The least number of rows for each category; a text that is rarer is a name, not a category."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?|\d{1,2}[./]\d{1,2}[./]\d{4}.*")
"""Dates, with or without a time: as ISO 8601 has them, and 28.11.2026 or 11/28/2026."""


@dataclass
class _Column:
    """Counts of what the fields of a column are; a missing field is none of them."""

    name: str
    rows: int = 0
    missing: int = 0
    numbers: int = 0
    dates: int = 0
    texts: Counter[str] = field(default_factory=Counter)
    """The number of rows of each text, of at most `MOST_CATEGORIES` + 1 texts."""

    def add(self, text: str) -> None:
        text = text.strip()
        self.rows += 1
        if is_missing(text):
            self.missing += 1
            return
        self.numbers += is_number(text)
        self.dates += bool(_DATE.fullmatch(text))
        if text in self.texts or len(self.texts) <= MOST_CATEGORIES:
            self.texts[text] += 1

    @property
    def present(self) -> int:
        return self.rows - self.missing

    @property
    def has_numbers(self) -> bool:
        return self.numbers == self.present

    @property
    def has_dates(self) -> bool:
        return self.dates == self.present > 0

    @property
    def has_categories(self) -> bool:
        limit = min(MOST_CATEGORIES, self.present // ROWS_OF_A_CATEGORY)
        return self.numbers == 0 and len(self.texts) <= limit


@dataclass(frozen=True)
class Guess:
    """Options of `istmpi prepare csv`, and what they do."""

    drop: str | None
    categories: str | None
    missing: str | None
    notes: list[Note]


def guess_columns(archive: Archive) -> Guess:
    """Return the options with which a table whose labels are in its last column can be read.

    Only columns of a header are guessed. A column that mixes numbers and texts is none of what is
    guessed: its table is refused later.
    """
    (name,) = archive.names
    delimiter = guess_delimiter(archive, name, Notes())
    with closing(read_rows(archive, name, delimiter)) as rows:
        columns = _read_columns(rows)
    dated = [column.name for column in columns if column.has_dates]
    others = [column for column in columns if not (column.has_dates or column.has_numbers)]
    categories = [column.name for column in others if column.has_categories]
    named = [column.name for column in others if not (column.has_categories or column.numbers)]
    gaps = [column.name for column in columns if column.missing and column.name not in dated]
    return _describe(dated, named, categories, gaps)


def _read_columns(rows: Iterator[Row]) -> list[_Column]:
    """Return the features of a table with a header; none without one."""
    opening = list(islice(rows, 1))
    if not opening:
        return []
    _, header = opening[0]
    names = [printable(text.strip()) for text in header]
    features = names[:-1]
    # An option separates names by commas, and finds a column by its name.
    if any("," in name for name in features) or any(map(is_number, features)):
        return []
    columns = [_Column(name) for name in features]
    for _, row in rows:
        for column, text in zip(columns, row):
            column.add(text)
    return [column for column in columns if not is_index(column.name)]


def _describe(dated: list[str], named: list[str], categories: list[str], gaps: list[str]) -> Guess:
    notes = []
    if dated:
        notes.append(Note(f"columns of dates are left out: {list_first(dated)}", "--drop"))
    if named:
        notes.append(Note(f"columns of many texts are left out: {list_first(named)}", "--drop"))
    if categories:
        notes.append(Note(f"columns of categories: {list_first(categories)}", "--categories"))
    missing = None
    if gaps:
        missing = MEAN
        what = "missing values become the mean, or the most frequent category, of their column"
        notes.append(Note(f"{what}: {list_first(gaps)}", "--missing"))
    return Guess(
        drop=",".join([*dated, *named]) or None,
        categories=",".join(categories) or None,
        missing=missing,
        notes=notes,
    )
