"""A folder, a tar file or a single file as a set of named files; a tar file is not unpacked."""

import errno
import gzip
import os
import tarfile
import tempfile
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from itertools import product
from pathlib import Path, PurePosixPath
from tarfile import HeaderError, ReadError, TarFile
from typing import BinaryIO

import numpy as np

from istmpi.errors import DataError, kind_of
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

    def __init__(self, name: str, file: BinaryIO, archive: Path):
        self.name, self._archive = name, archive
        self._file = gzip.GzipFile(fileobj=file) if name.endswith(".gz") else file

    def read(self, count: int) -> bytes:
        with self._named_damage():
            return self._file.read(count)

    def pieces(self) -> Iterator[bytes]:
        while piece := self.read(MEGABYTE):
            yield piece

    def lines(self) -> Iterator[bytes]:
        """Yield lines with their ends, without a byte order mark. DataError for a line above
        `LONGEST_LINE`."""
        mark, line = BOM_UTF8, b"\n"
        while line:
            with self._named_damage():
                line = self._file.readline(LONGEST_LINE + 1)
            if len(line) > LONGEST_LINE:
                raise DataError(
                    f"{self.name} has a line of more than {LONGEST_LINE // MEGABYTE} MB. Split the line."
                )
            if line:
                yield line.removeprefix(mark)
            mark = b""

    def _named_damage(self) -> AbstractContextManager:
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
        self.path, self.source, self._scratch = Path(path), str(path), scratch
        if not (self.path.is_file() or self.path.is_dir()):
            what = f"is {kind_of(self.path)}" if self.path.exists() else "does not exist"
            raise DataError(f"{self.path} {what}. Give a folder, a .tar or .tar.gz, or a file.")
        self._left_out: list[str] = []
        self._read: set[str] = set()
        self._members_of: dict[str, int] | None = None
        if self.path.is_file() and _is_tar(self.path):
            self._members_of = self._list_tar()
        else:
            self._paths = (
                self._list_folder()
                if self.path.is_dir()
                else {printable(self.path.name): self.path}
            )
        self.names = sorted(self._paths if self._members_of is None else self._members_of)
        if not self.names:
            raise DataError(
                f"{self.path} has no files (hidden files and links in a tar do not count). Give a source with files."
            )

    def read(self, names: Collection[str], limit: int = MOST) -> Iterator[tuple[str, bytes]]:
        for name, file in self._files(names):
            with self._named_damage():
                content = file.read(limit + 1)
            if len(content) > limit:
                raise DataError(
                    f"{self.path}: {name} has more than {limit // MEGABYTE} MB, the limit for this kind of "
                    "file. Remove it."
                )
            yield name, content

    def streams(self, names: Collection[str]) -> Iterator[Stream]:
        """Yield the files ``names`` as streams. A stream can be read only until the next stream is
        requested."""
        for name, file in self._files(names):
            yield Stream(name, file, self.path)

    @contextmanager
    def stream(self, name: str) -> Iterator[Stream]:
        with closing(self.streams([name])) as streams:
            yield next(streams)

    def open(self, name: str) -> BinaryIO:
        """Open a file for seeking; the caller closes it. A tar's member is first copied to a file
        without a name.

        Raises DataError if the file cannot be read, OutputError if the copy cannot be written.
        """
        self._read.add(name)
        if self._members_of is None:
            with self._named_damage():
                return self._paths[name].open("rb")
        with closing(self._members({name})) as members, self._named_damage():
            _, stream = next(members)
            with ExitStack() as stack:
                copy = stack.enter_context(tempfile.TemporaryFile(dir=self._scratch))
                done = 0
                while piece := stream.read(MEGABYTE):
                    store(copy.fileno(), piece, done, self._scratch)
                    done += len(piece)
                stack.pop_all()  # the caller closes it
                return copy

    def passed_over(self) -> Iterator[str]:
        unread = [name for name in self.names if name not in self._read]
        endings = Counter(
            PurePosixPath(name).suffix.lower() or "without an ending" for name in unread
        )
        if unread:
            shown = ", ".join(f"{count:,} {ending}" for ending, count in endings.most_common(8))
            yield f"{counted(len(unread), 'file')} not read: {shown}; such as {unread[0]}"
        if self._left_out:
            what = "hidden, not files, or links (tar -h --hard-dereference packs their targets)"
            yield f"{counted(len(self._left_out), 'name')} skipped: {what}; such as {min(self._left_out)}"

    def _files(self, names: Collection[str]) -> Iterator[tuple[str, BinaryIO]]:
        self._read.update(names)
        if self._members_of is not None:
            yield from self._members(names)
            return
        for name in sorted(names):
            with self.open(name) as file:
                yield name, file

    def _list_folder(self) -> dict[str, Path]:
        paths: dict[str, Path] = {}
        waiting = [("", (os.path.realpath(self.path),))]
        with self._named_damage():
            while waiting:
                folder, above = waiting.pop()
                for entry in [*os.scandir(self.path / folder)]:
                    name = folder + entry.name
                    linked = (os.path.realpath(entry.path),) if entry.is_symlink() else ()
                    again = any(os.path.commonpath(pair) in pair for pair in product(linked, above))
                    if os.path.isfile(entry) and not entry.name.startswith("."):
                        paths[printable(name)] = self.path / name
                    elif os.path.isdir(entry) and not entry.name.startswith(".") and not again:
                        waiting.append((f"{name}/", (*above, *linked)))
                    else:
                        self._left_out.append(printable(name))
        return paths

    def _list_tar(self) -> dict[str, int]:
        members: dict[str, int] = {}
        for number, (member, _) in enumerate(self._walk_tar()):
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            absolute, hidden = (
                member.name.startswith("/"),
                any(part.startswith(".") for part in parts),
            )
            shown = printable("/" * absolute + "/".join(parts))
            if member.isreg() and not absolute and not hidden:
                members[shown] = number
            elif not member.isdir():
                self._left_out.append(shown)
        return members

    def _members(self, names: Collection[str]) -> Iterator[tuple[str, BinaryIO]]:
        waiting = {self._members_of[name]: name for name in names}
        for number, (member, tar) in enumerate(self._walk_tar()):
            if number in waiting:
                if member.issparse():
                    raise DataError(
                        f"{self.path}: {waiting[number]} is a sparse entry. Pack it without --sparse."
                    )
                yield waiting.pop(number), tar.extractfile(member)
                if not waiting:
                    return

    def _walk_tar(self) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
        with self._named_damage(), closing(_open_tar(self.path)) as tar:
            reached, largest = -1, _DENSEST * self.path.stat().st_size
            while (member := tar.next()) is not None:
                if not 0 <= member.size <= largest or tar.offset <= reached:
                    raise tarfile.ReadError(
                        f"the size of {printable(member.name)} cannot be {member.size}"
                    )
                reached = tar.offset
                yield member, tar
                tar.members.clear()  # tarfile remembers every member; a large archive has millions

    def _named_damage(self) -> AbstractContextManager:
        return reading(f"{self.path} cannot be read", _AGAIN, Exception)


def store(scratch: int, content: bytes | np.ndarray, offset: int, folder: Path) -> None:
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
        return tarfile.open(path, "r|*", bufsize=2**20, tarinfo=_Header)


def _is_tar(path: Path) -> bool:
    try:
        with closing(_open_tar(path)):
            return path.stat().st_size > 0
    except Exception:  # whatever the libraries that unpack meet in a header
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            raise DataError(f"{path} is not a tar file, or is damaged. {_AGAIN}") from None
        return False
