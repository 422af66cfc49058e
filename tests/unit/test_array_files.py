"""Arrays and labels of other people's files: no value is changed in silence, and what is decided is said."""

import io
import struct
import zipfile

import numpy as np
import pytest
from batches import examples_of
from data_files import read_notes

from istmpi.data.dataset import describe_difference
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


def test_splits_of_several_types_keep_every_value(tmp_path):
    x = np.arange(120).reshape(30, 4)
    report = prepared(tmp_path, **in_splits(x.astype(np.uint16), (x * 300).astype(np.int32)))
    data = open_prepared(report.target).with_normalisation(None)
    assert examples_of(data.test, np.arange(30))[0].tolist() == (x * 300).tolist()
    direct = open_dataset(str(tmp_path / "a.npz"))
    assert examples_of(direct.test, np.arange(30))[0].tolist() == (x * 300).tolist()


@pytest.mark.parametrize("kinds", ["u1 f4", "f8 u1", "u1 f2", "u2 u1", "u1 ?", "? i8"])
def test_bytes_beside_other_numbers_are_refused(tmp_path, kinds):
    """Splits of bytes, of flags and of other numbers may have other scales: they are refused together."""
    arrays = in_splits(*(np.ones((30, 4), kind) for kind in kinds.split()))
    for read in (lambda: prepared(tmp_path, **arrays), lambda: open_dataset(str(tmp_path / "a.npz"))):
        with pytest.raises(DataError, match="bytes .0 to 255., flags .0, 1. and other numbers would be mixed"):
            read()


@pytest.mark.parametrize(
    "trained, given, refused",
    [
        (np.uint8, np.float32, "its features are floats, but bytes in the network's training data"),
        (np.float64, np.uint8, "its features are bytes, but floats in the network's training data"),
        (np.uint8, np.uint8, ""),
        (np.float32, np.float64, ""),
        (np.int64, np.uint8, ""),
        (np.uint8, np.int16, ""),
    ],
)
def test_examples_to_predict_have_the_scale_of_training(tmp_path, trained, given, refused):
    reading = prepared(tmp_path, **in_splits(*(np.ones((30, 4), trained),) * 2)).reading
    np.savez(tmp_path / "new.npz", **in_splits(*(np.ones((30, 4), given),) * 2))
    assert describe_difference(open_dataset(str(tmp_path / "new.npz")).reading, reading) in refused
    if not refused:
        _, x, _ = next(read_inputs(str(tmp_path / "new.npz"), "arrays", (4,), reading=reading))
        assert x.tolist() == [[1.0] * 4] * 30
        return
    with pytest.raises(DataError, match=f"new.npz: {refused}. Give x in the same form"):
        next(read_inputs(str(tmp_path / "new.npz"), "arrays", (4,), reading=reading))
    if trained == np.uint8:
        with pytest.raises(DataError, match=refused):
            next(read_inputs(str(tmp_path / "new.npz"), "images", (1, 2, 2)))


@pytest.mark.parametrize(
    "parts, classes",
    [
        (([2**53, 2**53 + 1], np.array([2**53, 2**53 + 1], np.uint64)), (2**53, 2**53 + 1)),
        ((np.array([2**53, 2**63 + 1], np.uint64), [2**53]), (2**53, 2**63 + 1)),
        (([0, 1], np.array([0, 1], np.uint64)), (0, 1)),
        ((np.array([0, 1, 2], np.int32), np.array([1, 2], np.uint32)), (0, 1, 2)),
    ],
)
def test_whole_numbers_of_two_types_are_classes(parts, classes):
    train, test = map(np.asarray, parts)
    task, names, y = read_labels({"train": train, "test": test}, None, "data")
    assert task == "classification" and names == tuple(map(str, classes))
    assert [int(names[code]) for code in y["test"]] == test.tolist()


def test_names_as_bytes_and_with_white_space():
    parts = {"train": np.array([b"cat", b"dog ", "né".encode()]), "test": np.array(["cat\t", "dog", "né"])}
    _, names, y = read_labels(parts, None, "data")
    assert names == ("cat", "dog", "né") and y["test"].tolist() == [0, 1, 2]
    for label, message in ((b"\xff", "is not UTF-8 text"), (b" ", "empty name"), ("", "empty name")):
        with pytest.raises(DataError, match=message):
            read_labels({"train": np.array([label, label])}, None, "data")
    floats = {"train": np.array([2**53, 2**53 + 1]), "test": np.array([2.0**53, 1.0])}
    with pytest.raises(DataError, match="a class must be a whole number or a name"):
        read_labels(floats, "classification", "data")


@pytest.mark.parametrize(
    "y, task, text",
    [
        (Y * 1.0, "regression", "30 labels are whole numbers of 3 values: treated as numbers"),
        (Y, "classification", "30 labels are whole numbers of 3 values: treated as classes"),
        (np.arange(30) % 15, "classification", "whole numbers of 15 values: treated as classes"),
        (Y + 0.5, "regression", ""),
        (np.array(["a", "b", "c"])[Y], "classification", ""),
    ],
)
def test_why_labels_are_classes_or_numbers(tmp_path, y, task, text):
    report = prepared(tmp_path, x=X, y=y)
    assert report.task == task and text in read_notes(report)
    assert ("--task decides otherwise" in read_notes(report)) == bool(text)
    assert "--task" not in read_notes(prepared(tmp_path, x=X, y=y, task=task))


