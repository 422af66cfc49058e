"""Arrays and labels of other people's files: no value is changed in silence, and what is decided is said."""

import io
import re
import struct
import zipfile

import numpy as np
import pytest
from batches import examples_of
from data_files import example_arrays, read_notes

from istmpi.data.dense.predict import read_inputs
from istmpi.data.hdf5 import open_prepared
from istmpi.data.labels import read_labels
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.errors import ConfigError, DataError

Y = np.arange(30) % 3
X = np.random.default_rng(0).normal(size=(30, 4))


def prepared(tmp_path, **arrays):
    options = {name: arrays.pop(name) for name in ("task", "channels") if name in arrays}
    np.savez(tmp_path / "a.npz", **arrays)
    return prepare("arrays", tmp_path / "a.npz", tmp_path / "a.h5", force=True, **options)


def in_splits(x_train, x_test, y_train=Y, y_test=Y):
    return {"x_train": x_train, "x_test": x_test, "y_train": y_train, "y_test": y_test}


@pytest.mark.parametrize("kinds", ["u1 f4", "f8 u1", "u2 u1", "u1 ?", "? i8"])
def test_bytes_beside_other_numbers_are_refused(tmp_path, kinds):
    """Splits of bytes, of flags and of other numbers may have other scales: they are refused together."""
    arrays = in_splits(*(np.ones((30, 4), kind) for kind in kinds.split()))
    for read in (lambda: prepared(tmp_path, **arrays), lambda: open_dataset(str(tmp_path / "a.npz"))):
        with pytest.raises(DataError, match="bytes .0 to 255., flags .0, 1. and other numbers would be mixed"):
            read()


@pytest.mark.parametrize(
    "trained, given, refused", [("u1", "f4", True), ("f8", "u1", True), ("i8", "u1", False), ("u1", "i2", False)]
)
def test_examples_to_predict_have_the_scale_of_training(tmp_path, trained, given, refused):
    """Bytes are refused where floats were trained on, and floats where bytes were."""
    reading = prepared(tmp_path, **in_splits(*(np.ones((30, 4), trained),) * 2)).reading
    np.savez(tmp_path / "new.npz", **in_splits(*(np.ones((30, 4), given),) * 2))
    blocks = read_inputs(str(tmp_path / "new.npz"), "arrays", (4,), reading=reading)
    if refused:
        message = "new.npz: its features are (floats|bytes), but .*. Give x in the same form"
        with pytest.raises(DataError, match=message):
            next(blocks)
        if given == "f4":
            with pytest.raises(DataError, match="its features are floats, but bytes in the network's training data"):
                next(read_inputs(str(tmp_path / "new.npz"), "images", (1, 2, 2)))
    else:
        assert next(blocks)[1].tolist() == [[1.0] * 4] * 30


@pytest.mark.parametrize(
    "train, test",
    [(np.array([2**53, 2**63 + 1], np.uint64), [2**53]), (np.array([0, 1, 2], np.int32), np.array([1, 2], np.uint32))],
)
def test_whole_numbers_of_two_types_are_classes(train, test):
    task, names, y = read_labels({"train": train, "test": np.asarray(test)}, None, "data")
    assert task == "classification" and names == tuple(map(str, train))
    assert [int(names[code]) for code in y["test"]] == list(test)


def test_names_as_bytes_and_with_white_space():
    parts = {"train": np.array([b"cat", b"dog ", "né".encode()]), "test": np.array(["cat\t", "dog", "né"])}
    _, names, y = read_labels(parts, None, "data")
    assert names == ("cat", "dog", "né") and y["test"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "train, task, message",
    [
        ([b"\xff"], None, "is not UTF-8 text"),
        ([b" "], None, "empty name"),
        ([1, 0.5], "classification", "the label of train example 1 is 0.5; a class must be a whole number or a name"),
        ([1, -np.inf], "classification", "the label of train example 1 is -inf; a class must be"),
        ([0.5, np.nan], None, "the label of train example 1 is nan; it must be finite"),
        ([[0.5, 1], [np.nan, 0.5]], None, "the label of train example 1 is nan, 0.5; it must be finite"),
        (np.ones(2, np.complex64), None, r"the labels are of complex.*; give whole numbers or names"),
    ],
)
def test_labels_that_are_neither_classes_nor_numbers_are_refused(train, task, message):
    with pytest.raises(DataError, match=message):
        read_labels({"train": np.asarray(train)}, task, "data")


