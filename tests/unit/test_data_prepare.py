"""What every kind of `istmpi prepare` has in common; the formats themselves are in test_data_kinds."""

import gzip
import io
import json
import os
import sys
import tarfile

import h5py
import numpy as np
import pytest
from batches import examples_of
from click.testing import CliRunner
from data_files import MAKERS, make_images, make_speech, pack
from disks import small_disk

from istmpi.checkpoint.state import collect_inputs
from istmpi.cli import output
from istmpi.cli.commands.prepare import command
from istmpi.data.archive import Archive
from istmpi.data.dense.split import build_material
from istmpi.data.hdf5 import open_prepared
from istmpi.data.kind import Kind
from istmpi.data.prepare import KINDS, prepare
from istmpi.data.writer import Material
from istmpi.errors import ConfigError, DataError, OutputError

DENSE = [kind for kind in KINDS if kind not in ("text", "xc", "graph")]
"""What can be made of text is in test_data_text, of sparse rows in test_data_sparse, of graphs in test_data_graph."""


def content(path):
    """All that a prepared file says, but for the name of its source and the checksum that guards it."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
        found.update({f"@{name}": value for name, value in file.attrs.items()})
    del found["@source"], found["@checksum"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_folder_tar_and_tar_gz_give_the_same_file(tmp_path, kind):
    folder = MAKERS[kind](tmp_path / "input")
    report = prepare(kind, folder, tmp_path / "folder.h5")
    expected = content(report.target)
    assert expected["@train"] > 0 and report.bytes == report.target.stat().st_size
    for ending in (".tar", ".tar.gz"):
        report = prepare(kind, pack(folder, tmp_path / f"input{ending}"), tmp_path / f"{ending}.h5")
        np.testing.assert_equal(content(tmp_path / f"{ending}.h5"), expected)
        assert report.counts == {split: expected[f"@{split}"] for split in report.counts}
    if kind in DENSE:
        data = open_prepared(report.target)
        assert (data.features, data.classes, data.shape) == (report.features, report.classes, report.shape)
        x, _ = examples_of(data.train, np.arange(len(data.train)))
        assert np.isfinite(x).all() and abs(x.mean()) < 1e-3 and abs(x.std() - 1) < 1e-2


@pytest.mark.parametrize("kind", [*DENSE, "xc", "graph"])
def test_an_archive_of_something_else_is_refused(tmp_path, kind):
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "notes.md").write_text("nothing of use")
    with pytest.raises(DataError, match=r"input.*\.tar"):
        prepare(kind, pack(tmp_path / "input", tmp_path / "input.tar"), tmp_path / "data.h5")
    assert not (tmp_path / "data.h5").exists()


@pytest.mark.parametrize("kind, file", [("speech", "yes/ann_nohash_0.wav"), ("images", "train/dog/3.png")])
@pytest.mark.parametrize("keep", [0, 30])
def test_bad_files_are_skipped_and_named_up_to_a_limit(tmp_path, kind, file, keep):
    folder = MAKERS[kind](tmp_path / "input")
    (folder / file).write_bytes((folder / file).read_bytes()[:keep])
    (tmp_path / "old.h5").write_text("old")
    message = rf"1 of \d+ files cannot be read, more than 1.0%, among them {file}.*--max"
    for target in ("data.h5", "old.h5"):
        with pytest.raises(DataError, match=message) as refused:
            prepare(kind, folder, tmp_path / target, force=True)
        assert " at 0x" not in str(refused.value) and "<" not in str(refused.value), "an address or an object"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["input", "old.h5"]
    assert (tmp_path / "old.h5").read_text() == "old"
    assert prepare(kind, folder, tmp_path / "data.h5", max_bad=0.1).skipped == [file]
    (folder / file).unlink()
    prepare(kind, folder, tmp_path / "without.h5")
    np.testing.assert_equal(content(tmp_path / "data.h5"), content(tmp_path / "without.h5") | {"@skipped": 1})


@pytest.mark.parametrize("kind, phase, count", [("images", "decoding", 20), ("text", "reading", 6)])
def test_progress_runs_to_the_end(tmp_path, kind, phase, count):
    calls, folder = [], MAKERS[kind](tmp_path / "input")
    for source in (folder, pack(folder, tmp_path / "input.tar.gz")):
        prepare(kind, source, tmp_path / "data.h5", force=True, progress=lambda *call: calls.append(call))
        assert calls == sorted(calls), "it never goes back"
        assert (phase, count, count) in calls and calls[-1][0] == "writing" and calls[-1][1] == calls[-1][2]
        calls.clear()


def test_the_target_is_checked_before_the_work(tmp_path):
    (tmp_path / "data.h5").write_text("precious")
    for target, message in (
        (tmp_path / "data.h5", r"data.h5 exists.*--force"),
        (tmp_path / "data.bin", "Name it data.bin.h5"),
        (tmp_path / "nowhere" / "data.h5", "the folder .* does not exist"),
        ("/proc/data.h5", "/proc/data.h5: cannot be written"),
    ):
        with pytest.raises((ConfigError, OutputError), match=message):
            prepare("arrays", tmp_path / "not even there", target)


@pytest.mark.parametrize("size", ["12k", "1200k"])
def test_a_full_disk_is_one_line_and_leaves_nothing(forked, tmp_path, size):
    """Wherever it is full: when no row has room or the last. HDF5 itself may crash then."""
    x, y = np.random.default_rng(0).normal(size=(4000, 64)).astype(np.float32), np.arange(4000) % 3
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    with small_disk(tmp_path / "disk", size) as disk:
        target = disk / "data.h5"
        done = forked("prepare", "arrays", tmp_path / "data.npz", target)
        assert done.stderr == f"istmpi: {target}: cannot be written (No space left on device).\n"
        assert done.returncode == 74 and list(disk.iterdir()) == []


def test_a_disk_without_room_for_what_an_archive_holds_is_not_the_archives_fault(tmp_path):
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "t.csv").write_text("1,2,3\n1,2,4\n" * 10_000)
    archive = pack(tmp_path / "table", tmp_path / "table.tar.gz")
    with small_disk(tmp_path / "disk", "64k") as disk:
        with pytest.raises(OutputError, match=f"{disk}.*: cannot be written"):
            prepare("csv", archive, disk / "data.h5")
        assert list(disk.iterdir()) == []


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("image", {}, "data kind 'image' does not exist; did you mean images"),
        ("idx", {"size": 3}, "data kind idx has no option size; it has no options"),
        ("csv", {"lable": "x"}, "data kind csv has no option lable; did you mean label"),
        ("images", {"size": 0}, "size is 0"),
        ("images", {"max_bad": 2}, "max_bad is 2"),
        ("csv", {"task": "clasification"}, "did you mean classification"),
        ("csv", {"task": "next-token"}, "task 'next-token' does not exist; known: classification, multi-label"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, kind, options, message):
    with pytest.raises(ConfigError, match=message):
        prepare(kind, MAKERS.get(kind, make_images)(tmp_path / "input"), tmp_path / "data.h5", **options)


def test_a_reader_library_that_is_absent_is_named_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError, match=r"soundfile.*pip install 'istmpi\[data\]'"):
        prepare("speech", make_speech(tmp_path / "input"), tmp_path / "data.h5")


def invoke(*words):
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def test_the_options_reach_the_library_and_a_log_file_gets_a_line_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0)
    target = tmp_path / "data.h5"
    (tmp_path / "table.csv").write_text("kind,size\n" + "".join(f"{row % 2},{row}\n" for row in range(10)))
    invoke("csv", tmp_path / "table.csv", target, "--label", "kind", "--task", "regression")
    data = open_prepared(target)
    assert data.task == "regression" and set(data.train.labels()[:, 0]) == {0, 1}
    folder = make_images(tmp_path / "input")
    (folder / "train" / "cat" / "[red].png").write_bytes(b"")
    result = invoke("images", folder, target, "--size", "3", "--max-bad", "0.1", "--force")
    assert open_prepared(target).shape == (3, 3, 3)
    assert "train/cat/[red].png" in result.stdout and "decoding 20 of 21" in result.stderr


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A source of a kind, ``made``, whose reader assumes, leaves out and records one thing each."""

    def read(archive: Archive, decoder) -> Material:
        list(archive.read(archive.names))
        decoder.notes.assume("the first line of 3 is [a] header", "--header")
        decoder.notes.leave_out("2 rows without a label")
        decoder.notes.reading["columns"] = ["a", "b"]
        x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(4) % 2
        splits = {"train": (x, y), "test": (x, y)}
        return build_material("source", "classification", splits, ("0", "1"), np.dtype(np.float32), 2)

    monkeypatch.setitem(KINDS, "made", Kind("made", read=read))
    path = tmp_path / "source.csv"
    path.write_text("")
    return path


