"""Writes files that appear complete or not at all.

A file is written under a temporary name, synced to disk, then renamed.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from istmpi.errors import ConfigError, OutputError, kind_of
from istmpi.foreign import reason

_OF_FILES = (".h5", ".json", ".jsonl", ".toml")
"""Endings of names that only files may have in a run's folder; a folder with another ending is
accepted."""


def temporary(path: Path) -> Path:
    """Return a new random name beside a file; no other user can put a link there first."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def preparing(path: Path) -> Iterator[None]:
    """A context that prepares a folder for results.

    An OSError becomes a ConfigError, because no run has begun.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"--out {path}: cannot be written ({error.strerror}). Give another folder."
        ) from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A context that writes the result ``path``. An OSError becomes an OutputError."""
    try:
        yield
    except OSError as error:
        cause = reason(error)
        if error.errno is None and path.parent.is_dir():  # HDF5 does not tell why
            cause += f"; {shutil.disk_usage(path.parent).free / 1e6:,.1f} MB are free there"
        raise OutputError(f"{path}: cannot be written ({cause}).") from error


def name_at_last(beside: Path, path: Path) -> None:
    """Sync the written file ``beside`` to disk, and rename it to ``path``."""
    # The content before the name: after a crash, a name without content would look complete.
    sync(beside)
    beside.replace(path)
    sync(path.parent)


def require_files(folder: Path) -> None:
    """Raise ConfigError for a path in a run's folder, or its checkpoints, that is no file.

    It is a pipe, a device, or a folder in a file's place.
    """
    for path in (folder, folder / "checkpoints"):
        if not path.is_dir():
            continue
        for inside in path.iterdir():
            require_file(inside, or_folder=inside.suffix not in _OF_FILES)


def require_file(path: Path, or_folder: bool = False) -> None:
    """Raise ConfigError for a pipe, a device, a broken link or (unless ``or_folder``) a folder."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.is_symlink():
            return
        mode = 0  # a link to nothing
    if stat.S_ISREG(mode) or (or_folder and stat.S_ISDIR(mode)):
        return
    raise ConfigError(f"{path} is {kind_of(path)}; it must be a file. Remove it.")


def require_free(path: Path, force: bool) -> None:
    if path.is_dir() or (path.exists() and not force):
        raise ConfigError(
            f"{path} exists. Replace it with --force, or choose another name with --out."
        )


def require_room(path: Path) -> None:
    """Raise OutputError if the folder of a file is not there, or takes no file.

    A missing folder or permission is told now, not after the work whose result it is.
    """
    if not path.parent.is_dir():
        raise OutputError(
            f"{path}: cannot be written (the folder {path.parent} does not exist). Create it first."
        )
    with writing(path), tempfile.TemporaryFile(dir=path.parent):
        pass


def open_without_links(path: str, flags: int) -> int:
    """Open a file as `open` asks its ``opener``.

    Refuse a link, which another user may have put in the file's place.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def append(path: Path, data: bytes) -> None:
    """Append to a file, which is as before if that fails.

    Raises OutputError, also for a link in the file's place.
    """
    with writing(path), open(path, "ab", buffering=0, opener=open_without_links) as file:
        size = os.fstat(file.fileno()).st_size
        left = memoryview(data)
        try:
            while left:  # a full disk may take a part
                left = left[file.write(left) :]
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise


@contextlib.contextmanager
def appearing(path: Path, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a new file to write. It replaces ``path`` if the block ends without an exception.

    ``follow``: write what a link points to; otherwise the link is replaced, as in a run's folder,
    where others may have put it. A pipe or a device is written directly. Raises OutputError if the
    file cannot be written.
    """
    place = path
    if follow:
        place = path.resolve()
    replaceable = place.is_file() or not place.exists() or (place.is_symlink() and not follow)
    if not replaceable:  # a pipe or a device
        with writing(path), place.open("wb") as file:
            yield file
        return
    beside = temporary(place)
    try:
        with writing(path):
            with beside.open("xb") as file:
                yield file
            name_at_last(beside, place)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
