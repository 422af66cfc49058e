"""Placement and batches: who may draw what, and when: pure functions that drop nothing and repeat nothing in a pass."""

import numpy as np
import pytest
from batches import plain
from hypothesis import given
from hypothesis import strategies as st

from istmpi.data.batches import BY_CLASS, PLACEMENTS, Batches, count_rows, place
from istmpi.data.dense.split import DenseSplit
from istmpi.errors import ConfigError, DataError


def make(count: int, batch: int, seed: int = 0, stream: int = 0, rows: np.ndarray | None = None) -> Batches:
    x = np.arange(count, dtype=np.float32)[:, None]
    return Batches(DenseSplit(x, np.arange(count)), np.arange(count) if rows is None else rows, batch, seed, stream)


@given(count=st.integers(1, 40), batch=st.integers(1, 90), passes=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_pass_takes_every_given_row_once_with_its_label(count, batch, passes, seed):
    given_rows = np.arange(count) * 2
    batches = make(80, batch, seed, rows=given_rows)
    steps = -(-passes * count // batch)
    drawn = [plain(batches.at(step)) for step in range(steps)]
    x, y = (np.concatenate(parts) for parts in zip(*drawn))
    assert x.shape == (steps * batch, 1) and x[:, 0].tolist() == y.tolist()
    for start in range(0, passes * count, count):
        assert sorted(y[start : start + count]) == given_rows.tolist()


def test_the_order_is_another_in_each_pass_seed_and_stream_and_fixed_for_ever():
    """A resumed run, or a rank with another NumPy, must draw these very rows."""
    orders = [make(100, 100).indices(0), make(100, 100).indices(1)]
    orders += [make(100, 100, seed=1).indices(0), make(100, 100, stream=1).indices(0)]
    assert len({order.tobytes() for order in orders}) == 4
    assert make(100, 6, seed=7, stream=2).indices(20).tolist() == [46, 90, 71, 87, 67, 77]


def test_a_fingerprint_is_of_what_training_sees():
    x = np.random.default_rng(0).integers(0, 256, (40, 6)).astype(np.uint8)
    mean, std = np.full(6, 3, np.float32), np.full(6, 2, np.float32)
    y = np.arange(40)
    plain, normalised = DenseSplit(x, y).features_checksum, DenseSplit(x, y, mean, std).features_checksum
    floats = x.astype(np.float32)
    assert DenseSplit(floats, 2 * y).features_checksum == plain
    assert DenseSplit((floats - 3) / 2, y).features_checksum == normalised
    changed = x.copy()
    changed[39, 5] ^= 1
    others = [DenseSplit(rows, y[: len(rows)]).features_checksum for rows in (x[::-1], x[:39], changed)]
    assert len({plain, normalised, *others}) == 5


def test_the_fingerprint_of_many_rows_reads_a_sample_of_them(monkeypatch):
    monkeypatch.setattr("istmpi.data.dense.split.SAMPLE_BYTES", 4 * 6 * 50)
    x = np.random.default_rng(0).normal(size=(2000, 6)).astype(np.float32)
    seen = []
    monkeypatch.setattr(DenseSplit, "_take", lambda split, rows: seen.extend(rows) or split.x[rows])
    checksum = DenseSplit(x, np.arange(2000)).features_checksum
    assert len(seen) == 50 and seen == sorted(seen) and max(seen) > 1800
    touched = x.copy()
    touched[seen[20], 3] += 1
    assert DenseSplit(touched, np.arange(2000)).features_checksum != checksum
    untouched = x.copy()
    untouched[np.setdiff1d(np.arange(2000), seen)] += 1
    assert DenseSplit(untouched, np.arange(2000)).features_checksum == checksum


def all_rows(placement, labels, streams, seed=0, alpha=1.0):
    return [place(placement, labels, stream, streams, seed, alpha) for stream in range(streams)]


@given(count=st.integers(1, 200), streams=st.integers(1, 9), seed=st.integers(0, 99))
def test_shards_are_disjoint_cover_all_and_differ_by_at_most_one(count, streams, seed):
    if count < streams:
        with pytest.raises(DataError, match=f"rank {count} of {streams} gets no training example of {count}"):
            place("sharded", np.zeros(count), count, streams, seed)
        return
    shards = all_rows("sharded", np.zeros(count), streams, seed)
    assert sorted(np.concatenate(shards)) == list(range(count))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@given(streams=st.integers(1, 8), seed=st.integers(0, 99), shards=st.integers(1, 3), rows=st.integers(60, 90))
def test_label_shards_are_slices_of_the_rows_sorted_by_label(streams, seed, shards, rows):
    """All rows are dealt once, in slices of equal length; so a rank with two slices has two classes or few more."""
    labels = np.random.default_rng(seed).integers(0, 5, rows)
    slices = np.array_split(sorted(range(rows), key=lambda row: (labels[row], row)), shards * streams)
    by_stream = [place("label-shards", labels, stream, streams, seed, shards=shards) for stream in range(streams)]
    assert sorted(np.concatenate(by_stream)) == list(range(rows))
    for of_stream in by_stream:
        whole = [part for part in slices if set(part) <= set(of_stream)]
        assert len(whole) == shards and sorted(np.concatenate(whole)) == of_stream.tolist()
    assert count_rows("label-shards", labels, streams, seed, shards=shards) == {len(rows) for rows in by_stream}


def test_alpha_says_how_uneven_by_label_is():
    """A vanishing alpha gives each class to one rank."""

    def largest_share(alpha):
        """Of a rank's rows, how many are of its largest class, on average."""
        labels = np.arange(4000) % 10
        shards = all_rows("by-label", labels, 4, 0, alpha)
        return np.mean([np.bincount(labels[rows]).max() / len(rows) for rows in shards])

    assert largest_share(1000.0) < 0.12 < largest_share(0.5) < largest_share(0.1)
    first, second = (set(rows % 30) for rows in all_rows("by-label", np.arange(300) % 30, 2, 0, 1e-9))
    assert not first & second


def test_a_rank_without_rows_and_labels_that_are_no_classes_are_refused():
    with pytest.raises(DataError, match=r"rank \d+ of 64 gets no training example of 12 .* raise alpha"):
        all_rows("by-label", np.arange(12) % 3, 64)
    message = r"rank \d of 7 gets no training example of 3 .* use fewer shards or fewer ranks"
    with pytest.raises(DataError, match=message):
        all_rows("label-shards", np.arange(3), 7)
    for placement in BY_CLASS:
        with pytest.raises(ConfigError, match=f"^{placement} placement needs classes"):
            place(placement, np.zeros((4, 1)), 0, 2, 0)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placement_is_pure_and_ascending(placement):
    rows, again = (place(placement, np.arange(600) % 6, 1, 3, 5, 2.0) for _ in range(2))
    assert rows.tolist() == again.tolist() == sorted(set(rows)) and rows.dtype == np.int64
    assert (len(rows) == 600) == (placement in ("shared", "local"))


def test_by_label_is_fixed_for_ever():
    """Ranks with different versions of NumPy must agree on who has which row."""
    assert [len(rows) for rows in all_rows("by-label", np.arange(1000) % 5, 3, 11, 0.5)] == [509, 268, 223]
