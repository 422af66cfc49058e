"""Files that appear complete or not at all: the name under which they are written, and the wait for the disk."""

import os
from pathlib import Path


def temporary(path: Path) -> Path:
    """A name beside a file that nobody has had before: other hosts may remember what a name stood for.

    Nobody can guess it, either, and put a link there.
    """
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
