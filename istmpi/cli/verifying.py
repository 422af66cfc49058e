"""What `istmpi checkpoint verify` and `istmpi data verify` have in common: every byte of some files is read."""

import json
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
    as_json: bool = False,
) -> None:
    """Print of each file that it is valid, or whatever is damaged, ``as_json`` all together; DataError when one is.

    ``opened(path)`` gives the file with its ``version``, ``nbytes`` and ``errors(read=...)``. ``unguarded`` is said of
    what version 1 of its format does not guard. Of the files ``listed`` in a folder some may be gone by now.
    """
    damaged, found = 0, []
    with progress(Console(emoji=False, stderr=True), in_bytes=True) as tell:
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
            found.append({"path": str(path), "valid": not problems, "problems": problems})
            damaged += bool(problems)
            if not as_json:
                click.echo("\n".join(map(one_line, problems)) or one_line(f"{path}: {verdict}"))
    if as_json:
        print(json.dumps(found, indent=1))
    if damaged:
        raise DataError(f"{damaged} of {len(found)} file{'s' * (len(found) > 1)} cannot be used.")


class Counter:
    """Adds up bytes as they are read."""

    def __init__(self, tell: Report, total: int, stage: str = ""):
        self._tell, self._total, self.stage = tell, total, stage
        self._done = 0

    def __call__(self, nbytes: int) -> None:
        self._done += nbytes
        self._tell(self.stage, self._done, self._total)
