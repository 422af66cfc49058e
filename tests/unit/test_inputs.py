"""What is to be predicted becomes the very numbers that preparing the same files gave the training data."""

import numpy as np
import offset_files
import pytest
from batches import examples_of
from data_files import MAKERS, example_arrays, make_csv, make_images, make_speech, pack

from istmpi.data.dense.predict import read_inputs
from istmpi.data.hdf5 import open_prepared
from istmpi.data.moments import Extent, Normalisation, subtract
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.errors import DataError


def read(source, kind, shape, **options):
    blocks = list(read_inputs(str(source), kind, shape, **options))
    return [name for names, _, _ in blocks for name in names], np.concatenate([x for _, x, _ in blocks])


def prepared(kind, source, tmp_path, **options):
    """The data set that preparing gives, and its features split by split, as they were before normalisation."""
    prepare(kind, source, tmp_path / "data.h5", **options)
    data = open_prepared(tmp_path / "data.h5").with_normalisation(None)
    return data, {name: examples_of(split, np.arange(len(split)))[0] for name, split in data.splits.items()}


def test_wavs_become_the_prepared_spectrograms(tmp_path):
    folder = make_speech(tmp_path / "input")
    data, rows = prepared("speech", folder, tmp_path)
    found = dict(zip(*read(pack(folder, tmp_path / "clips.tar.gz"), "speech", data.shape)))
    clips = sorted(name for name in found if "/_" not in name)
    assert len(clips) == 12 and "input/_background_noise_/hum.wav" in found
    for split in ("train", "test"):
        own = np.stack([found[name] for name in clips if ("eve" in name) == (split == "test")])
        np.testing.assert_array_equal(own, rows[split])


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_become_the_prepared_pixels(tmp_path, mode):
    """Those of another size are resized as in preparing."""
    folder = make_images(tmp_path / "input", mode=mode)
    data, rows = prepared("images", folder, tmp_path)
    names, x = read(folder / "test", "images", data.shape)
    assert names == [f"{label}/{number}.png" for label in ("cat", "dog") for number in range(5)]
    np.testing.assert_array_equal(x, rows["test"])
    data, rows = prepared("images", folder, tmp_path, size=5, force=True)
    with pytest.raises(DataError, match="6x4 but the training data is 5x5; all must have the same .* Give --resize."):
        read(folder / "test", "images", data.shape)
    np.testing.assert_array_equal(read(folder / "test", "images", data.shape, resize=True)[1], rows["test"])


@pytest.mark.parametrize("kind", sorted(MAKERS.keys() - {"xc", "graph"}))  # these: tests/mpi/test_xc.py, test_graph.py
def test_a_prepared_file_is_read_as_it_is(tmp_path, kind):
    data, rows = prepared(kind, MAKERS[kind](tmp_path / "input"), tmp_path)
    for split in ("test", "train"):
        names, x = read(tmp_path / "data.h5", kind, data.shape, split=split)
        assert names == list(range(len(rows[split])))
        np.testing.assert_array_equal(x, rows[split])


def test_a_table(tmp_path):
    folder = make_csv(tmp_path / "input")
    data, rows = prepared("csv", folder, tmp_path)
    for label in ("kind", "-1", "4"):
        np.testing.assert_array_equal(read(folder / "test.csv", "csv", data.shape, label=label)[1], rows["test"])
    (tmp_path / "bare.csv").write_text("1,2.5,-3,4e1\n\n5,6,7,8\n")
    names, x = read(tmp_path / "bare.csv", "csv", (4,))
    assert names == [0, 1] and x.tolist() == [[1, 2.5, -3, 40], [5, 6, 7, 8]]


def test_arrays(tmp_path):
    x = example_arrays()["x_test"]
    np.save(tmp_path / "all.npy", x)
    np.save(tmp_path / "one.npy", x[2])
    np.savez(tmp_path / "data.npz", **example_arrays())
    np.savez(tmp_path / "named.npz", x=x.astype(np.float64), other=np.zeros(3))
    np.savez(tmp_path / "sole.npz", whatever=x)
    for name in ("all.npy", "data.npz", "named.npz", "sole.npz"):
        np.testing.assert_array_equal(read(tmp_path / name, "arrays", (4,))[1], x)
    np.testing.assert_array_equal(read(tmp_path / "one.npy", "arrays", (4,))[1], x[2:3])
    train = read(tmp_path / "data.npz", "arrays", (4,), split="train")[1]
    np.testing.assert_array_equal(train, example_arrays()["x_train"])
    np.save(tmp_path / "square.npy", x.reshape(5, 2, 2))
    np.testing.assert_array_equal(read(tmp_path / "square.npy", "arrays", (1, 2, 2))[1], x)


def test_an_unreadable_file_is_named_and_passed_over(tmp_path):
    folder = make_speech(tmp_path / "input")
    (folder / "no" / "bad.wav").write_bytes(b"RIFF and nothing else")
    skipped = []
    names, x = read(folder / "no", "speech", (1, 128, 32), skipped=lambda *facts: skipped.append(facts))
    assert len(names) == len(x) == 6 and "bad.wav" not in names
    assert [name for name, _ in skipped] == ["bad.wav"]
    with pytest.raises(DataError, match="no examples that can be read"):
        read(folder / "no" / "bad.wav", "speech", (1, 128, 32))


