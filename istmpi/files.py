"""Files that appear complete or not at all: the name under which they are written, and the wait for the disk."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from istmpi.errors import ConfigError, OutputError, kind_of
from istmpi.foreign import reason

_OF_FILES = (".h5", ".json", ".jsonl", ".toml")
"""The endings of files that a run reads in its folder. Others may be a folder: their writers say so, and go on."""


def temporary(path: Path) -> Path:
    """Return a name beside a file that nobody has had before, or can guess: others may remember it, or put a link
    there."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """A context that uses a folder for results; ConfigError where that fails."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot be written ({error.strerror}). Give another folder.") from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A context that writes a result; OutputError where that fails."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({reason(error)}).") from error


def named_at_last(beside: Path, path: Path) -> None:
    """Give a file that is written its name, on the disk."""
    sync(beside)
    beside.replace(path)
    sync(path.parent)


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


def require_free(path: Path, force: bool) -> None:
    if path.is_dir() or (path.exists() and not force):
        raise ConfigError(f"{path} exists. Replace it with --force, or choose another name with --out.")


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """A file, open for writing, that takes its name when the block ends without an exception; a pipe is written to.

    OutputError where it cannot be written; then nothing is left behind and an older file is as it was.
    """
    place = path.resolve()
    plain = place.is_file() or not place.exists()
    beside = temporary(place) if plain else place
    try:
        with writing(path):
            with beside.open("xb" if plain else "wb") as file:
                yield file
            if plain:
                named_at_last(beside, place)
    finally:
        if plain:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