def test_a_number_to_predict_is_named_as_it_is(tmp_path):
    y = np.where(np.arange(30) == 4, np.nan, 0.5)
    with pytest.raises(DataError, match="the label of train example 4 is nan; it must be finite"):
        prepared(tmp_path, **in_splits(X, X, y, y))
    with pytest.raises(DataError, match="the label of train example 4 is nan, 0.5; it must be finite"):
        prepared(tmp_path, **in_splits(X, X, *(np.stack([y, np.full(30, 0.5)], 1),) * 2))


def test_names_in_capitals_and_arrays_that_are_passed_over(tmp_path):
    report = prepared(tmp_path, X_train=X, Y_train=Y, x_TEST=X, y_test=Y, x_val=X[:5], y_val=Y[:5], ids=Y, z=Y)
    assert report.counts == {"train": 30, "test": 30, "validation": 5}
    assert "2 arrays: ids, z" in read_notes(report)
    assert len(open_dataset(str(tmp_path / "a.npz")).splits) == 3
    ((_, x, _),) = read_inputs(str(tmp_path / "a.npz"), "arrays", (4,), split="validation")
    assert len(x) == 5
    with pytest.raises(DataError, match="has both x and X"):
        prepared(tmp_path, x=X, X=X, y=Y)
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
    for name, array in (("all", x), ("one", x[0])):
        np.save(tmp_path / f"{name}.npy", array)
        ((_, read, _),) = read_inputs(str(tmp_path / f"{name}.npy"), "arrays", (3, 8, 9), reading=data.reading)
        assert np.array_equal(read, rows[: len(read)])
    np.save(tmp_path / "flat.npy", x.reshape(30, -1))
    with pytest.raises(DataError, match=r"give \[n, height, width, channels\], as in training"):
        list(read_inputs(str(tmp_path / "flat.npy"), "arrays", (3, 8, 9), reading=data.reading))
    assert open_prepared(prepared(tmp_path, x=x, y=Y, channels="first").target).shape == (8, 9, 3)
    with pytest.raises(DataError, match="--channels needs three axes"):
        prepared(tmp_path, x=X, y=Y, channels="last")
    with pytest.raises(ConfigError, match="give first or last"):
        prepared(tmp_path, x=x, y=Y, channels="middle")


# ---- damaged files


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


def save(path, compression, x=lambda content: content):
    """An .npz of 60 examples, the file of its x changed."""
    members = {"x.npy": x(npy(np.ones((60, 3), np.float32))), "y.npy": npy(np.arange(60) % 2)}
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def with_field(path, offset, value):
    """Change two bytes of the first entry in the directory of a zip file."""
    content = bytearray(path.read_bytes())
    start = content.index(b"PK\x01\x02") + offset
    content[start : start + 2] = struct.pack("<H", value)
    path.write_bytes(content)


@pytest.mark.parametrize("compression", [STORED, DEFLATED])
@pytest.mark.parametrize(
    "x, field, message",
    [
        (lambda content: content[:-60], None, "x.npz cannot be read as a NumPy file: EOF: reading array data"),
        (lambda content: b"else", None, "x.npz cannot be read as a NumPy file: its member x is not an array"),
        (lambda content: content, (16, 0), "Bad CRC-32 for file 'x.npy'"),
        (lambda content: content, (8, 1), "encrypted"),
        (lambda content: content, (10, 99), "compression method is not supported"),
    ],
)
def test_a_member_that_is_not_what_its_headers_say_is_refused(tmp_path, compression, x, field, message):
    path = save(tmp_path / "x.npz", compression, x)
    if field:
        open_dataset(str(path))
        with_field(path, *field)
    with pytest.raises(DataError, match=message):
        open_dataset(str(path))


@pytest.mark.parametrize(
    "shape, descr",
    [
        ("(-1, 3)", "<f4"),
        ("(1000000000000, 3)", "<f4"),
        ("(18446744073709551616,)", "<f4"),
        ("(60, True)", "<f4"),
        ("(60, 3)", "|O"),
        ("(60, 3)", "<U0"),
        ("(60, 3)", "<U1000000000"),
        ("(1" + 4000 * "0" + ",)", "<f4"),
        ("('60', 3)", "<f4"),
        ("(" * 5000, "<f4"),
        ("{}", "<f4"),
    ],
)
def test_a_header_that_no_array_has_is_refused(tmp_path, shape, descr):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(720)
    for compression in (STORED, DEFLATED):
        path = save(tmp_path / "x.npz", compression, lambda _: content)
        with pytest.raises(DataError, match=r"x.npz") as refused:
            open_dataset(str(path))
        assert "\n" not in str(refused.value)
