"""Values too close together for float32 are refused; files of an earlier istmpi, with an offset, are read."""

import numpy as np
import offset_files
import pytest
from batches import examples_of

from istmpi.data.dense.predict import read_inputs
from istmpi.data.hdf5 import open_prepared
from istmpi.data.moments import Extent, Normalisation, less
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.errors import DataError

N = 200
STEPS = np.random.default_rng(0).permutation(N)
LABELS = STEPS % 2
KINDS = {
    "Unix times": 1.7e9 + STEPS,
    "int64": 1_700_000_000_000_000_000 + STEPS,
    "uint64": np.uint64(2**63) + STEPS.astype(np.uint64),
    "int32": (50_000_000 + STEPS).astype(np.int32),
    "coordinates": 5_400_000 + STEPS * 1e-3,
    "small steps": STEPS * 1e-3 + 1e5,
    "negative": -1e9 - STEPS,
    "float32": (1.7e9 + 128.0 * (STEPS % 8)).astype(np.float32),
}


TOO_CLOSE = "too close together for the 24 bits of float32. Subtract a number from them first"


def saved(tmp_path, x, y=LABELS, name="data"):
    np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    return prepare("arrays", tmp_path / f"{name}.npz", tmp_path / f"{name}.h5", force=True)


def all_rows(data):
    parts = [examples_of(data.splits[name], np.arange(len(data.splits[name]))) for name in ("train", "test")]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


@pytest.mark.parametrize("kind", KINDS)
def test_close_values_are_refused(tmp_path, kind):
    with pytest.raises(DataError, match=f"2 features .number 0, 1. are {TOO_CLOSE}"):
        saved(tmp_path, np.stack([KINDS[kind], KINDS[kind][::-1]], 1))


@pytest.mark.parametrize(
    "x, y, said",
    [
        (KINDS["Unix times"], LABELS, "1 feature .number 0."),
        (STEPS + 0.5, KINDS["Unix times"], "1 output .number 0."),
        (STEPS + 0.5, KINDS["Unix times"] + 0.5, "1 output .number 0."),
    ],
)
def test_close_numbers_to_predict_and_files_as_they_stand_are_refused(tmp_path, x, y, said):
    for read in (lambda: saved(tmp_path, x[:, None], y), lambda: open_dataset(str(tmp_path / "data.npz"))):
        with pytest.raises(DataError, match=f"{said} are {TOO_CLOSE}"):
            read()


@pytest.mark.parametrize(
    "column",
    [
        STEPS + 0.0,
        1950 + STEPS % 70,
        np.where(STEPS == 0, 1e9, STEPS),
        np.full(N, 1.7e9),
        (STEPS == 3) * 1.0,
        STEPS.astype(np.uint8),
        (1000 + STEPS % 2).astype(np.float16),
    ],
)
def test_other_files_have_no_offset(tmp_path, column):
    data = open_prepared(saved(tmp_path, column[:, None]).target)
    assert data.offset is None and data.target_offset is None


def test_differences_are_exact():
    x = np.array([2**63 + 1, 2**63 + 3, 2**64 - 1], np.uint64)
    assert less(x, np.array(2.0**63)).tolist() == [1, 3, float(np.float32(2**63))]
    assert less(np.array([-(2**62) - 1, -(2**62) + 5]), np.array(-(2.0**62))).tolist() == [-1, 5]


def test_images_have_one_extent(tmp_path):
    x = np.random.default_rng(0).normal(size=(N, 2, 4, 4))
    x[:, 0, 0, 0] = KINDS["Unix times"]
    assert saved(tmp_path, x).counts == {"train": 160, "test": 40}
    with pytest.raises(DataError, match=TOO_CLOSE):
        saved(tmp_path, np.random.default_rng(0).normal(size=(N, 2, 4, 4)) + 1e6)


def test_what_differs_in_the_last_digits_alone_is_constant(tmp_path):
    x = np.stack([np.array([0.1 + 0.2, 0.3])[LABELS], STEPS], 1)
    train = open_prepared(saved(tmp_path, x).target).train
    assert (examples_of(train, np.arange(len(train)))[0][:, 0] == 0).all()
    with pytest.raises(DataError, match="1 feature .number 1. are too close"):
        saved(tmp_path, np.stack([STEPS, LABELS * 1e-50], 1))


def test_rows_less_another_offset_are_normalised_alike(tmp_path):
    large = np.stack([KINDS["Unix times"], np.cos(STEPS)], 1)
    data = open_prepared(offset_files.write(tmp_path / "data.h5", large, LABELS))
    normalisation = Normalisation(np.float32([3, 0]), np.float32([50, 1]), np.array([1.7e9 + 40, 0]))
    shifted = data.normalised_by(normalisation)
    order = np.lexsort(all_rows(shifted)[0].T)
    expected = (large - normalisation.offset - normalisation.mean) / normalisation.std
    np.testing.assert_allclose(all_rows(shifted)[0][order], expected[np.lexsort(expected.T)], atol=1e-5)
    assert shifted.offset is normalisation.offset
    trained_on = Normalisation(data.mean, data.std, data.offset)
    np.testing.assert_array_equal(all_rows(shifted.normalised_by(trained_on))[0], all_rows(data)[0])
    ((_, x, _),) = read_inputs(str(tmp_path / "data.h5"), "arrays", (2,))
    assert np.isin(x[:, 0], KINDS["Unix times"]).all()


def test_an_extent_in_blocks_is_that_of_all():
    x = np.stack([KINDS["Unix times"], STEPS], 1)
    extent = Extent(2)
    for block in np.array_split(x, 7):
        extent.add(block)
    with pytest.raises(DataError, match="SRC: values of 1 feature .number 0. are too close"):
        extent.require_apart("feature", "SRC")
