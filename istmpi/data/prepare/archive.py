"""A folder, a tar file or a single file as a set of named files, read in sequence and never unpacked."""

import gzip
import lzma
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from istmpi.errors import DataError, OutputError, kind_of
from istmpi.foreign import MEGABYTE, printable, reading

MOST = 256 * MEGABYTE
"""The most bytes of a file that is read whole, where its kind says nothing else."""

# As tarfile and the libraries that unpack raise them; the first three where numbers in a header are none.
_DAMAGE = (ValueError, LookupError, AttributeError, tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError)


class Archive:
    """The regular files of ``path``: their ``names``, sorted, relative to it, with "/" between the parts.

    A tar file may be compressed in any way that ``tarfile`` knows. Its links and devices are no files here, nor is a
    member whose name is absolute or climbs out with "..", nor anything hidden (".name"); nothing is ever written under
    a member's name. Of members with one name the last counts, as for tar. In ``names`` everything is escaped that is
    no visible character: they become classes, and lines on a terminal. ``scratch`` is the folder for ``open``'s copies.
    Raises DataError where ``path`` does not exist, is damaged or holds no file at all.
    """

    def __init__(self, path: str | os.PathLike, scratch: str | os.PathLike | None = None):
        self.path = Path(path)
        self._scratch = scratch
        if not self.path.exists():
            raise DataError(f"{self.path} does not exist. Give a folder, a .tar or .tar.gz, or a file.")
        if not (self.path.is_file() or self.path.is_dir()):
            raise DataError(f"{self.path} is {kind_of(self.path)}. Give a folder, a .tar or .tar.gz, or a file.")
        self._is_tar = self.path.is_file() and _is_tar(self.path)
        if self._is_tar:
            names = self._list_tar()
        elif self.path.is_dir():
            self._paths = self._list_folder()
            names = self._paths
        else:
            self._paths = {printable(self.path.name): ""}
            names = self._paths
        self.names = sorted(names)
        if not self.names:
            raise DataError(f"{self.path} holds no files (links and hidden files do not count). Give one that does.")

    def read(self, names: Collection[str], most: int = MOST) -> Iterator[tuple[str, bytes]]:
        """The names and contents of the files ``names``, in one pass, in the order in which they are stored.

        DataError for one that has more than ``most`` bytes.
        """
        if not self._is_tar:
            for name in sorted(names):
                with self._named_damage(), self._local(name).open("rb") as file:
                    content = file.read(most + 1)
                yield name, self._small(name, content, most)
            return
        for name, stream in self._members(names):
            with self._named_damage():
                content = stream.read(most + 1)
            yield name, self._small(name, content, most)

    def _small(self, name: str, content: bytes, most: int) -> bytes:
        if len(content) > most:
            raise DataError(
                f"{self.path}: {name} has more than {most // MEGABYTE} MB, the most for such a file. Take it out."
            )
        return content

    def pieces(
        self, names: Collection[str], position: Callable[[int], None] = lambda done: None
    ) -> Iterator[tuple[str, Iterator[bytes]]]:
        """The names of the files ``names`` and their contents in pieces, in one pass, in the order of storage.

        They are decompressed where a name ends in ".gz"; one's pieces can be had until the next is asked for.
        ``position`` is told how many bytes of the file, as it is stored, have been read.
        """
        if self._is_tar:
            for name, stream in self._members(names):
                yield name, self._unzipped_pieces(name, stream, position)
            return
        for name in sorted(names):
            with self.open(name) as file:
                yield name, self._unzipped_pieces(name, file, position)

    def nbytes(self, name: str) -> int:
        """Of a file, as it is stored."""
        if self._is_tar:
            return self._sizes[name]
        with self._named_damage():
            return self._local(name).stat().st_size

    def _unzipped_pieces(self, name: str, stream: BinaryIO, position: Callable[[int], None]) -> Iterator[bytes]:
        with reading(f"{self.path}: {name} cannot be read", _AGAIN, *_DAMAGE):
            unzipped = gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else stream
            while piece := unzipped.read(MEGABYTE):
                position(stream.tell())
                yield piece

    def open(self, name: str) -> BinaryIO:
        """One file, open for reading and seekable; out of a tar file it is a nameless copy on the disk."""
        if not self._is_tar:
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
        """One file as a stream, decompressed where its name ends in ".gz"; DataError if that fails."""
        with self.open(name) as file:
            if not name.endswith(".gz"):
                yield file
                return
            kinds = EOFError, gzip.BadGzipFile, zlib.error
            with reading(f"{name} is damaged", _AGAIN, *kinds), gzip.GzipFile(fileobj=file) as stream:
                yield stream

    def _local(self, name: str) -> Path:
        return self.path / self._paths[name]

    def _list_folder(self) -> dict[str, str]:
        """The paths in the folder by their names."""
        paths: dict[str, str] = {}
        with self._named_damage():
            for folder, _, files in os.walk(self.path, onerror=_raise):
                relative = Path(folder).relative_to(self.path)
                inside = [(relative / file).as_posix() for file in sorted(files) if (Path(folder) / file).is_file()]
                paths |= {printable(name): name for name in inside if _plain(name)}
        return paths

    def _list_tar(self) -> set[str]:
        """Also remembers which of several members with one name is the last, and the sizes."""
        self._last: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        for number, (member, _) in enumerate(self._walk_tar()):
            name = _clean(member.name)
            if member.isreg() and _plain(name):
                self._last[printable(name)] = number
                self._sizes[printable(name)] = member.size
        return set(self._last)

    def _members(self, names: Collection[str]) -> Iterator[tuple[str, BinaryIO]]:
        """The wanted members of the tar file; each stream is good until the next is asked for."""
        wanted = {self._last[name]: name for name in names}
        for number, (member, tar) in enumerate(self._walk_tar()):
            if number in wanted:
                if member.issparse():
                    raise DataError(f"{self.path}: {wanted[number]} is stored as sparse. Pack it without --sparse.")
                yield wanted.pop(number), tar.extractfile(member)
                if not wanted:
                    return

    def _walk_tar(self) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
        with self._named_damage(), closing(_open_tar(self.path)) as tar:
            reached, most = -1, _DENSEST * self.path.stat().st_size
            while (member := tar.next()) is not None:
                if not 0 <= member.size <= most or tar.offset <= reached:
                    raise tarfile.ReadError(f"the size of {printable(member.name)} cannot be {member.size}")
                reached = tar.offset
                yield member, tar
                tar.members.clear()  # tarfile remembers every member; a large archive has millions

    @contextmanager
    def _named_damage(self) -> Iterator[None]:
        with reading(f"{self.path} cannot be read", _AGAIN, *_DAMAGE):
            yield


def store(scratch: int, content: bytes | np.ndarray, offset: int, folder: Path) -> None:
    """Write to a nameless file in a folder; OutputError where the folder has no room for it."""
    try:
        written = os.pwrite(scratch, content, offset)
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}.") from error
    if written != memoryview(content).nbytes:
        raise OutputError(f"{folder} cannot be written: the disk is full.")


_DENSEST = 2**20
"""No compression that tarfile knows makes one byte of more; a member that claims it would be looked for without end."""
_AGAIN = "Copy or download it again."


def _open_tar(path: Path) -> tarfile.TarFile:
    """Seekable where the file is not compressed, so that unwanted members cost nothing; else one stream."""
    try:
        return tarfile.open(path, "r:")
    except tarfile.ReadError:
        return tarfile.open(path, "r|*", bufsize=2**20)


def _is_tar(path: Path) -> bool:
    """tarfile takes an empty file for a tar; a .csv.gz is compressed but no tar."""
    try:
        with closing(_open_tar(path)):
            return path.stat().st_size > 0
    except (*_DAMAGE, MemoryError, RecursionError, OverflowError):
        if path.name.endswith((".tar", ".tar.gz", ".tgz")):
            raise DataError(f"{path} is not a tar file, or is damaged. Copy or download it again.") from None
        return False


def _raise(error: OSError) -> None:
    """os.walk would pass over a folder that it may not read, and its examples would be missing without a word."""
    raise error


def _clean(name: str) -> str:
    """``./a//b`` as ``a/b``; "..", a leading "/" and all else stay as they are."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return ("/" if name.startswith("/") else "") + "/".join(parts)


def _plain(name: str) -> bool:
    return not name.startswith("/") and not any(part.startswith(".") for part in name.split("/"))
