"""A folder, a tar file or a single file as a set of named files; a tar file is not unpacked."""

import errno
import gzip
import os
import tarfile
import tempfile
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Collection, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from itertools import product
from pathlib import Path, PurePosixPath
from tarfile import HeaderError, ReadError, TarFile
from typing import IO, cast

from istmpi.errors import DataError, describe_path
from istmpi.files import writing
from istmpi.foreign import MEGABYTE, printable, reading
from istmpi.units import counted

MOST = 256 * MEGABYTE
LONGEST_LINE = 32 * MEGABYTE
_DENSEST = 2**20
"""The most bytes that a compressed byte can unpack to. `_DENSEST` times a tar file's bytes limits a
member's size."""
_AGAIN = "Copy or download it again."


class Stream:
    """A file of an archive, unpacked if its name ends in ".gz". A read raises DataError if the file
    is damaged."""

    def __init__(self, name: str, file: IO[bytes], archive: Path):
        self.name = name
        self._archive = archive
        self._file: IO[bytes] = file
        if name.endswith(".gz"):
            self._file = cast(IO[bytes], gzip.GzipFile(fileobj=file))

    def read(self, count: int) -> bytes:
        with self._name_damage():
            return self._file.read(count)

    def pieces(self) -> Iterator[bytes]:
        while piece := self.read(MEGABYTE):
            yield piece

    def lines(self) -> Iterator[bytes]:
        """Yield lines with their ends, without a byte order mark. DataError for a line above
        `LONGEST_LINE`."""
        mark = BOM_UTF8
        while True:
            with self._name_damage():
                # One byte more than allowed shows that a line is too long.
                line = self._file.readline(LONGEST_LINE + 1)
            if not line:
                return
            if len(line) > LONGEST_LINE:
                raise DataError(
                    f"{self.name} has a line of more than {LONGEST_LINE // MEGABYTE} MB. Split "
                    "the line."
                )
            yield line.removeprefix(mark)
            # Only the first line may begin with a mark.
            mark = b""

    def _name_damage(self) -> AbstractContextManager:
        return reading(f"{self._archive}: {self.name} cannot be read", _AGAIN, Exception)