@pytest.mark.parametrize(
    "y, task, text",
    [
        (Y * 1.0, "regression", "30 labels are whole numbers of 3 values: treated as numbers"),
        (Y, "classification", "30 labels are whole numbers of 3 values: treated as classes"),
        (Y + 0.5, "regression", ""),
        (np.array(["a", "b", "c"])[Y], "classification", ""),
    ],
)
def test_why_labels_are_classes_or_numbers(tmp_path, y, task, text):
    report = prepared(tmp_path, x=X, y=y)
    assert report.task == task and text in read_notes(report)
    assert ("change with --task" in read_notes(report)) == bool(text)
    assert "--task" not in read_notes(prepared(tmp_path, x=X, y=y, task=task))


def test_names_in_capitals_and_arrays_that_are_passed_over(tmp_path):
    report = prepared(tmp_path, X_train=X, Y_train=Y, x_TEST=X, y_test=Y, x_val=X[:5], y_val=Y[:5], ids=Y, z=Y)
    assert report.counts == {"train": 30, "test": 30, "validation": 5}
    assert "2 arrays: ids, z" in read_notes(report)
    ((_, x, _),) = read_inputs(str(tmp_path / "a.npz"), "arrays", (4,), split="validation")
    assert len(x) == 5
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "user.h5").write_bytes(b"\x89HDF")
    with pytest.raises(DataError, match=r"holds user.h5, but no .npz or .npy. Save its arrays with np.savez"):
        prepare("arrays", tmp_path / "folder", tmp_path / "data.h5")


def test_channels_last(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (30, 8, 9, 3), dtype=np.uint8)
    with pytest.raises(DataError, match="is 8 channels of 9 x 3. Prepare images of 8 x 9 with --channels last"):
        prepared(tmp_path, x=x, y=Y)
    with pytest.raises(DataError, match="--channels last"):
        open_dataset(str(tmp_path / "a.npz"))
    data = open_prepared(prepared(tmp_path, **in_splits(x, x), channels="last").target)
    assert data.shape == (3, 8, 9) and data.reading == {"channels": "last", "type": "bytes"}
    rows = examples_of(data.with_normalisation(None).test, np.arange(30))[0]
    assert np.array_equal(rows, x.transpose(0, 3, 1, 2).reshape(30, -1))
    for array in (x, x[0]):
        np.save(tmp_path / "new.npy", array)
        ((_, read, _),) = read_inputs(str(tmp_path / "new.npy"), "arrays", (3, 8, 9), reading=data.reading)
        assert np.array_equal(read, rows[: len(read)])
    np.save(tmp_path / "new.npy", x.reshape(30, -1))
    with pytest.raises(DataError, match=r"give \[n, height, width, channels\], as in training"):
        list(read_inputs(str(tmp_path / "new.npy"), "arrays", (3, 8, 9), reading=data.reading))
    assert open_prepared(prepared(tmp_path, x=x, y=Y, channels="first").target).shape == (8, 9, 3)
    for features, order, message in ((X, "last", "--channels needs three axes"), (x, "middle", "give first or last")):
        with pytest.raises((ConfigError, DataError), match=message):
            prepared(tmp_path, x=features, y=Y, channels=order)


def forge(shape, descr="<f4"):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(720)


