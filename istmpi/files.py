"""Files that appear complete or not at all: the name under which they are written, and the wait for the disk."""

import os
import stat
from pathlib import Path

from istmpi.errors import ConfigError, kind_of

_OF_FILES = (".h5", ".json", ".jsonl", ".toml", ".csv", ".png")
"""How names of files in a run's folder end; what is called otherwise may be a folder."""


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


def require_files(folder: Path) -> None:
    """ConfigError where something in a run's folder is a pipe, a device or the like, or a folder in a file's place."""
    for path in (folder, folder / "checkpoints"):
        for inside in path.iterdir() if path.is_dir() else ():
            require_file(inside, or_folder=inside.suffix not in _OF_FILES)


def require_file(path: Path, or_folder: bool = False) -> None:
    """ConfigError where there is something of that name which is no file; whoever opens it may wait for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.is_symlink():
            return
        mode = 0
    if not stat.S_ISREG(mode) and not (or_folder and stat.S_ISDIR(mode)):
        raise ConfigError(f"{path} is {kind_of(path)}; it must be a file. Remove it.")
