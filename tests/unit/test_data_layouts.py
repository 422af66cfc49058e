"""Layouts of folders, lists and links: every file is where its folders say, or it is counted, or a file is named."""

import os

import numpy as np
import pytest
from batches import examples_of
from data_files import MAKERS, make_speech, pack, read_notes, write_files, write_wav
from PIL import Image

from istmpi.data.dense.predict import read_inputs
from istmpi.data.dense.speech import log_mel
from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare
from istmpi.errors import DataError

soundfile = pytest.importorskip("soundfile")


def images(folder, *names):
    """Small images of these names; many where a name ends with ``*N``."""
    for number, name in enumerate(names):
        name, _, count = name.partition("*")
        for copy in range(int(count or 1)):
            path = folder / name.replace("#", str(copy))
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 5), 20 * number + copy, np.uint8)).save(path, "PNG")
    return folder


DOG = "train/dog/0.png"


@pytest.mark.parametrize(
    "names, counts, said",
    [
        (["train/cat/2019/#.png*3", "train/dog/#.png*2", "test/cat/#.png"], {"train": 5, "test": 1}, ""),
        (["TRAIN/cat/#.png*3", "TRAIN/dog/0.png", "Testing/cat/#.png*2"], {"train": 4, "test": 2}, ""),
        (["train/a/0.png", DOG, "VALID/a/0.png"], {"train": 2, "test": 1}, "validation examples are used for testing"),
        (["trn/a/0.png", "trn/dog/0.png", "tst/a/0.png", "dev/a/0.png"], {"train": 2, "test": 1, "validation": 1}, ""),
        ([f"my/{DOG}", "my/train/a/0.png", "my/test/a/b/0.png", "my/logo.png"], {"train": 2, "test": 1}, "as my/logo"),
        (["my/cat/2019/#.png*5", "my/dog/#.png*5"], {"train": 8, "test": 2}, "classes are the folders in my/"),
        (["train/train/0.png", DOG, "test/train/0.png"], {"train": 2, "test": 1}, ""),
        (["train/a/0.png", DOG, "valid/a/0.png", "validation/a/0.png"], {"train": 2, "test": 2}, ""),
        (["train/#.png*5", "dog/#.png*5"], {"train": 8, "test": 2}, ""),
        (["cat_valid/#.png*5", "dog_invalid/#.png*5", "0.png"], {"train": 8, "test": 2}, "1 .png; such as 0.png"),
    ],
)
def test_the_class_is_the_first_folder_of_its_split(tmp_path, names, counts, said):
    folder = images(tmp_path / "in", *names)
    for source in (folder, pack(folder, tmp_path / "in.tar.gz")):
        report = prepare("images", source, tmp_path / "data.h5", force=True)
        assert report.counts == counts
        assert {"cat", "dog", "a", "train", "cat_valid", "dog_invalid"} >= set(report.classes)
        assert said in read_notes(report).replace("in/", "")


def test_recordings_may_be_in_folders_of_splits(tmp_path):
    made = make_speech(tmp_path / "made")
    for split, speaker in (("Train", "ann"), ("Test", "eve")):
        for word in ("no", "yes"):
            folder = tmp_path / "in" / split / word / "session"
            folder.mkdir(parents=True)
            (made / word / f"{speaker}_nohash_0.wav").rename(folder / "a.wav")
    report = prepare("speech", tmp_path / "in", tmp_path / "data.h5")
    assert (report.counts, report.classes) == ({"train": 2, "test": 2}, ("no", "yes"))
    (tmp_path / "in" / "testing_list.txt").write_text("no/session/a.wav")
    with pytest.raises(DataError, match="has a folder Test/.* unless a list names its files"):
        prepare("speech", tmp_path / "in", tmp_path / "data.h5", force=True)


@pytest.mark.parametrize(
    "names, splits, said",
    [
        (("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"), 3, ""),
        (("Training/a", "dev/b"), 2, "validation documents are used for testing"),
        (("train-0.txt", "train-1.txt", "test-0.txt"), 2, ""),
        (("train.txt", "test.txt", "README"), 0, "file names are not splits: README names none"),
    ],
)
def test_splits_of_documents_are_named_in_any_way(tmp_path, names, splits, said):
    report = prepare("text", write_files(tmp_path / "in", dict.fromkeys(names, b"some words")), tmp_path / "data.h5")
    assert said in read_notes(report) and report.split.startswith("documents: ") == (not splits)
    assert list(report.counts) == ["train", "test", "validation"][: splits or 2]


def test_links_are_followed_but_not_to_what_is_read_anyway(tmp_path):
    folder = images(tmp_path / "in", "cat/#.png*5", "dog/#.png*5")
    images(tmp_path / "other", "bird/#.png*5")
    (tmp_path / "other" / "bird" / "again").symlink_to(tmp_path / "other")  # a loop outside
    (folder / "bird").symlink_to("../other/bird")
    (folder / "cat" / "5.png").symlink_to("../dog/0.png")
    for name, target in (("all", "cat"), ("up", ".."), ("own", "own"), ("gone", "nowhere"), ("cat/here", ".")):
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.png")
    report = prepare("images", folder, tmp_path / "data.h5")
    assert (report.classes, sum(report.counts.values())) == (("bird", "cat", "dog"), 16)
    assert "7 names skipped: hidden, not files, or links" in read_notes(report)