SHAPES = ("(-1, 3)", "(1000000000000, 3)", f"({2**64},)", "(60, True)", "(1" + 4000 * "0" + ",)", "(" * 5000, "{}")
FORGED = [*map(forge, SHAPES), *(forge("(60, 3)", descr) for descr in ("|O", "<U0", "<U1000000000"))]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    "x, field, message",
    [
        (lambda content: content[:-60], None, "x.npz cannot be read as a NumPy file: EOF: reading array data"),
        (lambda content: b"else", None, "x.npz cannot be read as a NumPy file: its member x is not an array"),
        (lambda content: content, (16, 0), "Bad CRC-32 for file 'x.npy'"),
        (lambda content: content, (8, 1), "encrypted"),
        (lambda content: content, (10, 99), "compression method is not supported"),
        *((lambda _, forged=forged: forged, None, "x.npz") for forged in FORGED),
    ],
)
def test_a_member_that_is_not_what_its_headers_say_is_refused(tmp_path, compression, x, field, message):
    """``x`` changes the member, ``field`` two bytes of its entry in the directory of the zip file."""
    path, array = tmp_path / "x.npz", io.BytesIO()
    np.save(array, np.ones((60, 3), np.float32))
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("x.npy", x(array.getvalue()))
    if field:
        offset, value = field
        content = bytearray(path.read_bytes())
        struct.pack_into("<H", content, content.index(b"PK\x01\x02") + offset, value)
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as refused:
        open_dataset(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("save, rename", [(np.savez, "{0}_{1}"), (np.savez_compressed, "{1}_{0}")])
def test_npz(tmp_path, save, rename):
    arrays = example_arrays()
    types = {"x_train": ">f8", "x_test": np.float16, "y_train": np.uint16, "y_test": np.int32}
    stored = {name: np.asfortranarray(array.astype(types[name])) for name, array in arrays.items()}
    save(tmp_path / "data.npz", **{rename.format(*name.split("_")): array for name, array in stored.items()})
    data = open_dataset(str(tmp_path / "data.npz"))
    assert (len(data.train), len(data.test), data.features, data.classes) == (20, 5, 4, ("0", "1", "2"))
    x, y = examples_of(data.train, [4, 2])
    np.testing.assert_array_equal(x, arrays["x_train"][[4, 2]])
    assert y.tolist() == [1, 2]


def test_npz_without_a_split(tmp_path):
    x = np.arange(50, dtype=np.float64).reshape(25, 2)
    np.savez(tmp_path / "data.npz", x=x, y=x[:, 0] * 2)
    data = open_dataset(str(tmp_path / "data.npz"))
    assert (len(data.train), len(data.test), data.task, data.outputs) == (20, 5, "regression", 1)
    x, y = examples_of(data.test, np.arange(5))
    np.testing.assert_array_equal(y[:, 0], x[:, 0] * 2)
    np.savez(tmp_path / "large.npz", x=np.full((30, 4), np.finfo(np.float32).max, np.float64), y=np.arange(30) % 3)
    data = open_dataset(str(tmp_path / "large.npz"))
    assert np.isfinite(examples_of(data.train, np.arange(5))[0]).all()
    assert np.bincount(data.test.labels()).tolist() == [2, 2, 2], "one in five of each class"


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"a": np.zeros(3)}, "holds a; it needs x_train, y_train, x_test and y_test, or x and y"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, r"x \(3, 2\) of float64 and y \(4,\) do not fit"),
        ({"x": np.zeros((3, 2)), "y": np.array([None] * 3)}, "Object arrays|Python objects"),
        ({"x": np.zeros((1, 2)), "y": np.zeros(1)}, "has no test examples"),
        ({"x": np.zeros((4, 2)), "X": np.zeros((4, 2)), "y": np.zeros(4)}, "has both x and X"),
    ],
)
def test_an_npz_that_does_not_fit(tmp_path, arrays, message):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path / "data.npz"))


def test_what_is_missing_or_needs_to_be_prepared_says_so(tmp_path):
    for name in ("cifar.h5", "cifar.tar"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"cifra\.h5 does not exist; did you mean .*cifar\.h5\?"):
        open_dataset(str(tmp_path / "cifra.h5"))
    with pytest.raises(DataError, match="the folder .* does not exist"):
        open_dataset(str(tmp_path / "no" / "cifar.h5"))
    with pytest.raises(ConfigError, match="this command reads one file"):
        open_dataset(str(tmp_path / "part{rank}.npz"))
    with pytest.raises(DataError, match="istmpi prepare KIND"):
        open_dataset(str(tmp_path / "cifar.tar"))


@pytest.mark.parametrize("kind", ["prepare arrays", "prepare csv", "predict npz", "predict csv"])
def test_a_feature_beyond_float32_is_refused_by_its_place(tmp_path, istmpi_command, checkpoints, monkeypatch, kind):
    monkeypatch.setattr("istmpi.data.dense.split.BLOCK", 8)
    x, y = np.ones((30, 64)), np.arange(30) % 3
    x[17, 3] = -1e300
    verb, what = kind.split()
    path = tmp_path / ("data.csv" if what == "csv" else "data.npz")
    if what == "csv":
        np.savetxt(path, x if verb == "predict" else np.hstack([x, y[:, None]]), delimiter=",", fmt="%.17g")
    else:
        np.savez(path, x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    words = [what, path, tmp_path / "data.h5"] if verb == "prepare" else [checkpoints / "batch.h5", path]
    code, _, err = istmpi_command(verb, *words, *["--split", "train"] * (kind == "predict npz"))
    assert code == 2 and len(err.splitlines()) == 1
    place = r"\d+" if kind == "prepare csv" else 17  # a table's rows are drawn for testing
    assert re.search(rf"data\.(npz|csv).* example {place} has -1e\+300 as feature 3; features must be finite", err)
