"""Placement: who may draw what; disjoint and covering, the same wherever it is computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from istmpi.data.batches import PLACEMENTS, place
from istmpi.errors import ConfigError, DataError


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
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@given(streams=st.integers(1, 8), seed=st.integers(0, 99), alpha=st.sampled_from([0.3, 1.0, 100.0]))
def test_by_label_is_disjoint_and_covers_all(streams, seed, alpha):
    labels = np.arange(400) % 20
    try:
        shards = all_rows("by-label", labels, streams, seed, alpha)
    except DataError:
        return  # a rank without a row is refused, see below
    assert sorted(np.concatenate(shards)) == list(range(400))


def test_alpha_says_how_uneven_by_label_is():
    labels = np.arange(4000) % 10

    def largest_share(alpha):
        """Of a rank's rows, how many are of its largest class, on average."""
        shards = all_rows("by-label", labels, 4, 0, alpha)
        return np.mean([np.bincount(labels[rows]).max() / len(rows) for rows in shards])

    assert largest_share(1000.0) < 0.12 < largest_share(0.5) < largest_share(0.1)


def test_by_label_with_a_vanishing_alpha_gives_each_class_to_one_rank():
    labels = np.arange(300) % 30
    shards = all_rows("by-label", labels, 2, 0, 1e-9)
    assert not set(labels[shards[0]]) & set(labels[shards[1]])


def test_a_rank_without_rows_is_refused_by_name():
    with pytest.raises(DataError, match=r"rank \d+ of 64 gets no training example of 12 .* raise alpha"):
        all_rows("by-label", np.arange(12) % 3, 64)


@pytest.mark.parametrize("placement", ["shared", "local"])
def test_shared_and_local_take_all(placement):
    assert place(placement, np.zeros(5), 1, 3, 0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placement_is_pure_and_ascending(placement):
    labels = np.arange(600) % 6
    rows = place(placement, labels, 1, 3, 5, 2.0)
    np.testing.assert_array_equal(rows, place(placement, labels, 1, 3, 5, 2.0))
    assert rows.dtype == np.int64 and (np.diff(rows) > 0).all()


def test_by_label_is_fixed_for_ever():
    """Ranks with different versions of NumPy must agree on who has which row."""
    assert [len(rows) for rows in all_rows("by-label", np.arange(1000) % 5, 3, 11, 0.5)] == [509, 268, 223]


def test_by_label_placement_needs_classes():
    with pytest.raises(ConfigError, match="regression"):
        place("by-label", np.zeros((4, 1)), 0, 2, 0)