@pytest.mark.parametrize(
    "name, content, kind, message",
    [
        ("x.csv", "1,2,3\n", "csv", "a row has 3 numbers; the network takes 4"),
        ("x.csv", "1,2,3,4,5\n", "csv", "column of labels with --label"),
        ("x.csv", "1,2,3,4\n1,2,3\n", "csv", "line 2: 3 columns"),
        ("x.csv", "1,2,3,4\n1,2,x,4\n", "csv", "'x' is not a number"),
        ("x.csv", "1,2,3,4\n1,nan,3,4\n", "csv", "input example 1 has nan as feature 1"),
        ("x.csv", "a,b,c,d\n", "csv", "no examples"),
        ("x.npy", np.zeros((2, 5)), "arrays", "has examples of 5 numbers; the network"),
        ("x.npy", np.array(["a"]), "arrays", "give numbers"),
        ("x.npz", {"a": np.zeros(4), "b": np.zeros(4)}, "arrays", "holds a, b; name the array"),
        ("x.npz", "PK nonsense", "arrays", "cannot be read as a NumPy file"),
        ("x.h5", "text", "arrays", "is not an HDF5 file"),
        ("x.wav", "text", "arrays", "this network takes 2 x 2 numbers; give a .csv"),
        ("x", None, "speech", "has no files"),
        ("x.wav", None, "speech", "does not exist"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, name, content, kind, message):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif content is not None:
        np.save(path, content)
    elif name == "x":
        path.mkdir()
    with pytest.raises(DataError) as refused:
        read(path, kind, (2, 2) if kind == "arrays" else (4,))
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert path.name in str(refused.value)


# ---- values too close together for float32, and files of an earlier istmpi with an offset


N = 200
STEPS = np.random.default_rng(0).permutation(N)
LABELS = STEPS % 2
KINDS = {
    "Unix times": 1.7e9 + STEPS,
    "int64": 1_700_000_000_000_000_000 + STEPS,
    "uint64": np.uint64(2**63) + STEPS.astype(np.uint64),
    "negative": -1e9 - STEPS,
    "float32": (1.7e9 + 128.0 * (STEPS % 8)).astype(np.float32),
}


TOO_CLOSE = "too close together for the 24 bits of float32. Subtract a number from them first"


def saved(tmp_path, x, y=LABELS, name="data"):
    np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    return prepare("arrays", tmp_path / f"{name}.npz", tmp_path / f"{name}.h5", force=True)


def all_rows(data):
    return np.concatenate([examples_of(split, np.arange(len(split)))[0] for split in data.splits.values()])


@pytest.mark.parametrize("kind", KINDS)
def test_close_values_are_refused(tmp_path, kind):
    with pytest.raises(DataError, match=f"2 features .number 0, 1. are {TOO_CLOSE}"):
        saved(tmp_path, np.stack([KINDS[kind], KINDS[kind][::-1]], 1))


@pytest.mark.parametrize(
    "x, y, said",
    [(KINDS["Unix times"], LABELS, "1 feature .number 0."), (STEPS + 0.5, KINDS["Unix times"], "1 output .number 0.")],
)
def test_close_numbers_to_predict_and_files_as_they_stand_are_refused(tmp_path, x, y, said):
    for read in (lambda: saved(tmp_path, x[:, None], y), lambda: open_dataset(str(tmp_path / "data.npz"))):
        with pytest.raises(DataError, match=f"{said} are {TOO_CLOSE}"):
            read()


@pytest.mark.parametrize("column", [1950 + STEPS % 70, np.where(STEPS == 0, 1e9, STEPS), np.full(N, 1.7e9)])
def test_other_files_have_no_offset(tmp_path, column):
    data = open_prepared(saved(tmp_path, column[:, None]).target)
    assert data.offset is None and data.target_offset is None


def test_differences_are_exact():
    x = np.array([2**63 + 1, 2**63 + 3, 2**64 - 1], np.uint64)
    assert subtract(x, np.array(2.0**63)).tolist() == [1, 3, float(np.float32(2**63))]
    assert subtract(np.array([-(2**62) - 1, -(2**62) + 5]), np.array(-(2.0**62))).tolist() == [-1, 5]


def test_images_have_one_extent(tmp_path):
    x = np.random.default_rng(0).normal(size=(N, 2, 4, 4))
    x[:, 0, 0, 0] = KINDS["Unix times"]
    assert saved(tmp_path, x).counts == {"train": 160, "test": 40}
    with pytest.raises(DataError, match=TOO_CLOSE):
        saved(tmp_path, np.random.default_rng(0).normal(size=(N, 2, 4, 4)) + 1e6)


def test_what_differs_in_the_last_digits_alone_is_constant(tmp_path):
    train = open_prepared(saved(tmp_path, np.stack([np.array([0.1 + 0.2, 0.3])[LABELS], STEPS], 1)).target).train
    assert (examples_of(train, np.arange(len(train)))[0][:, 0] == 0).all()
    with pytest.raises(DataError, match="1 feature .number 1. are too close"):
        saved(tmp_path, np.stack([STEPS, LABELS * 1e-50], 1))


def test_rows_less_another_offset_are_normalised_alike(tmp_path):
    large = np.stack([KINDS["Unix times"], np.cos(STEPS)], 1)
    data = open_prepared(offset_files.write(tmp_path / "data.h5", large, LABELS))
    normalisation = Normalisation(np.float32([3, 0]), np.float32([50, 1]), np.array([1.7e9 + 40, 0]))
    rows = all_rows(data.with_normalisation(normalisation))
    expected = (large - normalisation.offset - normalisation.mean) / normalisation.std
    np.testing.assert_allclose(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)], atol=1e-5)
    ((_, x, _),) = read_inputs(str(tmp_path / "data.h5"), "arrays", (2,))
    assert np.isin(x[:, 0], KINDS["Unix times"]).all()


def test_an_extent_in_blocks_is_that_of_all():
    x = np.stack([KINDS["Unix times"], STEPS], 1)
    extent = Extent(2)
    for block in np.array_split(x, 7):
        extent.add(block)
    with pytest.raises(DataError, match="SRC: values of 1 feature .number 0. are too close"):
        extent.require_apart("feature", "SRC")
