"""Batches: a pure function of (seed, stream, step) that drops nothing and repeats nothing within a pass."""

import numpy as np
import pytest
from batches import plain
from hypothesis import given
from hypothesis import strategies as st

from istmpi.data.batches import Batches
from istmpi.data.dense.split import DenseSplit


def make(count: int, batch: int, seed: int = 0, stream: int = 0, rows: np.ndarray | None = None) -> Batches:
    """Batches of a split whose only feature is its row number."""
    x = np.arange(count, dtype=np.float32)[:, None]
    return Batches(DenseSplit(x, np.arange(count)), np.arange(count) if rows is None else rows, batch, seed, stream)


@given(count=st.integers(1, 40), batch=st.integers(1, 90), passes=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_pass_takes_every_row_once(count, batch, passes, seed):
    batches = make(count, batch, seed)
    steps = -(-passes * count // batch)
    walked = np.concatenate([batches.indices(step) for step in range(steps)])
    assert len(walked) == steps * batch
    for start in range(0, passes * count, count):
        assert sorted(walked[start : start + count]) == list(range(count))


@given(step=st.integers(0, 500), batch=st.integers(1, 50))
def test_jumping_equals_walking(step, batch):
    walker = make(37, batch)
    for before in range(max(0, step - 5), step):
        walker.at(before)
    np.testing.assert_array_equal(plain(walker.at(step))[0], plain(make(37, batch).at(step))[0])
    np.testing.assert_array_equal(walker.indices(step), walker.indices(step))


def test_x_and_y_belong_together():
    x, y = plain(make(50, 8).at(3))
    assert x.dtype == np.float32 and x.flags.c_contiguous and x.shape == (8, 1)
    np.testing.assert_array_equal(x[:, 0], y)


def test_only_the_given_rows_are_drawn():
    rows = np.array([3, 5, 8, 13])
    batches = make(20, 3, rows=rows)
    assert set(np.concatenate([batches.indices(step) for step in range(4)])) == set(rows)


@pytest.mark.parametrize("change", [{"seed": 1}, {"stream": 1}])
def test_another_seed_or_stream_is_another_order(change):
    """The published code gives every worker the same batches."""
    assert not np.array_equal(make(1000, 64).indices(0), make(1000, 64, **change).indices(0))


def test_passes_differ():
    batches = make(100, 100)
    assert not np.array_equal(batches.indices(0), batches.indices(1))


def test_the_order_is_fixed_for_ever():
    """A resumed run, or a rank with another NumPy, must draw these very rows."""
    assert make(100, 6, seed=7, stream=2).indices(20).tolist() == [46, 90, 71, 87, 67, 77]


def test_a_fingerprint_is_of_what_training_sees():
    x = np.random.default_rng(0).integers(0, 256, (40, 6)).astype(np.uint8)
    mean, std = np.full(6, 3, np.float32), np.full(6, 2, np.float32)
    y = np.arange(40)
    checksum = DenseSplit(x, y).features_checksum
    assert DenseSplit(x.astype(np.float32), 2 * y).features_checksum == checksum
    assert (
        DenseSplit((x.astype(np.float32) - 3) / 2, y).features_checksum == DenseSplit(x, y, mean, std).features_checksum
    )
    others = [DenseSplit(x, y, mean, std), DenseSplit(x[::-1], y), DenseSplit(x[:39], y[:39])]
    for row, feature in ((0, 0), (39, 5), (17, 2)):
        changed = x.copy()
        changed[row, feature] ^= 1
        others.append(DenseSplit(changed, y))
    assert len({split.features_checksum for split in others} - {checksum}) == len(others)


def test_the_fingerprint_of_many_rows_reads_a_sample_of_them(monkeypatch):
    monkeypatch.setattr("istmpi.data.dense.split.SAMPLE_BYTES", 4 * 6 * 50)
    x = np.random.default_rng(0).normal(size=(2000, 6)).astype(np.float32)
    seen = []
    monkeypatch.setattr(DenseSplit, "_taken", lambda split, rows: seen.extend(rows) or split.x[rows])
    checksum = DenseSplit(x, np.arange(2000)).features_checksum
    assert len(seen) == 50 and seen == sorted(seen) and max(seen) > 1800
    touched = x.copy()
    touched[seen[20], 3] += 1
    assert DenseSplit(touched, np.arange(2000)).features_checksum != checksum
    untouched = x.copy()
    untouched[np.setdiff1d(np.arange(2000), seen)] += 1
    assert DenseSplit(untouched, np.arange(2000)).features_checksum == checksum
