"""Prepares a table that a run names as its data, once, in a cache folder of the user.

$XDG_CACHE_HOME/istmpi/tables/KEY.h5        by default in ~/.cache
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from istmpi import __version__
from istmpi.data.archive import Archive
from istmpi.data.dataset import Dataset
from istmpi.data.dense.guess import guess_columns
from istmpi.data.dense.like import TableForm
from istmpi.data.dense.tables import ENDINGS
from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare
from istmpi.environment import find_cache
from istmpi.errors import OutputError
from istmpi.files import writing


def is_table(path: Path) -> bool:
    name = path.name.lower()
    # A .txt may be a text.
    return name.endswith(ENDINGS) and not name.endswith(".txt")


def open_table(path: Path, form: TableForm | None = None) -> Dataset:
    """Return the data set of a table; prepare it first unless the cache has it. ``form``: that of
    the training table, by default guessed. Raises DataError, or OutputError if the cache cannot be
    written."""
    cached = _choose_path(path, form)
    notes_file = cached.with_suffix(".txt")
    with writing(cached), _locked(cached):
        # Each rank comes here; the first one of a host prepares, and the others wait.
        if not cached.exists():
            notes_file.write_text(_prepare(path, cached, form), encoding="utf-8")
        notes = notes_file.read_text(encoding="utf-8").splitlines()
    data = open_prepared(cached)
    return replace(data, source=str(path), assumed=(f"prepared in {cached}", *notes))


def _prepare(path: Path, cached: Path, form: TableForm | None) -> str:
    """Prepare a table; return what was assumed, a line each."""
    if form:
        report = prepare("csv", path, cached, like=form)
        # What an option would change was decided for the training table.
        notes = [note for note in (*report.assumed, *report.left_out) if not note.option]
        return "\n".join(map(str, notes))
    guess = guess_columns(Archive(path, cached.parent))
    report = prepare(
        "csv",
        path,
        cached,
        drop=guess.drop,
        categories=guess.categories,
        missing=guess.missing,
    )
    lines = []
    # A user who wants another choice prepares the table with this option.
    for note in (*report.assumed, *guess.notes, *report.left_out):
        option = note.option and f"istmpi prepare csv {note.option}"
        lines.append(str(replace(note, option=option)))
    return "\n".join(lines)


def _choose_path(path: Path, form: TableForm | None) -> Path:
    """Return the place for a table as it is now, in a form. Raises OutputError without a home
    folder."""
    cache = find_cache()
    if cache is None:
        raise OutputError(f"{path} needs a cache folder. Set XDG_CACHE_HOME, or use prepare csv.")
    state = path.stat()
    facts = (__version__, str(path.resolve()), state.st_size, state.st_mtime_ns, form)
    key = hashlib.sha256(repr(facts).encode()).hexdigest()
    return cache / "tables" / f"{key[:32]}.h5"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
