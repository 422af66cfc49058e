"""A file that appears under its name complete, or not at all."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from istmpi.errors import ConfigError, OutputError
from istmpi.files import sync, temporary
from istmpi.foreign import reason


def require_free(path: Path, force: bool) -> None:
    """Refuse a name that is taken, before any work is done."""
    if path.is_dir() or (path.exists() and not force):
        raise ConfigError(f"{path} exists; a file is replaced only with --force. Or choose another name with --out.")


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A new file, open for writing, that takes its name when the block ends without an exception.

    OutputError where it cannot be written; then nothing is left behind and an older file is as it was.
    """
    beside = temporary(path)
    try:
        with beside.open("xb") as file:
            yield file
        sync(beside)
        beside.replace(path)
        sync(path.parent)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({reason(error)}).") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