@pytest.mark.parametrize("kind", ["images", "speech", "csv"])
def test_files_that_are_not_read_are_counted_by_ending(tmp_path, kind):
    folder = MAKERS[kind](tmp_path / "in")
    write_files(folder, dict.fromkeys(("bird/a.xyz", "bird/b.XYZ", "NOTES", ".hidden"), b"?"))
    said = read_notes(prepare(kind, folder, tmp_path / "data.h5"))
    assert " files not read: 2 .xyz, 1 without an ending" in said and "such as NOTES" in said
    assert "1 name skipped" in said and "such as .hidden" in said


def test_what_pillow_reads_is_read(tmp_path):
    folder = images(tmp_path / "in", "cat/#.png*3", "dog/#.png*2")
    for ending in ("JPE", "jfif"):
        Image.new("L", (5, 4), 99).save(folder / "cat" / f"x.{ending}", "JPEG")
    report = prepare("images", folder, tmp_path / "data.h5")
    assert sum(report.counts.values()) == 7 and not report.left_out
    names = [name for block, _, _ in read_inputs(str(folder), "images", (1, 4, 5)) for name in block]
    assert {"cat/x.JPE", "cat/x.jfif"} <= {*names}


def test_one_image_of_16_bits_stops_nothing(tmp_path):
    folder = images(tmp_path / "in", "cat/#.png*15", "dog/#.png*15")
    wide = Image.fromarray(np.zeros((4, 5), np.uint16))
    wide.save(folder / "cat" / "0.png")
    report = prepare("images", folder, tmp_path / "data.h5", max_bad=0.05)
    assert report.skipped == ["cat/0.png"] and sum(report.counts.values()) == 29
    wide.save(folder / "cat" / "1.png")
    with pytest.raises(DataError, match=r"2 of 30 files cannot be read, .*cat/0.png.*\(pixels of mode I;16"):
        prepare("images", folder, tmp_path / "data.h5", force=True, max_bad=0.05)


LISTED = "no/eve_nohash_0.wav\nturn on/eve_nohash_1.wav\n"


@pytest.mark.parametrize("text", ["\ufeff" + LISTED.replace("\n", "  \r\n\r\n"), LISTED + "no/x.wav\n"])
def test_lines_of_a_list_are_paths(tmp_path, text):
    """Those of no file are counted, and a word may have a space."""
    folder = make_speech(tmp_path / "in")
    (folder / "yes").rename(folder / "turn on")
    (folder / "testing_list.txt").write_bytes(text.encode())
    (folder / "validation_list.txt").write_text("no/bob_nohash_0.wav\n")
    for source in (folder, pack(folder, tmp_path / "in.tar")):
        report = prepare("speech", source, tmp_path / "data.h5", force=True)
        assert report.counts == {"train": 9, "test": 2, "validation": 1} and report.classes == ("no", "turn on")
        assert ("1 line of lists without a file, such as no/x.wav in " in read_notes(report)) == ("x.wav" in text)


def test_other_formats_of_sound_are_read(tmp_path):
    folder = make_speech(tmp_path / "in")
    wav = folder / "no" / "ann_nohash_0.wav"
    flac = wav.with_suffix(".flac")
    soundfile.write(flac, *soundfile.read(wav))
    (_, x, _), (_, expected, _) = (next(read_inputs(str(path), "speech", (1, 128, 32))) for path in (flac, wav))
    np.testing.assert_allclose(x, expected, atol=0.05)
    wav.unlink()
    assert sum(prepare("speech", folder, tmp_path / "data.h5").counts.values()) == 12


def recordings(tmp_path, change):
    """A folder of recordings of which one was changed, and the clip as it was."""
    folder = make_speech(tmp_path / "in")
    clip, rate = soundfile.read(folder / "no" / "ann_nohash_0.wav", dtype="float32")
    clip = clip - clip.mean()
    soundfile.write(folder / "no" / "ann_nohash_0.wav", change(clip), rate, subtype="FLOAT")
    return folder, clip


@pytest.mark.parametrize("offset", [0.0, 0.3])
def test_a_constant_offset_is_removed_and_networks_from_before_keep_it(tmp_path, offset):
    folder, clip = recordings(tmp_path, lambda clip: clip + np.float32(offset))
    report = prepare("speech", folder, tmp_path / "data.h5")
    assert report.reading == {"offset": "removed"}
    data = open_prepared(report.target).with_normalisation(None)
    first = examples_of(data.train, np.arange(1))[0]
    np.testing.assert_allclose(first.reshape(128, 32), log_mel(clip, 8000), atol=1e-3 if offset else 1e-5)
    path = str(folder / "no" / "ann_nohash_0.wav")
    (_, now, _), (_, before, _) = (next(read_inputs(path, "speech", data.shape, reading=r)) for r in (data.reading, {}))
    np.testing.assert_allclose(now, first, atol=1e-5)
    np.testing.assert_allclose(before.reshape(128, 32), log_mel(clip + np.float32(offset), 8000), atol=1e-5)


def test_channels_in_opposite_phase_are_no_silence(tmp_path):
    folder, _ = recordings(tmp_path, lambda clip: np.stack([clip + 0.1, -clip + 0.1], axis=1))
    with pytest.raises(DataError, match=r"no/ann_nohash_0.wav \(channels that cancel each other"):
        prepare("speech", folder, tmp_path / "data.h5")
    write_wav(folder / "no" / "ann_nohash_0.wav", np.zeros((8000, 2)))  # silence is one
    assert sum(prepare("speech", folder, tmp_path / "data.h5").counts.values()) == 12
