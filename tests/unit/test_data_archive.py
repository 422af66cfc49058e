"""Archives: the same files from a folder and from a tar, and nothing that a hostile tar could smuggle in."""

import io
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
    assert dict(archive.read({"top.txt"})) == {"top.txt": b"top"}


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_a_tar(folder, tmp_path, ending):
    archive = Archive(pack(folder, tmp_path / f"packed{ending}"), tmp_path)
    assert archive.names == sorted(f"root/{name}" for name in FILES)
    assert dict(archive.read(archive.names)) == {f"root/{name}": content for name, content in FILES.items()}
    for name, content in FILES.items():
        with archive.open(f"root/{name}") as file:
            assert file.read() == content and file.seek(0) == 0


def test_a_single_file(folder):
    archive = Archive(folder / "top.txt")
    assert archive.names == ["top.txt"]
    assert dict(archive.read(archive.names)) == {"top.txt": b"top"}


def member(name, content=b"", kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    return info, content


def write_tar(path, *members):
    with tarfile.open(path, "w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def test_odd_members_are_no_files(tmp_path):
    path = write_tar(
        tmp_path / "odd.tar",
        member("/etc/passwd", b"x"),
        member("../up.wav", b"x"),
        member("a/../../up.wav", b"x"),
        member("a/._b.wav", b"x"),
        member("link.wav", kind=tarfile.SYMTYPE, link="/etc/passwd"),
        member("hard.wav", kind=tarfile.LNKTYPE, link="good.wav"),
        member("fifo.wav", kind=tarfile.FIFOTYPE),
        member("folder.wav", kind=tarfile.DIRTYPE),
        member("./good//b.wav", b"good"),
    )
    archive = Archive(path)
    assert dict(archive.read(archive.names)) == {"good/b.wav": b"good"}


def test_of_members_with_one_name_the_last_counts(tmp_path):
    archive = Archive(write_tar(tmp_path / "a.tar", member("a", b"old"), member("b", b"b"), member("./a", b"new")))
    assert archive.names == ["a", "b"]
    assert dict(archive.read(archive.names)) == {"a": b"new", "b": b"b"}


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_a_truncated_tar(folder, tmp_path, ending):
    path = pack(folder, tmp_path / f"packed{ending}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"packed{ending} cannot be read: .*Copy or download it again"):
        list(Archive(path).read(Archive(path).names))


@pytest.mark.parametrize("content", [b"", b"not a tar at all" * 100])
def test_what_is_called_tar_but_is_none(tmp_path, content):
    (tmp_path / "fake.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match="fake.tar.gz"):
        Archive(tmp_path / "fake.tar.gz")


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        Archive(tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no files"):
        Archive(write_tar(tmp_path / "links.tar", member("a", kind=tarfile.SYMTYPE, link="b")))
