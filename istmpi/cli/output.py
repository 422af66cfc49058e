"""The console, and output that commands share: notes, JSON, progress, damaged files."""

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from istmpi.errors import DataError
from istmpi.foreign import one_line, printable
from istmpi.units import counted, size

SECONDS_BETWEEN_LINES = 10

Report = Callable[[str, int, int], None]


class PlainConsole(Console):
    """A console on which each text is what it says: names are the user's, so no text is markup.

    Characters that a terminal would obey, such as ESC, are escaped. Only rich's own `Text` has
    styles.
    """

    def render_str(self, text: str, **settings: Any) -> Text:
        lines = map(printable, text.split("\n"))
        return super().render_str("\n".join(lines), **{**settings, "markup": False, "emoji": False})


def console(**settings: Any) -> Console:
    return PlainConsole(emoji=False, highlight=False, **settings)


def wide_console() -> Console:
    """Return a console that breaks no line of a file or pipe."""
    if sys.stdout.isatty():
        return console()
    return console(width=1000)


def table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, show_header=bool(columns))


def say(text: object, err: bool = False) -> None:
    click.echo(one_line(text), err=err)


def note(text: object) -> None:
    say(f"istmpi: {text}", err=True)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=1, default=_simplify))


def _simplify(value: object) -> float | str:
    """Return a value that JSON does not know as one that it knows."""
    return float(value) if isinstance(value, Fraction) else str(value)


@contextmanager
def progress(in_bytes: bool = False) -> Iterator[Report]:
    """Show progress on standard error in a ``with`` block, which gets a function to report it."""
    stderr = console(stderr=True)
    if not stderr.is_terminal:
        yield _lines(stderr, size if in_bytes else "{:,}".format)
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
    ) as bar:
        task = bar.add_task("reading", total=None)  # unknown until the first report

        def report(stage: str, done: int, total: int) -> None:
            bar.update(task, description=printable(stage), completed=done, total=total)

        yield report


def _lines(console: Console, text: Callable[[int], str]) -> Report:
    """Return a function that prints a line of progress now and then."""
    # A file keeps every line, so there is one only now and then.
    due = time.monotonic() + SECONDS_BETWEEN_LINES

    def report(stage: str, done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + SECONDS_BETWEEN_LINES
            console.print(f"{stage} {text(done)} of {text(total)}", markup=False)

    return report


def verify(
    paths: Sequence[Path],
    opened: Callable[[Path], AbstractContextManager[Any]],
    unguarded: str,
    listed: Collection[Path] = (),
    as_json: bool = False,
) -> None:
    """Read every byte of the files and print what is damaged.

    Raises DataError if any file is damaged. ``unguarded`` is added to the verdict on files of
    version 1. A file of ``listed`` that no longer exists is skipped.
    """
    results = []
    with progress(in_bytes=True) as report:
        for path in paths:
            verdict = "valid"
            problems: list[str] = []
            try:
                with opened(path) as file:
                    if file.version == 1:
                        verdict += unguarded
                    for problem in file.errors(read=_count_bytes(path, file.nbytes, report)):
                        problems.append(f"{path} is damaged: {problem}.")
            except DataError as error:
                if path in listed and not path.exists():
                    continue
                problems.append(str(error))
            results.append({"path": str(path), "valid": not problems, "problems": problems})
            # JSON is one document, printed at the end.
            if not as_json:
                lines = problems or [f"{path}: {verdict}"]
                click.echo("\n".join(map(one_line, lines)))
    if as_json:
        print_json(results)
    damaged = sum(not result["valid"] for result in results)
    if damaged:
        raise DataError(f"{damaged} of {counted(len(results), 'file')} cannot be used.")


def _count_bytes(path: Path, total: int, report: Report) -> Callable[[int], None]:
    """Return a function that takes the number of bytes read next, and reports their sum."""
    done = 0

    def count(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        report(path.name, done, total)

    return count
