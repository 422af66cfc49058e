"""Columns of a table that are left out, filled where a value is missing, or become categories."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from istmpi.data.decoder import Notes, list_first
from istmpi.errors import ConfigError, DataError, did_you_mean
from istmpi.foreign import Fields, one_line

REFUSE = "refuse"
MEAN = "mean"
MOST_FREQUENT = "most-frequent"
WAYS = (REFUSE, MEAN, MOST_FREQUENT)
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
"""Fields, in small letters, that stand for a missing value."""
MOST = 1000
"""The most categories of a column."""
UNKNOWN = -1.0

Row = tuple[int, list[str]]
ReadNumbers = Callable[[Sequence[Row], Sequence[int]], np.ndarray]
"""A function that reads the numbers in columns of rows, [rows, columns] float64."""
Splits = Mapping[str, tuple[np.ndarray, np.ndarray]]


class Named(Protocol):
    """A table's file, and the names of its features; None without a header."""

    name: str
    names: list[str] | None


@dataclass
class Encoding:
    """The treatment of columns, by their names in the header."""

    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    missing: str = REFUSE
    codes: dict[str, list[str]] = field(default_factory=dict)
    """The categories of each such column; a place in the list is a code."""
    fill: dict[str, float] = field(default_factory=dict)
    """The number, or the code, in place of a missing value of a column."""
    trained: bool = False
    """True if categories and values to fill in are those of a training table."""
    unknown: dict[str, dict[str, None]] = field(default_factory=dict)
    """The categories of each column that training did not have."""
    gaps: dict[str, Counter[str]] = field(default_factory=dict)
    """The fields of each column that stood for a missing value, with their numbers."""

    @staticmethod
    def from_options(
        drop: str | None = None, categories: str | None = None, missing: str | None = None
    ) -> Encoding:
        """Return the encoding that options of `istmpi prepare` ask for. Raises ConfigError."""
        way = missing or REFUSE
        if way not in WAYS:
            raise ConfigError(f"--missing {way!r} must be one of {', '.join(WAYS)}.")
        return Encoding(_split(drop), _split(categories), way)

    @staticmethod
    def from_tree(tree: Fields) -> Encoding:
        """Return the encoding that prepared data say."""
        codes = tree.inner("categories")
        return Encoding(
            drop=tuple(tree.texts("drop")),
            categories=tuple(codes),
            missing=tree.text("missing"),
            codes={name: codes.texts(name) for name in codes},
            fill=tree.figures("fill"),
            trained=True,
        )

    def tree(self) -> dict[str, Any]:
        """Return what `from_tree` reads; empty if all columns are plain numbers."""
        if not (self.drop or self.categories or self.missing != REFUSE):
            return {}
        return {
            "drop": list(self.drop),
            "missing": self.missing,
            "categories": self.codes,
            "fill": self.fill,
        }

    def require_names(self, table: str, header: Sequence[str] | None, label: str) -> None:
        """Raise DataError if a column that is named is not in the header of a table, or is its
        ``label``."""
        if self.trained:
            return
        for option, names in (("drop", self.drop), ("categories", self.categories)):
            for name in names:
                if header is None:
                    raise DataError(
                        f"{table} has no header, which --{option} needs. Name its columns in "
                        "line 1."
                    )
                if name not in header:
                    raise DataError(f"{table} has no column {name}{did_you_mean(name, header)}")
                if name == label:
                    raise DataError(
                        f"{table}: --{option} names {name}, which has the labels. Name features, "
                        "or choose other labels with --label."
                    )

    def keep(self, header: Sequence[str], columns: Sequence[int]) -> list[int]:
        """Return the columns without those that are left out."""
        return [column for column in columns if header[column] not in self.drop]

    def read(
        self,
        table: Named,
        block: Sequence[Row],
        columns: Sequence[int],
        read_numbers: ReadNumbers,
    ) -> np.ndarray:
        """Return the numbers and codes in a block [b, columns] of a table; NaN where a value is
        missing."""
        names = table.names
        if names is None or (not self.categories and self.missing == REFUSE):
            return read_numbers(block, columns)
        values = np.zeros((len(block), len(columns)))
        numbers = []
        for place, name in enumerate(names):
            if name in self.categories:
                values[:, place] = [self._find_code(name, row[columns[place]]) for _, row in block]
            else:
                numbers.append(place)
        places = [columns[place] for place in numbers]
        filled, lacks = self._replace_missing(block, places, [names[place] for place in numbers])
        read = read_numbers(filled, places)
        read[lacks] = np.nan
        values[:, numbers] = read
        self._require_none_missing(table.name, block, names, values)
        return values

    def _replace_missing(
        self, block: Sequence[Row], columns: Sequence[int], names: Sequence[str]
    ) -> tuple[list[Row], np.ndarray]:
        """Return rows with 0 for each missing number, and where these are, [rows, columns]."""
        lacks = np.zeros((len(block), len(columns)), dtype=bool)
        if self.missing == REFUSE:
            return [*block], lacks
        rows = []
        for number, (line, row) in enumerate(block):
            fields = [*row]
            for place, column in enumerate(columns):
                if is_missing(row[column]):
                    self._count_gap(names[place], row[column])
                    fields[column] = "0"
                    lacks[number, place] = True
            rows.append((line, fields))
        return rows, lacks

    def _count_gap(self, name: str, text: str) -> None:
        self.gaps.setdefault(name, Counter())[text.strip()] += 1

    def _find_code(self, name: str, text: str) -> float:
        text = text.strip()
        if is_missing(text):
            self._count_gap(name, text)
            return np.nan
        codes = self.codes.setdefault(name, [])
        if text in codes:
            return float(codes.index(text))
        if self.trained:
            self.unknown.setdefault(name, {})[text] = None
            return UNKNOWN
        if len(codes) >= MOST:
            raise DataError(f"the column {name} has more than {MOST} categories. Drop it: --drop.")
        codes.append(text)
        return float(len(codes) - 1)

    def _require_none_missing(
        self, table: str, block: Sequence[Row], names: Sequence[str], values: np.ndarray
    ) -> None:
        if self.missing != REFUSE:
            return
        cure = ". Give --missing mean or most-frequent, or fill it."
        if self.trained:
            cure = ", as in no row of training, so no value fills it. Fill it."
        for row, place in np.argwhere(np.isnan(values)):
            raise DataError(f"{table}, line {block[row][0]}: {names[place]} is missing{cure}")

    def learn(self, train: np.ndarray, names: Sequence[str]) -> None:
        """Take categories and values to fill in from the rows of training, [n, columns]."""
        for place, name in enumerate(names):
            column = train[:, place]
            values = column[~np.isnan(column)]
            if name in self.categories:
                present = np.unique(values).astype(int)
                texts = [self.codes[name][code] for code in present]
                # In alphabetical order, so that tables of the same categories agree.
                self.codes[name] = sorted(texts)
                places = np.array([self.codes[name].index(text) for text in texts], dtype=int)
                values = places[np.searchsorted(present, values)]
            if self.missing == REFUSE:
                continue
            if not len(values):
                raise DataError(f"the column {name} has no value in training. Drop it: --drop.")
            if self.missing == MEAN and name not in self.categories:
                self.fill[name] = float(values.mean())
            else:
                distinct, counts = np.unique(values, return_counts=True)
                self.fill[name] = float(distinct[counts.argmax()])

    def encode(self, x: np.ndarray, names: Sequence[str]) -> np.ndarray:
        """Return features [n, f]: a number as it is, a category as a 1 among zeros. An unknown
        category has only zeros."""
        if not (self.categories or self.fill):
            return x
        parts = []
        for place, name in enumerate(names):
            column = x[:, place].copy()
            if name in self.fill:
                column[np.isnan(column)] = self.fill[name]
            if name in self.categories:
                codes = np.arange(len(self.codes[name]))
                parts.append((column[:, None] == codes).astype(float))
            else:
                parts.append(column[:, None])
        return np.concatenate(parts, axis=1)

    def encode_splits(
        self, splits: Splits, names: Sequence[str] | None, notes: Notes
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Learn from the training split, unless the encoding is another table's, and return the
        features and labels of each split; note the encoding for prediction."""
        if self.trained:
            encoded = {split: (self.encode(x, names or ()), y) for split, (x, y) in splits.items()}
        else:
            encoded = self._encode_splits(splits, names)
        self.note(notes)
        return encoded

    def _encode_splits(
        self, splits: Splits, names: Sequence[str] | None
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        if names is None or (not self.categories and self.missing == REFUSE):
            return dict(splits)
        before = {name: list(codes) for name, codes in self.codes.items()}
        self.learn(splits["train"][0], names)
        encoded = {}
        for split, (x, y) in splits.items():
            moved = x.copy()
            for place, name in enumerate(names):
                if name in self.categories:
                    moved[:, place] = self._recode(name, before[name], x[:, place])
            encoded[split] = (self.encode(moved, names), y)
        return encoded

    def _recode(self, name: str, before: Sequence[str], codes: np.ndarray) -> np.ndarray:
        """Return codes of the categories of training in place of those of all tables."""
        after = {text: float(code) for code, text in enumerate(self.codes[name])}
        new = np.array([after.get(text, UNKNOWN) for text in before] + [np.nan])
        for text in before:
            if text not in after and bool((codes == before.index(text)).any()):
                self.unknown.setdefault(name, {})[text] = None
        missing = np.isnan(codes)
        return new[np.where(missing, len(before), codes).astype(int)]

    def note(self, notes: Notes) -> None:
        """Note the encoding for prediction, and the categories that training did not have."""
        if self.tree():
            notes.reading["encoding"] = self.tree()
        if self.gaps:
            shown = list_first([self._describe_gap(name) for name in self.gaps])
            notes.assume(f"missing values are filled: {shown}")
        for name, texts in self.unknown.items():
            shown = list_first([one_line(text) for text in texts])
            notes.assume(
                f"{name} has categories that are not in training ({shown}); they become zeros"
            )

    def _describe_gap(self, name: str) -> str:
        """Return the number of a column's missing values, what fills them, and their words."""
        value = f"{self.fill[name]:.6g}"
        if name in self.categories:
            value = one_line(self.codes[name][int(self.fill[name])])
        # Such a word may be meant as a category: "none" for a house without a garage.
        words = [one_line(text) for text in self.gaps[name] if text]
        shown = ""
        if words:
            shown = f" ({', '.join(words)})"
        return f"{name}: {self.gaps[name].total()} with {value}{shown}"


def require_unique_names(table: str, features: Sequence[str], label: str | None) -> None:
    """Raise DataError if two columns have one name."""
    counts = Counter([*features, label])
    several = [name for name in features if counts[name] > 1]
    if several:
        raise DataError(
            f"{table} has several columns of a name, {several[0]}. Rename or remove them: "
            "a network finds columns by their names."
        )


def leave_out_index(name: str, first: list[str], columns: list[int], notes: Notes) -> list[int]:
    """Return the columns without those that pandas writes for a table's index. Raises DataError if
    none is left."""
    index = [column for column in columns if is_index(first[column])]
    if index:
        what = first[index[0]] or "a column without a name"
        notes.leave_out(f"{name}: {what}, as pandas writes an index")
    kept = [column for column in columns if column not in index]
    if not kept:
        raise DataError(f"{name} has no column with a name. Name the features in its first line.")
    return kept


_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")


def is_index(name: str) -> bool:
    """Return True for the name in a header of a column that pandas writes for a table's index."""
    return bool(_INDEX.fullmatch(name))


def _split(names: str | None) -> tuple[str, ...]:
    if names is None:
        return ()
    return tuple(name.strip() for name in names.split(",") if name.strip())


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING
