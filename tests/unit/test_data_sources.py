"""What a run may name as its data."""

import re

import numpy as np
import pytest
from batches import examples_of
from data_files import example_arrays

from istmpi.data.sources import open_dataset
from istmpi.errors import ConfigError, DataError


def test_digits():
    data = open_dataset("digits")
    assert (len(data.train), len(data.test)) == (1437, 360)
    assert (data.features, data.outputs, data.shape, data.task) == (64, 10, (1, 8, 8), "classification")
    counts = np.bincount(data.test.labels())
    assert counts.min() >= 35 and counts.max() <= 37
    x, _ = examples_of(data.train, np.arange(1437))
    assert abs(x.mean()) < 1e-4 and abs(x.std() - 1) < 1e-4


def test_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is the original to compare with")
    original = datasets.load_digits()
    data = open_dataset("digits")
    rows = []
    for split in (data.train, data.test):
        x, y = examples_of(split, np.arange(len(split)))
        rows.append(np.column_stack([np.rint(x * data.std + data.mean), y]))
    ours = np.concatenate(rows).astype(int)
    theirs = np.column_stack([original.data, original.target]).astype(int)
    assert sorted(map(tuple, ours)) == sorted(map(tuple, theirs))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("rename", [str, lambda name: "_".join(reversed(name.split("_")))])
def test_npz(tmp_path, save, rename):
    arrays = example_arrays()
    save(tmp_path / "data.npz", **{rename(name): array for name, array in arrays.items()})
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
    assert np.isfinite(examples_of(open_dataset(str(tmp_path / "large.npz")).train, np.arange(5))[0]).all()


def test_fortran_order_and_big_endian_are_read(tmp_path):
    arrays = example_arrays()
    x = np.asfortranarray(arrays["x_train"].astype(">f8"))
    np.savez(tmp_path / "data.npz", **(arrays | {"x_train": x}))
    read, _ = examples_of(open_dataset(str(tmp_path / "data.npz")).train, np.arange(20))
    np.testing.assert_array_equal(read, arrays["x_train"])


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"a": np.zeros(3)}, "holds a; it needs x_train, y_train, x_test and y_test, or x and y"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, r"x \(3, 2\) of float64 and y \(4,\) do not fit"),
        ({"x": np.zeros((3, 2)), "y": np.array([None] * 3)}, "Object arrays|Python objects"),
        ({"x": np.zeros((1, 2)), "y": np.zeros(1)}, "has no test examples"),
        ({"x": np.zeros((4, 2)), "y": np.array([0, 1, np.nan, 2])}, "label of train example"),
    ],
)
def test_an_npz_that_does_not_fit(tmp_path, arrays, message):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message):
        open_dataset(str(path))
    np.savez(path, **example_arrays())
    whole = path.read_bytes()
    for keep in (0, 40, 600):
        path.write_bytes(whole[:keep])
        with pytest.raises(DataError, match="data.npz"):
            open_dataset(str(path))


def test_each_rank_its_own_file(tmp_path):
    for rank in range(2):
        arrays = example_arrays() | {"y_train": np.arange(20) % (rank + 2)}
        np.savez(tmp_path / f"part{rank}.npz", **arrays)
    data = open_dataset(str(tmp_path / "part{rank}.npz"), stream=1)
    assert set(data.train.labels()) == {0, 1, 2}
    with pytest.raises(ConfigError, match="this command reads one file"):
        open_dataset(str(tmp_path / "part{rank}.npz"))


def test_what_is_missing_or_needs_to_be_prepared_says_so(tmp_path):
    for name in ("cifar.h5", "cifar.tar"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"cifra\.h5 does not exist; did you mean .*cifar\.h5\?"):
        open_dataset(str(tmp_path / "cifra.h5"))
    with pytest.raises(DataError, match="the folder .* does not exist"):
        open_dataset(str(tmp_path / "no" / "cifar.h5"))
    with pytest.raises(DataError, match="istmpi prepare KIND"):
        open_dataset(str(tmp_path / "cifar.tar"))


@pytest.mark.parametrize("kind", ["npz", "prepare arrays", "prepare csv", "predict npz", "predict csv"])
def test_a_feature_beyond_float32_is_refused_by_its_place(tmp_path, istmpi_command, checkpoints, monkeypatch, kind):
    monkeypatch.setattr("istmpi.data.dense.split.BLOCK", 8)
    x = np.ones((30, 64))
    x[17, 3] = -1e300
    y = np.arange(30) % 3
    path = tmp_path / ("data.csv" if kind.endswith("csv") else "data.npz")
    if kind.endswith("npz") or kind.endswith("arrays"):
        np.savez(path, x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    else:
        np.savetxt(path, x if kind.startswith("predict") else np.hstack([x, y[:, None]]), delimiter=",", fmt="%.17g")
    if kind == "npz":
        with pytest.raises(DataError) as refused:
            open_dataset(str(path))
        said = str(refused.value)
    else:
        verb = kind.split()[0]
        options = ["--split", "train"] if kind == "predict npz" else []
        words = [kind.split()[1], path, tmp_path / "data.h5"] if verb == "prepare" else [checkpoints / "batch.h5", path]
        code, _, err = istmpi_command(verb, *words, *options)
        assert code == 2 and len(err.splitlines()) == 1
        said = err
    place = r"\d+" if kind == "prepare csv" else 17  # a table's rows are drawn for testing
    assert re.search(rf"data\.(npz|csv).* example {place} has -1e\+300 as feature 3; features must be finite", said)
