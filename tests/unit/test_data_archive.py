"""Archives: the same files from a folder and from a tar, and nothing that a hostile tar could smuggle in."""

import gzip
import io
import os
import tarfile

import pytest
from data_files import pack

from istmpi.data.archive import Archive
from istmpi.errors import DataError

FILES = {"a/1.txt": b"one", "a/2.txt": b"", "b/c/3.txt": b"three" * 100_000, "top.txt": b"top"}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "root"
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / ".hidden").write_bytes(b"no")
    (root / "dangling").symlink_to("nowhere")
    return root


def test_a_folder(folder):
    archive = Archive(folder)
    assert archive.names == sorted(FILES)
    assert dict(archive.read(archive.names)) == FILES
    assert dict(archive.read({"top.txt"})) == {"top.txt": b"top"} == dict(Archive(folder / "top.txt").read(["top.txt"]))


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_a_tar(folder, tmp_path, ending):
    archive = Archive(pack(folder, tmp_path / f"packed{ending}"), tmp_path)
    assert archive.names == sorted(f"root/{name}" for name in FILES)
    assert dict(archive.read(archive.names)) == {f"root/{name}": content for name, content in FILES.items()}
    for name, content in FILES.items():
        with archive.open(f"root/{name}") as file:
            assert file.read() == content and file.seek(0) == 0


def member(name, content=b"", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    return info, content


def write_tar(path, *members):
    with tarfile.open(path, "w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def test_odd_members_are_no_files_and_of_one_name_the_last_counts(tmp_path):
    odd = [member(name, b"x") for name in ("/etc/passwd", "../up.wav", "a/../../up.wav", "a/._b.wav")]
    links = {"link.wav": tarfile.SYMTYPE, "hard.wav": tarfile.LNKTYPE, "fifo.wav": tarfile.FIFOTYPE}
    odd += [member(name, kind=kind, link="/etc/passwd") for name, kind in links.items()]
    archive = Archive(
        write_tar(tmp_path / "odd.tar", member("good/b.wav", b"old"), *odd, member("./good//b.wav", b"new"))
    )
    assert archive.names == ["good/b.wav"]
    assert dict(archive.read(archive.names)) == {"good/b.wav": b"new"}


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_a_truncated_tar(folder, tmp_path, ending):
    path = pack(folder, tmp_path / f"packed{ending}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"packed{ending} cannot be read: .*Copy or download it again"):
        list(Archive(path).read(Archive(path).names))


def test_what_is_no_archive_of_files_is_refused(tmp_path):
    (tmp_path / "empty.tar.gz").write_bytes(b"")
    (tmp_path / "fake.tar.gz").write_bytes(b"not a tar at all" * 100)
    write_tar(tmp_path / "links.tar", member("a", kind=tarfile.SYMTYPE, link="b"))
    refused = {"empty.tar.gz": "empty", "fake.tar.gz": "fake", "nowhere": "does not exist", "links.tar": "has no files"}
    for name, message in refused.items():
        with pytest.raises(DataError, match=message):
            Archive(tmp_path / name)


# ---- what an archive may say of itself


def with_size(header, size):
    """A header of a tar file with another size and the checksum of it."""
    header = header[:124] + size + header[136:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def test_names_out_of_archives_are_printable(tmp_path):
    folder = tmp_path / "folder" / os.fsdecode(b"\xff\xfe")
    folder.mkdir(parents=True)
    (folder / "1.png").write_bytes(b"content")
    packed = Archive(write_tar(tmp_path / "x.tar", member("a\x1b[31m/two\nlines.wav", b"content")))
    for archive, name in (packed, r"a\x1b[31m/two\nlines.wav"), (Archive(tmp_path / "folder"), r"\udcff\udcfe/1.png"):
        assert archive.names == [name] and list(archive.read([name])) == [(name, b"content")]
        with archive.open(name) as file:
            assert file.read() == b"content"


def test_a_large_member_is_refused_before_all_of_it_is_read(tmp_path):
    archive = Archive(write_tar(tmp_path / "x.tar", member("a/1.wav", bytes(100))))
    assert len(list(archive.read(archive.names, limit=100))) == 1
    with pytest.raises(DataError, match="x.tar: a/1.wav has more than 0 MB, the limit for this kind of file"):
        list(archive.read(archive.names, limit=99))
    entry = tarfile.TarInfo("1.wav")
    entry.size = 2**33
    with (tmp_path / "hollow.tar").open("wb") as file:
        file.write(entry.tobuf())
        file.truncate(2**33 + 2048)  # takes no room on the disk
    with pytest.raises(DataError, match="has more than 256 MB"):
        list(Archive(tmp_path / "hollow.tar").read(["1.wav"]))


def test_headers_whose_size_cannot_be_are_refused(tmp_path):
    """One has no end, and is not looked for; behind the other the member before would come for ever."""
    endless = with_size(tarfile.TarInfo("1.wav").tobuf(), b"\x80\0\0\0\0\x7f" + b"\xff" * 6)
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(endless + bytes(2048)))
    with pytest.raises(DataError, match="the size of 1.wav cannot be"):
        Archive(tmp_path / "x.tar.gz")
    path = write_tar(tmp_path / "x.tar", member("a/1.wav", b"1"), member("a/2.wav", b"2"))
    content = path.read_bytes()
    path.write_bytes(content[:1024] + with_size(content[1024:1536], b"\xff" * 10 + b"\xfc\x00") + content[1536:])
    with pytest.raises(DataError, match=r"x.tar cannot be read|holds no files"):
        Archive(path)


@pytest.mark.parametrize("cut", [1536, 1300])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_damaged_header_is_not_the_end_of_an_archive(tmp_path, cut, pack):
    """tarfile ends there as at the last member: the second one would be lost in silence."""
    content = write_tar(tmp_path / "x.tar", member("a/1.wav", b"1"), member("a/2.wav", b"2")).read_bytes()
    (tmp_path / "y.tar").write_bytes(pack(content[:1024] + b"?" + content[1025:cut]))
    with pytest.raises(DataError, match="y.tar cannot be read"):
        Archive(tmp_path / "y.tar")