def test_the_file_and_the_checkpoint_keep_the_conventions(source, tmp_path):
    report = prepare("made", source, tmp_path / "data.h5")
    data = open_prepared(report.target)
    assert report.reading == data.reading == {"columns": ["a", "b"]}
    assert json.loads(collect_inputs(data)["input/reading"].tobytes()) == data.reading
    assert data.with_normalisation(None).reshape((1, 2)).reading == data.reading
    np.savez(tmp_path / "a.npz", x=np.eye(10, dtype=int), y=["a", "b"] * 5)
    data = open_prepared(prepare("arrays", tmp_path / "a.npz", tmp_path / "plain.h5").target)
    assert data.reading == {} and "input/reading" not in collect_inputs(data), "as it was before there were conventions"


def test_the_command_says_what_was_assumed_and_left_out(source, tmp_path):
    words = ["made", source, tmp_path / "data.h5", "--force"]
    table = " ".join(invoke(*words).stdout.split())
    assert "assumed the first line of 3 is [a] header (change with --header)" in table
    assert "left out 2 rows without a label" in table and "4 examples" in table and "skipped" not in table
    report = json.loads(invoke(*words, "--json").stdout)
    assert report["assumed"] == [{"text": "the first line of 3 is [a] header", "option": "--header"}]
    assert report["left_out"] == [{"text": "2 rows without a label", "option": ""}]
    assert report["reading"] == {"columns": ["a", "b"]}


# ---- archives: the same files from a folder and from a tar, and nothing that a hostile tar could smuggle in


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
