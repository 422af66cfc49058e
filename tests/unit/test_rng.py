"""Random numbers: fixed for ever, and as random as they should be."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from istmpi import rng

STREAMS = st.integers(0, 2**64 - 1)


def test_the_mixer_is_splitmix64():
    """The published first five outputs for the seed 1234567; position n here is output n."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert rng.bits(1234567, 1, 5).tolist() == published


def test_the_streams_are_fixed_for_ever():
    """Two ranks with other versions, a resumed run, and every published figure depend on these very numbers."""
    stream = rng.key(7, "deal", "hidden1", 3)
    assert stream == 4514439169669725538
    assert rng.permutation(10, stream).tolist() == [1, 9, 0, 7, 6, 3, 8, 5, 2, 4]
    assert rng.uniform(stream, 5, 2).tolist() == [0.39893215379328795, 0.3059019811441501]


@given(stream=STREAMS, start=st.integers(0, 2**40), count=st.integers(0, 50), skip=st.integers(0, 50))
def test_any_position_can_be_drawn_alone(stream, start, count, skip):
    whole = rng.uniform(stream, start, skip + count)
    np.testing.assert_array_equal(whole[skip:], rng.uniform(stream, start + skip, count))
    assert np.all((whole >= 0) & (whole < 1))


def test_uniform_numbers_are_uniform():
    values = rng.uniform(rng.key("uniform"), 0, 100_000)
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    assert np.abs(counts - 5000).max() < 5 * np.sqrt(5000)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


def test_all_permutations_are_equally_likely():
    draws = [tuple(rng.permutation(4, rng.key(number)).tolist()) for number in range(4800)]
    counts = [draws.count(order) for order in permutations(range(4))]
    assert sum(counts) == 4800, "every draw has every number once"
    assert max(abs(count - 200) for count in counts) < 5 * np.sqrt(200)


@pytest.mark.parametrize("one, other", [((1, 12), (11, 2)), (("1",), (1,)), (("a", "b"), ("ab",)), ((1, 2), (2, 1))])
def test_other_purposes_have_other_keys(one, other):
    assert rng.key(*one) != rng.key(*other)
    assert rng.key(*one) == rng.key(*one)
    assert 0 <= rng.key(*one) < 2**64
