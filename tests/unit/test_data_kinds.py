"""Each input format: what it says is what is stored, and what is wrong with it is named."""

import gzip
import os
import pickle
import struct
import warnings

import numpy as np
import pytest
from batches import examples_of
from data_files import example_arrays, make_cifar, make_idx, make_images, make_speech, python2_batch, write_wav
from PIL import Image

from istmpi.data.dense.speech import log_mel
from istmpi.data.hdf5 import open_prepared
from istmpi.data.pickles import PickleError, read_pickle
from istmpi.data.prepare import prepare
from istmpi.errors import ConfigError, DataError


def prepared(tmp_path, kind, source, **options):
    data = open_prepared(prepare(kind, source, tmp_path / "data.h5", force=True, **options).target)
    raw = {
        name: examples_of(split, np.arange(len(split)))[0] * data.std + data.mean for name, split in data.splits.items()
    }
    return data, raw


@pytest.mark.parametrize("rate", [8000, 11025, 44100])
def test_any_rate_gives_the_same_features_of_the_same_sound(rate):
    """One tone of half a second: its band is loudest in the middle of the second, and silence is around it."""
    features = log_mel(np.sin(2 * np.pi * 440 * (np.arange(rate // 2) / rate)).astype(np.float32), rate)
    assert features.shape == (128, 32) and features.dtype == np.float32
    assert abs(features.mean()) < 1e-5 and abs(features.std() - 1) < 1e-5
    assert (features[:, :5] == features.min()).all() and (features[:, 26:] == features.min()).all()
    bands = features[:, 10:21].argmax(axis=0)
    assert bands.max() - bands.min() <= 1


def test_log_mel_agrees_with_the_formula():
    """The naive transform, frame by frame and filter by filter, as textbooks have it."""
    rate, length, hop = 8000, 1024, 256
    clip = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    middle = int(np.average(np.arange(5000), weights=clip.astype(np.float64) ** 2))
    padded = np.concatenate([np.zeros(512 + 4000 - middle), clip, np.zeros(8000)])
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    power = np.array([np.abs(np.fft.rfft(padded[i * hop : i * hop + length] * hann)) ** 2 for i in range(32)])
    mels = np.linspace(0, (15 + np.log(4000 / 1000) / (np.log(6.4) / 27)), 130)
    edges = np.where(mels < 15, mels * 1000 / 15, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
    bank = [np.interp(np.arange(513) * rate / length, edges[b : b + 3], [0, 1, 0]) for b in range(128)]
    bank = np.array(bank) * (2 / (edges[2:] - edges[:-2]))[:, None]
    gaussian = np.exp(-((np.arange(128)[:, None] - np.arange(128)) ** 2) / (2 * 4**2))
    mel = gaussian / gaussian.sum(axis=1, keepdims=True) @ bank @ power.T
    decibels = np.maximum(10 * np.log10(np.maximum(mel, 1e-10) / mel.max()), -50)
    expected = (decibels - decibels.mean()) / decibels.std()
    np.testing.assert_allclose(log_mel(clip, rate), expected, atol=1e-3)


def test_where_the_sound_lies_and_how_loud_it_is_does_not_matter():
    sound = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    late = np.concatenate([np.zeros(9000), 4 * sound, np.zeros(500)]).astype(np.float32)
    np.testing.assert_allclose(log_mel(late, 8000), log_mel(sound, 8000), atol=1e-3)
    for length in (1, 8000, 20000):
        assert (log_mel(np.zeros(length, np.float32), 8000) == 0).all(), "silence is zero"


def test_stereo_is_averaged_and_another_rate_refused(tmp_path):
    folder = make_speech(tmp_path / "input")
    sound = np.random.default_rng(0).uniform(-0.5, 0.5, 8000)
    found = []
    for channels in (np.stack([sound, sound], axis=1), sound):
        write_wav(folder / "no" / "ann_nohash_0.wav", channels)
        found.append(prepared(tmp_path, "speech", folder)[1]["train"][0])
    np.testing.assert_allclose(*found, atol=1e-3)
    write_wav(folder / "no" / "bob_nohash_0.wav", sound, rate=16000)
    with pytest.raises(DataError, match="no/bob_nohash_0.wav has 16000 Hz but no/ann_nohash_0.wav has 8000"):
        prepared(tmp_path, "speech", folder)


def test_an_image_of_another_size_is_named_or_resized(tmp_path):
    folder = make_images(tmp_path / "input")
    Image.new("RGB", (7, 4)).save(folder / "train" / "dog" / "2.png")
    with pytest.raises(DataError, match="train/dog/2.png is 7x4 but test/cat/0.png is 6x4.*--size N"):
        prepared(tmp_path, "images", folder)
    data, _ = prepared(tmp_path, "images", folder, size=5)
    assert data.shape == (3, 5, 5)


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_binary_and_python_are_the_same(tmp_path, classes):
    found = []
    for binary in (True, False):
        data, raw = prepared(tmp_path, "images", make_cifar(tmp_path / str(binary), classes, binary))
        assert data.shape == (3, 32, 32) and data.outputs == classes and data.classes[3] == "class03"
        assert (len(data.train), len(data.test)) == (20 if classes == 10 else 4, 4)
        found.append((raw["train"].tolist(), data.train.labels().tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("zipped", [False, True])
def test_idx(tmp_path, zipped):
    data, raw = prepared(tmp_path, "idx", make_idx(tmp_path / "input", zipped))
    assert data.shape == (1, 5, 4) and data.classes == ("0", "1", "2")
    expected = np.random.default_rng(2).integers(0, 256, (20, 5, 4), dtype=np.uint8).reshape(20, 20)
    np.testing.assert_allclose(raw["train"], expected, atol=1e-3)
    assert data.test.labels().tolist() == [0, 1, 2, 0, 1, 2]


def test_arrays_from_npy_files(tmp_path):
    """Bytes are normalised as one, other numbers feature by feature; the task can be forced."""
    for name, array in example_arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    data, raw = prepared(tmp_path, "arrays", tmp_path, task="regression")
    np.testing.assert_allclose(raw["train"], example_arrays()["x_train"], atol=1e-5)
    assert len(np.unique(data.std)) == 4
    assert (data.task, data.outputs, data.train.labels().dtype) == ("regression", 1, np.float32)
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 3), dtype=np.uint8)
    np.savez(tmp_path / "in.npz", x=x, y=np.arange(20) % 2)
    data, _ = prepared(tmp_path, "arrays", tmp_path / "in.npz")
    assert data.shape == (3, 3) and len(np.unique(data.mean)) == 1


@pytest.mark.parametrize("label", ["parity", "0", "-3"])
def test_csv_label_by_name_and_number(tmp_path, label):
    rows = [f"{'even' if i % 2 == 0 else 'odd'};{i};{i * i}" for i in range(20)]
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress("\n".join(["parity;i;square", *rows]).encode()))
    data, raw = prepared(tmp_path, "csv", tmp_path / "in.csv.gz", label=label)
    assert data.classes == ("even", "odd")
    np.testing.assert_allclose(raw["train"][:, 0] ** 2, raw["train"][:, 1], atol=1e-3)
    np.testing.assert_array_equal(data.train.labels(), np.rint(raw["train"][:, 0]) % 2)


def read(content):
    return read_pickle(content, object)


def array(shape, dtype, content):
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01" + shape + dtype
        + b"\x89T" + struct.pack("<I", len(content)) + content + b"tb"
    )  # fmt: skip


BYTES = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
OBJECTS = b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR"


def test_python_2_and_3_are_read_alike():
    images = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    python2 = python2_batch(images, [6, 9, 9], b"labels")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how the published pickles build their dtype
        known = pickle.loads(python2, encoding="bytes")
    assert known.keys() == {b"batch_label", b"labels", b"data", b"filenames"}
    known[b"data"] = np.asfortranarray(known[b"data"])
    for content in (python2, *(pickle.dumps(known, protocol=protocol) for protocol in (2, 3, 4))):
        found = read(content)
        np.testing.assert_array_equal(found.pop(b"data"), images)
        assert found == {key: value for key, value in known.items() if key != b"data"}


@pytest.mark.parametrize(
    "content, message",
    [
        # An array of objects over any bytes: its first use is a jump to wherever they point.
        (b"cnumpy\nndarray\n((K\x01t" + OBJECTS + b"U\x08AAAAAAAAtR", "an array of 'O8', not of numbers"),
        (array(b"K\x01\x85", OBJECTS, b"A" * 8), "an array of 'O8', not of numbers"),
        (array(b"K\x01\x85", b"N", b"A"), "an array that does not hold numbers"),
        (array(b"M\x00\x10M\x00\x10\x86", BYTES, b"A" * 8), "cannot reshape array of size 8"),
        (b"cnumpy.core.multiarray\nscalar\n(" + BYTES + b"U\x01AtR", "it asks for 'numpy.core.multiarray.scalar'"),
        (b"cos\nsystem\n(U\x02idtR", "it asks for 'os.system'"),
        (b"cnumpy\ndtype\n}U\x04evilK\x01sb", "it is damaged"),
        (b"B\xff\xff\xff\xff", "it is damaged"),
        (b"I" + b"9" * 5000 + b"\n", "it is damaged"),
        (b"cos\n" + b"\x1b\x0b" * 500 + b"\n)R", "it asks for 'os"),
    ],
)
def test_anything_else_is_refused_in_one_short_line(content, message):
    with pytest.raises(PickleError, match=message) as refused:
        read(content + b".")
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200


def test_a_pickle_cannot_take_all_memory():
    """By a place of the memo that the unpickler in C would make room for."""
    assert read(b"K\x07r\xff\xff\xff\x7f.") == 7


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_that_pandas_writes_is_no_feature(tmp_path, name):
    """A column without a name is left out and told; values and classes of the others stay."""
    rows = [f"{20 - number},{number % 3},{number * 2},{'xy'[number % 2]}" for number in range(20)]
    (tmp_path / "in.csv").write_text("\n".join([f"{name},a,b,label", *rows]))
    report = prepare("csv", tmp_path / "in.csv", tmp_path / "data.h5")
    assert report.features == 2 and report.reading["columns"] == ["a", "b"] and report.classes == ("x", "y")
    expected = f"in.csv: {name or 'a column without a name'}, as pandas writes an index"
    assert expected in [str(note) for note in report.left_out]


def test_codes_that_are_one_number_are_told(tmp_path):
    (tmp_path / "in.csv").write_text("a,b\n" + "1,01\n2,1\n3,2\n4,02\n" * 3)
    report = prepare("csv", tmp_path / "in.csv", tmp_path / "data.h5")
    assert report.classes == ("1", "2") and "the labels 01, 1 are one number" in map(str, report.assumed)
    folder = tmp_path / os.fsdecode(b"k\xe4se")  # a path that is not UTF-8
    folder.mkdir()
    (folder / "t.csv").write_text("a,b,label\n" + "1,2,x\n3,4,y\n" * 5)
    assert open_prepared(prepare("csv", folder / "t.csv", tmp_path / "t.h5").target).classes == ("x", "y")


def make(kind, folder, labels):
    folder.mkdir()
    if kind == "images":
        for number, label in enumerate(labels):
            (folder / label).mkdir(exist_ok=True)
            Image.fromarray(np.full((4, 5), number, np.uint8)).save(folder / label / f"{number}.png")
        return folder
    rows = [f"{number},{number * number},{label}" for number, label in enumerate(labels)]
    (folder / "a.csv").write_text("\n".join(["a,b,label", *rows]))
    return folder / "a.csv"


@pytest.mark.parametrize("kind", ["images", "csv"])
def test_a_site_that_lacks_a_class_gets_the_list_of_all(tmp_path, kind):
    """With --classes, files of several sites have the same classes in the same order, whatever they hold."""
    for site, labels, numbers in (("one", ["cat"], {0}), ("two", ["dog", "owl"], {1, 2})):
        source = make(kind, tmp_path / site, labels * 10)
        made = open_prepared(prepare(kind, source, tmp_path / f"{site}.h5", classes="cat,dog,owl").target)
        assert made.classes == ("cat", "dog", "owl") and made.outputs == 3
        assert set(made.train.labels()) == numbers
    with pytest.raises(DataError, match="the label owl is not among the classes"):
        prepare(kind, source, tmp_path / "other.h5", classes="cat,dog")
    for classes in ("cat", "cat,cat", "cat,,dog", ""):
        with pytest.raises(ConfigError, match="give at least two different names, separated by commas"):
            prepare(kind, source, tmp_path / "other.h5", classes=classes)
