"""Layouts: who has which positions of a parameter."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from istmpi.engine.axes import Parameter, Pattern
from istmpi.engine.layout import Owners, part_shape
from istmpi.engine.partition import Partition

LENGTHS = {"a": 7, "b": 9, "blocks": 6}
PATTERNS = ["a b", "b", "(2 a) b", "(blocks[4] a) b", "3 a", "1 b", "3 a + 2", "a + 2 b + 1", "(2 a) + b + 3"]


def layouts(ranks, shares=None):
    return [
        Owners(LENGTHS, ranks),
        Partition.draw(LENGTHS, ["a", "b", "blocks"], ranks, 0, 0, shares),
        Partition.draw(LENGTHS, ["b"], ranks, 0, 1),
        Partition.draw(LENGTHS, [], ranks, 0, 0),
    ]


@given(length=st.integers(0, 50), ranks=st.integers(1, 8))
def test_the_owners_have_every_row_once_in_blocks_that_differ_by_one(length, ranks):
    owners = Owners({"a": length}, ranks)
    rows = [owners.rows(length, rank) for rank in range(ranks)]
    assert [row for block in rows for row in block] == list(range(length))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1


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
    parts = [prod(part_shape(Owners(LENGTHS, ranks), parameter, rank)) for rank in range(ranks)]
    assert sum(parts) == parameter.size(LENGTHS)


def require_copies(layout, pattern, ranks):
    copies = np.zeros(pattern.shape(LENGTHS), dtype=int)
    for rank in range(ranks):
        part = [layout.positions(axis, place, rank) for place, axis in enumerate(pattern.axes)]
        copies[np.ix_(*part)] += 1
        assert part_shape(layout, Parameter(pattern), rank) == tuple(map(len, part))
    assert set(np.unique(copies)) - {0} == {layout.copies(pattern.names)}
