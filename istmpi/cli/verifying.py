"""What `istmpi checkpoint verify` and `istmpi data verify` have in common: every byte of some files is read."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from istmpi.cli.bars import Report, progress
from istmpi.errors import DataError
from istmpi.foreign import one_line


def verify(
    paths: Sequence[Path],
    opened: Callable[[Path], AbstractContextManager[Any]],
    unguarded: str,
    listed: Collection[Path] = (),
) -> None:
    """Print of each file that it is valid, or whatever is damaged; DataError when anything is.

    ``opened(path)`` gives the file with its ``version``, ``nbytes`` and ``errors(read=...)``. ``unguarded`` is said of
    what version 1 of its format does not guard. Of the files ``listed`` in a folder some may be gone by now.
    """
    damaged = looked_at = 0
    with progress(Console(stderr=True), in_bytes=True) as tell:
        for path in paths:
            problems, verdict = [], "valid"
            try:
                with opened(path) as file:
                    verdict += unguarded * (file.version == 1)
                    for problem in file.errors(read=Counter(tell, file.nbytes, path.name)):
                        problems.append(f"{path}: damaged: {problem}.")
            except DataError as error:
                if path in listed and not path.exists():
                    continue
                problems.append(str(error))
            looked_at += 1
            damaged += bool(problems)
            click.echo("\n".join(map(one_line, problems)) or one_line(f"{path}: {verdict}"))
    if damaged:
        raise DataError(f"{damaged} of {looked_at} file{'s' * (looked_at > 1)} cannot be used.")


class Counter:
    """Adds up bytes as they are read."""

    def __init__(self, tell: Report, total: int, stage: str = ""):
        self._tell, self._total, self.stage = tell, total, stage
        self._done = 0

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        self._tell(self.stage, self._done, self._total)