class Archive:
    """The regular files in ``path``: a folder, a tar file or a single file. DataError if there are
    none.

    ``names`` are sorted paths relative to ``path``, with "/" between the parts; invisible
    characters are escaped. Hidden files are left out. In a tar file, links, devices, absolute paths
    and paths with ".." are left out, too; if several members have the same name, the last counts.
    ``open`` puts copies of members into the folder ``scratch``.
    """

    def __init__(self, path: str | os.PathLike, scratch: str | os.PathLike | None = None):
        self.path = Path(path)
        self.source = str(path)
        if not (self.path.is_file() or self.path.is_dir()):
            raise DataError(
                f"{self.path} {describe_path(self.path)}. Give a folder, a .tar or .tar.gz, or a "
                "file."
            )
        self._content: _Folder | _Tar
        if self.path.is_file() and _is_tar(self.path):
            self._content = _Tar(self.path, scratch)
        else:
            self._content = _Folder(self.path)
        self.names = sorted(self._content.names)
        self._read: set[str] = set()
        if not self.names:
            raise DataError(
                f"{self.path} has no files (hidden files and links in a tar do not count). Give a "
                "source with files."
            )

    def read(self, names: Collection[str], limit: int = MOST) -> Iterator[tuple[str, bytes]]:
        """Yield names and contents of files. Raises DataError for one above ``limit`` bytes."""
        for name, file in self._files(names):
            with _name_damage(self.path):
                # One byte more than allowed shows that a file is too large.
                content = file.read(limit + 1)
            if len(content) > limit:
                raise DataError(
                    f"{self.path}: {name} has more than {limit // MEGABYTE} MB, the limit for this "
                    "kind of file. Remove it."
                )
            yield name, content

    def streams(self, names: Collection[str]) -> Generator[Stream, None, None]:
        """Yield the files ``names`` as streams. A stream can be read only until the next stream is
        requested."""
        for name, file in self._files(names):
            yield Stream(name, file, self.path)

    @contextmanager
    def stream(self, name: str) -> Iterator[Stream]:
        with closing(self.streams([name])) as streams:
            yield next(streams)

    def open(self, name: str) -> IO[bytes]:
        """Open a file for seeking; the caller closes it. A tar's member is first copied to a file
        without a name.

        Raises DataError if the file cannot be read, OutputError if the copy cannot be written.
        """
        self._read.add(name)
        return self._content.open(name)

    def list_unread(self) -> Iterator[str]:
        """Yield sentences on the files that were not read, and on those that are no files."""
        unread = [name for name in self.names if name not in self._read]
        endings = Counter(
            PurePosixPath(name).suffix.lower() or "without an ending" for name in unread
        )
        if unread:
            shown = ", ".join(f"{count:,} {ending}" for ending, count in endings.most_common(8))
            yield f"{counted(len(unread), 'file')} not read: {shown}; such as {unread[0]}"
        left_out = self._content.left_out
        if left_out:
            what = "hidden, not files, or links (tar -h --hard-dereference packs their targets)"
            yield f"{counted(len(left_out), 'name')} skipped: {what}; such as {min(left_out)}"

    def _files(self, names: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
        self._read.update(names)
        return self._content.files(names)


class _Folder:
    """The files of a folder, or a single file."""

    def __init__(self, path: Path):
        self._path = path
        self.left_out: list[str] = []
        self._paths = {printable(path.name): path}
        if path.is_dir():
            self._paths = self._list()

    @property
    def names(self) -> Collection[str]:
        return self._paths.keys()

    def open(self, name: str) -> IO[bytes]:
        with _name_damage(self._path):
            return self._paths[name].open("rb")

    def files(self, names: Collection[str]) -> Iterator[tuple[str, IO[bytes]]]:
        for name in sorted(names):
            with self.open(name) as file:
                yield name, file

    def _list(self) -> dict[str, Path]:
        """Return the paths of all files by their names; `left_out` gets the others' names."""
        paths: dict[str, Path] = {}
        above_all = (os.path.realpath(self._path),)
        waiting: list[tuple[str, tuple[str, ...]]] = [("", above_all)]
        with _name_damage(self._path):
            while waiting:
                folder, above = waiting.pop()
                for entry in list(os.scandir(self._path / folder)):
                    name = folder + entry.name
                    linked: tuple[str, ...] = ()
                    if entry.is_symlink():
                        linked = (os.path.realpath(entry.path),)
                    # A link to a folder above it, or into itself, would never end.
                    again = any(os.path.commonpath(pair) in pair for pair in product(linked, above))
                    hidden = entry.name.startswith(".")
                    if os.path.isfile(entry) and not hidden:
                        paths[printable(name)] = self._path / name
                    elif os.path.isdir(entry) and not hidden and not again:
                        waiting.append((f"{name}/", (*above, *linked)))
                    else:
                        self.left_out.append(printable(name))
        return paths


class _Tar:
    """The members of a tar file, which are read in their order."""

    def __init__(self, path: Path, scratch: str | os.PathLike | None):
        self._path = path
        self._scratch = scratch
        self.left_out: list[str] = []
        self._numbers = self._list()

    @property
    def names(self) -> Collection[str]:
        return self._numbers.keys()

    def open(self, name: str) -> IO[bytes]:
        with closing(self.files([name])) as members, _name_damage(self._path):
            _, member = next(members)
            # Python finds its own folder by writing there: only for a copy.
            folder = Path(self._scratch or tempfile.gettempdir())
            with ExitStack() as stack:
                copy = stack.enter_context(tempfile.TemporaryFile(dir=str(folder)))
                done = 0
                while piece := member.read(MEGABYTE):
                    store(copy.fileno(), piece, done, folder)
                    done += len(piece)
                # The caller closes the copy.
                stack.pop_all()
                return copy

    def files(self, names: Collection[str]) -> Generator[tuple[str, IO[bytes]], None, None]:
        """Yield the names and the open contents of members, in the order of the tar file."""
        waiting = {self._numbers[name]: name for name in names}
        for number, (member, tar) in enumerate(self._walk()):
            if number not in waiting:
                continue
            if member.issparse():
                raise DataError(
                    f"{self._path}: {waiting[number]} is a sparse entry. Pack it without --sparse."
                )
            file = tar.extractfile(member)
            assert file is not None, "`_list` keeps regular files alone"
            yield waiting.pop(number), file
            if not waiting:
                return

    def _list(self) -> dict[str, int]:
        """Return the places of all files by their names; `left_out` gets the others' names."""
        numbers: dict[str, int] = {}
        for number, (member, _) in enumerate(self._walk()):
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            absolute = member.name.startswith("/")
            hidden = any(part.startswith(".") for part in parts)
            shown = printable("/" * absolute + "/".join(parts))
            if member.isreg() and not absolute and not hidden:
                numbers[shown] = number
            elif not member.isdir():
                self.left_out.append(shown)
        return numbers

    def _walk(self) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
        """Yield each member with its tar file. It can be read until the next one comes."""
        with _name_damage(self._path), closing(_open_tar(self._path)) as tar:
            reached = -1
            largest = _DENSEST * self._path.stat().st_size
            while (member := tar.next()) is not None:
                # A false size would make tarfile read the same header again, or wait for ever.
                if not 0 <= member.size <= largest or tar.offset <= reached:
                    raise tarfile.ReadError(
                        f"the size of {printable(member.name)} cannot be {member.size}"
                    )
                reached = tar.offset
                yield member, tar
                # tarfile remembers every member; a large archive has millions. The stub lacks it.
                tar.members.clear()  # type: ignore[attr-defined]


def _name_damage(path: Path) -> AbstractContextManager:
    return reading(f"{path} cannot be read", _AGAIN, Exception)


def store(scratch: int, content: bytes | memoryview, offset: int, folder: Path) -> None:
    with writing(folder):
        if os.pwrite(scratch, content, offset) != memoryview(content).nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_ENDS = ("EOFHeaderError", "EmptyHeaderError")


class _Header(tarfile.TarInfo):
    """A member's header; ReadError if it is damaged."""

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> "_Header":
        try:
            return super().fromtarfile(tarfile)
        except HeaderError as error:
            if type(error).__name__ in _ENDS:
                raise
            # tarfile takes a damaged header behind the first one for the archive's end.
            raise ReadError(str(error)) from None


def _open_tar(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r:", tarinfo=_Header)
    except tarfile.ReadError:
        # A compressed tar file is read as a stream: to go back, it would be unpacked again.
        return tarfile.open(path, "r|*", bufsize=2**20, tarinfo=_Header)


def _is_tar(path: Path) -> bool:
    try:
        with closing(_open_tar(path)):
            return path.stat().st_size > 0
    # The libraries that unpack raise anything for a header.
    except Exception:
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            raise DataError(f"{path} is not a tar file, or is damaged. {_AGAIN}") from None
        return False
