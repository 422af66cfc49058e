"""The deal and its layouts: covering, disjoint, the same everywhere, independent of what they should not depend on."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from istmpi.engine import partition
from istmpi.engine.axes import Parameter, Pattern
from istmpi.engine.layout import Owners, part_shape
from istmpi.engine.partition import Partition, blocks
from istmpi.errors import ConfigError

LENGTHS = {"features": 5, "hidden1": 64, "hidden2": 13}
GROUPS = ("hidden1", "hidden2")

SHARES = st.one_of(st.none(), st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5))


def draw(ranks=4, seed=0, round=0, lengths=LENGTHS, groups=GROUPS, shares=None, redeal=1.0):
    return Partition.draw(lengths, groups, ranks, seed, round, shares, redeal)


def same(one, other):
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@given(
    ranks=st.integers(1, 5),
    widths=st.tuples(st.integers(5, 40), st.integers(5, 40)),
    round=st.integers(0, 9),
    seed=st.integers(0, 2**40),
    shares=SHARES,
    redeal=st.sampled_from([1.0, 0.3, 0.0]),
)
def test_the_deal_covers_every_group_and_is_disjoint(ranks, widths, round, seed, shares, redeal):
    lengths = {"hidden1": widths[0], "hidden2": widths[1]}
    deal = draw(ranks, seed, round, lengths, GROUPS, shares and shares[:ranks], redeal)
    for name, parts in deal.units.items():
        assert len(parts) == ranks
        assert sorted(np.concatenate(parts).tolist()) == list(range(lengths[name]))
        assert all(len(part) and np.all(np.diff(part) > 0) for part in parts)
        if shares is None:
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_groups_and_shares_that_do_not_fit_are_refused_by_name():
    message = r"^hidden2 has 13 units, but the run has 14 ranks; .* widen hidden2, or .* method.holders = 2\.$"
    with pytest.raises(ConfigError, match=message):
        draw(ranks=14)
    draw(ranks=14, groups=["hidden1"])  # the other group is not dealt
    with pytest.raises(ConfigError, match="partition names hidden9, which is not an axis .*; axes: features"):
        draw(groups=["hidden9"])
    for shares in ([1.0, 1.0], [1.0, 0.0, 1.0, 1.0], [1, float("inf"), 1, 1]):
        with pytest.raises(ConfigError, match="shares"):
            draw(shares=shares)


def test_the_deal_differs_between_rounds_groups_seeds_and_ranks_and_its_digest_says_so():
    equal = draw(lengths={"hidden1": 64, "hidden2": 64})
    assert not same(equal.units["hidden1"], equal.units["hidden2"])
    assert draw().digest == draw().digest
    drawn = [draw(ranks, seed, round) for round in range(5) for seed in range(5) for ranks in (2, 3)]
    assert len({deal.digest for deal in drawn}) == len(drawn)
    assert len({np.concatenate(deal.units["hidden1"]).tobytes() for deal in drawn}) == len(drawn)


def test_shares_in_plain_numbers():
    assert blocks(100, 4, [4, 3, 2, 1]) == [40, 30, 20, 10]
    assert blocks(10, 4, [1000, 1, 1, 1]) == [7, 1, 1, 1]
    assert blocks(4, 4, [9, 1, 1, 1]) == [1, 1, 1, 1]
    assert blocks(7, 3, [1, 1, 1]) == blocks(7, 3) == [3, 2, 2]


def test_jumping_to_a_round_equals_walking_there():
    walked = [draw(round=round, redeal=0.2, seed=77).digest for round in range(12)]
    for round in (11, 3, 7, 0, 11):
        partition._walked.clear()
        assert draw(round=round, redeal=0.2, seed=77).digest == walked[round]
    assert [draw(round=round, redeal=0.2, seed=77).digest for round in reversed(range(12))][::-1] == walked
    assert len(set(walked)) == 12


def test_the_deal_is_fixed_for_ever():
    """Ranks with other versions must draw this very deal, or weights would be scrambled."""
    golden = draw(ranks=3, seed=11, round=2, lengths={"hidden1": 10}, groups=["hidden1"])
    assert [part.tolist() for part in golden.units["hidden1"]] == [[0, 1, 2, 7], [3, 6, 9], [4, 5, 8]]
    partly = draw(ranks=3, seed=11, round=2, lengths={"hidden1": 10}, groups=["hidden1"], redeal=0.5)
    assert [part.tolist() for part in partly.units["hidden1"]] == [[1, 3, 4, 7], [0, 8, 9], [2, 5, 6]]


# ---- layouts: who has which positions of a parameter

SIZES = {"a": 7, "b": 9, "blocks": 6}
PATTERNS = ["a b", "b", "(2 a) b", "(blocks[4] a) b", "3 a", "1 b", "3 a + 2", "a + 2 b + 1", "(2 a) + b + 3"]


def layouts(ranks, shares=None):
    return [
        Owners(SIZES, ranks),
        Partition.draw(SIZES, ["a", "b", "blocks"], ranks, 0, 0, shares),
        Partition.draw(SIZES, ["b"], ranks, 0, 1),
        Partition.draw(SIZES, [], ranks, 0, 0),
    ]


@pytest.mark.parametrize("text", PATTERNS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_element_that_anybody_has_is_there_in_as_many_copies_as_said(text, ranks):
    """No rank has more than the largest, and the owners have everything once."""
    for layout in layouts(ranks):
        for pattern in Pattern.parse(text).pieces(layout.units):
            require_copies(layout, pattern, ranks)
    for layout in layouts(ranks, [3.0, 1.0, 2.0, 1.0, 1.0][:ranks]):
        for place, axis in enumerate(Pattern.parse(text).axes):
            counts = [len(layout.positions(axis, place, rank)) for rank in range(ranks)]
            assert max(counts) <= layout.largest(axis, place)
    parameter = Parameter(Pattern.parse(text))
    parts = [prod(part_shape(Owners(SIZES, ranks), parameter, rank)) for rank in range(ranks)]
    assert sum(parts) == parameter.size(SIZES)


def require_copies(layout, pattern, ranks):
    copies = np.zeros(pattern.shape(SIZES), dtype=int)
    for rank in range(ranks):
        part = [layout.positions(axis, place, rank) for place, axis in enumerate(pattern.axes)]
        copies[np.ix_(*part)] += 1
        assert part_shape(layout, Parameter(pattern), rank) == tuple(map(len, part))
    assert set(np.unique(copies)) - {0} == {layout.copies(pattern.names)}
