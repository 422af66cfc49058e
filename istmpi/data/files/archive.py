"""A folder, a tar file or a single file as a set of named files, read in sequence and never unpacked."""

import gzip
import lzma
import os
import tarfile
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from istmpi.data.files.notes import not_read
from istmpi.errors import DataError, OutputError, kind_of
from istmpi.foreign import MEGABYTE, printable, reading
from istmpi.units import counted

MOST = 256 * MEGABYTE
"""The default limit of a file that is read whole."""
# As tarfile and the libraries that unpack raise them; the first three where numbers in a header are none.
_DAMAGE = (ValueError, LookupError, AttributeError, tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError)
_DENSEST = 2**20
"""A compressed byte never unpacks to more; a member that claims it would be looked for without end."""
_AGAIN = "Copy or download it again."


class Archive:
    """The regular files of ``path``: their ``names``, sorted, relative to it, with "/" between the parts.

    In a folder links are followed, but not a link to a folder that is read anyway, or that holds the link. A tar file
    may be compressed. Its links and devices are no files here, nor is a member whose name is absolute or climbs out
    with "..", nor anything hidden (".name"); nothing is ever written under a member's name. Of members with one name
    the last counts, as for tar. In ``names`` everything is escaped that is no visible character: they become classes,
    and lines on a terminal. ``scratch`` is the folder for ``open``'s copies.
    """

    def __init__(self, path: str | os.PathLike, scratch: str | os.PathLike | None = None):
        self.path, self.source, self._scratch = Path(path), str(path), scratch
        give = "Give a folder, a .tar or .tar.gz, or a file."
        if not self.path.exists():
            raise DataError(f"{self.path} does not exist. {give}")
        if not (self.path.is_file() or self.path.is_dir()):
            raise DataError(f"{self.path} is {kind_of(self.path)}. {give}")
        self.linked: list[str] = []
        self._left_out: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._read: set[str] = set()
        self._members_of: dict[str, tuple[int, int]] | None = None
        """The number of each member of a tar file, and its size."""
        if self.path.is_file() and _is_tar(self.path):
            self._members_of = self._list_tar()
        else:
            self._paths = self._list_folder() if self.path.is_dir() else {printable(self.path.name): ""}
        self.names = sorted(self._paths if self._members_of is None else self._members_of)
        if not self.names:
            raise DataError(
                f"{self.path} holds no files (hidden ones and links in a tar do not count). Give one that does."
            )

    def read(self, names: Collection[str], limit: int = MOST) -> Iterator[tuple[str, bytes]]:
        """Yield the names and contents of files, as they are stored; DataError for one of more than ``limit`` bytes."""
        for name, stream in self._streams(names):
            with self._named_damage():
                content = stream.read(limit + 1)
            if len(content) > limit:
                raise DataError(
                    f"{self.path}: {name} has more than {limit // MEGABYTE} MB, the most for such a file. Take it out."
                )
            yield name, content

    def pieces(
        self, names: Collection[str], position: Callable[[int], None] = lambda done: None
    ) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the names of files and their contents in pieces, as they are stored, but without ".gz".

        A file's pieces can be had until the next is asked for. ``position`` gets the bytes that have been read.
        """
        for name, stream in self._streams(names):
            yield name, self._unzipped_pieces(name, stream, position)

    def nbytes(self, name: str) -> int:
        if self._members_of is not None:
            return self._members_of[name][1]
        with self._named_damage():
            return self._local(name).stat().st_size

    def _streams(self, names: Collection[str]) -> Iterator[tuple[str, BinaryIO]]:
        """Yield files as streams; each is good until the next is asked for."""
        self._read.update(names)
        if self._members_of is not None:
            yield from self._members(names)
            return
        for name in sorted(names):
            with self.open(name) as file:
                yield name, file

    def _unzipped_pieces(self, name: str, stream: BinaryIO, position: Callable[[int], None]) -> Iterator[bytes]:
        with reading(f"{self.path}: {name} cannot be read", _AGAIN, *_DAMAGE):
            unzipped = gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else stream
            while piece := unzipped.read(MEGABYTE):
                position(stream.tell())
                yield piece

    def open(self, name: str) -> BinaryIO:
        """Open a file, seekable; a member of a tar file is copied to a nameless file on the disk."""
        self._read.add(name)
        if self._members_of is None:
            with self._named_damage():
                return self._local(name).open("rb")
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

    @contextmanager
    def unzipped(self, name: str) -> Iterator[BinaryIO]:
        """Open a file as a stream, decompressed where its name ends in ".gz"."""
        with self.open(name) as file:
            if not name.endswith(".gz"):
                yield file
                return
            kinds = EOFError, gzip.BadGzipFile, zlib.error
            with reading(f"{name} is damaged", _AGAIN, *kinds), gzip.GzipFile(fileobj=file) as stream:
                yield stream

    def _local(self, name: str) -> Path:
        return self.path / self._paths[name]

    def passed_over(self) -> Iterator[str]:
        """Yield lines on the files that were not read so far."""
        for (noun, more), names in self._left_out.items():
            yield f"{counted(len(names), noun)}{more}, such as {min(names)}"
        yield from not_read(self.names, self._read)

    def _list_folder(self) -> dict[str, str]:
        paths: dict[str, str] = {}
        waiting = [("", (os.path.realpath(self.path),))]
        with self._named_damage():
            while waiting:
                folder, above = waiting.pop()
                for entry in os.scandir(self.path / folder):
                    name, linked = folder + entry.name, entry.is_symlink()
                    shown = printable(name)
                    if entry.name.startswith("."):
                        self._left_out["hidden file", " or folder"].append(shown)
                    elif os.path.isdir(entry) if linked else entry.is_dir():
                        inside = (*above, os.path.realpath(entry.path)) if linked else above
                        if linked and any(_overlap(inside[-1], other) for other in above):
                            self._left_out["link", " to a folder that is read anyway"].append(shown)
                        else:
                            waiting.append((f"{name}/", inside))
                            self.linked += [shown] * linked
                    elif os.path.isfile(entry) if linked else entry.is_file():
                        paths[shown] = name
                        self.linked += [shown] * linked
                    else:
                        self._left_out["broken link", ", pipe or device"].append(shown)
        return paths

    def _list_tar(self) -> dict[str, tuple[int, int]]:
        """Return the number of each member, of several with one name the last, and its size."""
        members: dict[str, tuple[int, int]] = {}
        for number, (member, _) in enumerate(self._walk_tar()):
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            absolute, hidden = member.name.startswith("/"), any(part.startswith(".") for part in parts)
            shown, kind = printable("/" * absolute + "/".join(parts)), None
            if member.issym() or member.islnk():
                kind = "link", " in the tar (tar -h --hard-dereference packs what they stand for)"
            elif not member.isreg():
                kind = "pipe", " or device"
            elif absolute or hidden:
                kind = "member", " of the tar that is hidden or whose name leads out of it"
            elif shown in members:
                self._left_out["member", " of the tar that a later one of its name replaces"].append(shown)
            if kind is None:
                members[shown] = number, member.size
            elif not member.isdir():
                self._left_out[kind].append(shown)
        return members

    def _members(self, names: Collection[str]) -> Iterator[tuple[str, BinaryIO]]:
        waiting = {self._members_of[name][0]: name for name in names}
        for number, (member, tar) in enumerate(self._walk_tar()):
            if number in waiting:
                if member.issparse():
                    raise DataError(f"{self.path}: {waiting[number]} is stored as sparse. Pack it without --sparse.")
                yield waiting.pop(number), tar.extractfile(member)
                if not waiting:
                    return

    def _walk_tar(self) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
        with self._named_damage(), closing(_open_tar(self.path)) as tar:
            reached, largest = -1, _DENSEST * self.path.stat().st_size
            while (member := tar.next()) is not None:
                if not 0 <= member.size <= largest or tar.offset <= reached:
                    raise tarfile.ReadError(f"the size of {printable(member.name)} cannot be {member.size}")
                reached = tar.offset
                yield member, tar
                tar.members.clear()  # tarfile remembers every member; a large archive has millions

    @contextmanager
    def _named_damage(self) -> Iterator[None]:
        with reading(f"{self.path} cannot be read", _AGAIN, *_DAMAGE):
            yield


def store(scratch: int, content: bytes | np.ndarray, offset: int, folder: Path) -> None:
    """Write to a nameless file in a folder."""
    try:
        written = os.pwrite(scratch, content, offset)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}.") from error
    if written != memoryview(content).nbytes:
        raise OutputError(f"{folder} cannot be written: the disk is full.")


def _open_tar(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r:")
    except tarfile.ReadError:
        return tarfile.open(path, "r|*", bufsize=2**20)


def _is_tar(path: Path) -> bool:
    """Return whether a file is a tar; tarfile takes an empty file for one."""
    try:
        with closing(_open_tar(path)):
            return path.stat().st_size > 0
    except (*_DAMAGE, MemoryError, RecursionError, OverflowError):
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            raise DataError(f"{path} is not a tar file, or is damaged. {_AGAIN}") from None
        return False


def _overlap(folder: str, other: str) -> bool:
    return os.path.commonpath([folder, other]) in (folder, other)
