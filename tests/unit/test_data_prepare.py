"""What every kind of `istmpi prepare` has in common; the formats themselves are in test_data_kinds."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
from batches import examples_of
from data_files import MAKERS, make_arrays, make_images, make_speech, pack
from disks import small_disk

from istmpi.data.archive import Archive
from istmpi.data.decoder import Notes, class_folders
from istmpi.data.hdf5 import open_prepared
from istmpi.data.images.prepare import ENDINGS
from istmpi.data.prepare import KINDS, prepare
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
    prepare(kind, folder, tmp_path / "folder.h5")
    expected = content(tmp_path / "folder.h5")
    assert expected["@train"] > 0
    for ending in (".tar", ".tar.gz"):
        report = prepare(kind, pack(folder, tmp_path / f"input{ending}"), tmp_path / f"{ending}.h5")
        np.testing.assert_equal(content(tmp_path / f"{ending}.h5"), expected)
        assert report.counts == {split: expected[f"@{split}"] for split in report.counts}


@pytest.mark.parametrize("kind", DENSE)
def test_what_is_prepared_can_be_opened(tmp_path, kind):
    report = prepare(kind, MAKERS[kind](tmp_path / "input"), tmp_path / "data.h5")
    data = open_prepared(report.target)
    assert {split: len(rows) for split, rows in data.splits.items()} == report.counts
    assert (data.features, data.classes, data.shape) == (report.features, report.classes, report.shape)
    x, _ = examples_of(data.train, np.arange(len(data.train)))
    assert np.isfinite(x).all() and abs(x.mean()) < 1e-3 and abs(x.std() - 1) < 1e-2
    assert report.bytes == report.target.stat().st_size


@pytest.mark.parametrize("kind", [*DENSE, "xc", "graph"])
def test_an_archive_of_something_else_is_refused(tmp_path, kind):
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "notes.md").write_text("nothing of use")
    with pytest.raises(DataError, match=r"input.*\.tar"):
        prepare(kind, pack(tmp_path / "input", tmp_path / "input.tar"), tmp_path / "data.h5")
    assert not (tmp_path / "data.h5").exists()


@pytest.mark.parametrize("kind, file", [("speech", "yes/ann_nohash_0.wav"), ("images", "train/dog/3.png")])
@pytest.mark.parametrize("damage", [b"", b"this is not what it is called", "half"])
def test_bad_files_are_skipped_and_named_up_to_a_limit(tmp_path, kind, file, damage):
    folder = MAKERS[kind](tmp_path / "input")
    path = folder / file
    path.write_bytes(path.read_bytes()[:30] if damage == "half" else damage)
    with pytest.raises(DataError, match=rf"1 of \d+ files cannot be read, more than 1.0%, among them {file}.*--max"):
        prepare(kind, folder, tmp_path / "data.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["input"]

    report = prepare(kind, folder, tmp_path / "data.h5", max_bad=0.1)
    assert report.skipped == [file]
    path.unlink()
    prepare(kind, folder, tmp_path / "without.h5")
    np.testing.assert_equal(content(tmp_path / "data.h5"), content(tmp_path / "without.h5") | {"@skipped": 1})


def test_progress_runs_to_the_end(tmp_path):
    calls = []
    prepare("images", make_images(tmp_path / "input"), tmp_path / "data.h5", progress=lambda *call: calls.append(call))
    assert ("decoding", 20, 20) in calls and calls[-1][0] == "writing" and calls[-1][1] == calls[-1][2]


def test_the_target_is_checked_before_the_work(tmp_path):
    (tmp_path / "data.h5").write_text("precious")
    with pytest.raises(ConfigError, match="--force"):
        prepare("arrays", tmp_path / "not even there", tmp_path / "data.h5")
    prepare("arrays", make_arrays(tmp_path / "input"), tmp_path / "data.h5", force=True)
    assert len(open_prepared(tmp_path / "data.h5").train) == 20
    with pytest.raises(OutputError, match="the folder .* does not exist"):
        prepare("arrays", tmp_path / "input", tmp_path / "nowhere" / "data.h5")
    with pytest.raises(OutputError, match="/proc/data.h5: cannot be written"):
        prepare("arrays", tmp_path / "input", "/proc/data.h5")


@pytest.mark.parametrize("size", ["12k", "400k", "1200k"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, size):
    """Wherever it is full: at the first byte, or when no row has room or the last. HDF5 itself may crash then."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(4000, 64)).astype(np.float32), np.arange(4000) % 3
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    with small_disk(tmp_path / "disk", size) as disk:
        target = disk / "data.h5"
        command = [sys.executable, "-c", "from istmpi.cli.main import main; main()", "prepare", "arrays"]
        done = subprocess.run([*command, tmp_path / "data.npz", target], capture_output=True, text=True)
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


def test_a_failure_keeps_the_old_target(tmp_path):
    folder = make_speech(tmp_path / "input")
    target = tmp_path / "data.h5"
    prepare("speech", folder, target)
    before = target.read_bytes()
    (folder / "yes" / "ann_nohash_0.wav").write_bytes(b"")
    with pytest.raises(DataError):
        prepare("speech", folder, target, force=True)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.h5", "input"]


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("image", {}, "data kind 'image' does not exist; did you mean images"),
        ("idx", {"size": 3}, "data kind idx has no option size; it has no options"),
        ("csv", {"lable": "x"}, "data kind csv has no option lable; did you mean label"),
        ("images", {"size": 0}, "size is 0"),
        ("images", {"max_bad": 2}, "max_bad is 2"),
        ("csv", {"task": "clasification"}, "did you mean classification"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, kind, options, message):
    folder = MAKERS.get(kind, make_images)(tmp_path / "input")
    with pytest.raises(ConfigError, match=message):
        prepare(kind, folder, tmp_path / "data.h5", **options)


def test_a_reader_library_that_is_absent_is_named_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError, match=r"soundfile.*pip install 'istmpi\[data\]'"):
        prepare("speech", make_speech(tmp_path / "input"), tmp_path / "data.h5")


def test_spoken_digits(shared_data, tmp_path):
    report = prepare("speech", shared_data / "spoken-digits.tar.gz", tmp_path / "data.h5")
    assert report.counts == {"train": 2500, "test": 500}
    assert report.features == 4096 and len(report.classes) == 10 and report.skipped == []
    labels = open_prepared(tmp_path / "data.h5").test.labels()
    assert np.bincount(labels).tolist() == [50] * 10


def test_the_layout_of_cifar10_as_jpegs(shared_data):
    """The names alone: decoding all takes a while."""
    examples = class_folders(Archive(shared_data / "cifar10.tar"), ENDINGS, Notes())
    splits = [example.split for example in examples]
    assert (splits.count("train"), splits.count("test")) == (50_000, 10_000)
    assert len({example.label for example in examples}) == 10
