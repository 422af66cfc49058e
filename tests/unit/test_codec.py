"""How values travel in fewer bits, against the naive version in double precision."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istmpi.comm import codec
from istmpi.comm.codec import BFLOAT16, CODECS, INT8, RUN, encoded_bytes

FORMS = (BFLOAT16, INT8)
LENGTHS = (0, 1, 7, RUN, RUN + 1, 3 * RUN - 1, codec._AT_ONCE + 5)


def encode(values, form, key, start=0):
    return CODECS[form].encode(values, key, start)


def decode(coded, form):
    return CODECS[form].decode(coded, len(coded))


def values(length, seed=0, spread=1.0):
    random = np.random.default_rng(seed)
    return (random.normal(size=length) * np.exp(spread * random.normal(size=length))).astype(np.float32)


def neighbours(given, form):
    """What a value may become: the multiples of its step below and above it, in double precision."""
    exact = given.astype(np.float64)
    if form == BFLOAT16:
        _, exponent = np.frexp(exact)
        step = np.ldexp(1.0, np.maximum(exponent, -125) - 8)
    else:
        largest = np.repeat([np.abs(exact[at : at + RUN]).max() for at in range(0, len(exact), RUN)], RUN)[: len(exact)]
        step = np.ldexp(1.0, np.array([next(e for e in range(-126, 128) if 127 * 2.0**e >= most) for most in largest]))
        step[largest == 0] = 1
    return np.floor(exact / step) * step, np.ceil(exact / step) * step, step


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", LENGTHS[:-1])
def test_a_value_becomes_the_next_one_below_or_above_it(form, length):
    given = values(length)
    coded = encode(given, form, key=5)
    assert coded.dtype == np.uint8 and coded.nbytes == encoded_bytes(length, form, 4)
    got = decode(coded, form)
    assert got.dtype == np.float32 and got.shape == given.shape
    below, above, _ = neighbours(given, form) if length else (got, got, got)
    assert np.all((got == below) | (got == above))


@pytest.mark.parametrize("form", FORMS)
def test_on_average_a_value_arrives_as_it_was(form):
    given = values(RUN, seed=3)
    _, _, step = neighbours(given, form)
    keys = 4000
    mean = np.mean([decode(encode(given, form, key), form).astype(np.float64) for key in range(keys)], axis=0)
    # A rounding has at most half a step of deviation; 5 of them in any of 256 values is one in 7,000.
    assert np.all(np.abs(mean - given) <= 5 * step / 2 / keys**0.5)
    everywhere = decode(encode(np.full(10**6, 0.3, np.float32), form, 1), form).astype(np.float64)
    assert len(np.unique(everywhere)) == 2 and abs(everywhere.mean() - np.float32(0.3)) < 5e-3 * np.ptp(everywhere)


@given(st.sampled_from(FORMS), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 3 * RUN))
@settings(max_examples=60, deadline=None)
def test_what_was_decoded_is_encoded_exactly(form, key, other, length):
    once = decode(encode(values(length, key % 1000, spread=3.0), form, key), form)
    assert np.array_equal(decode(encode(once, form, other), form), once)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_key_and_place_round_alike_however_the_values_are_cut(form):
    given = values(10 * RUN)
    whole = decode(encode(given, form, 9), form)
    parts = [decode(encode(given[at : at + 2 * RUN], form, 9, at), form) for at in range(0, len(given), 2 * RUN)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(decode(encode(given, form, 10), form), whole)
    assert not np.array_equal(decode(encode(given, form, 9, 1), form), whole)


@pytest.mark.parametrize("form", FORMS)
def test_zeros_stay_and_what_is_no_number_is_seen(form):
    given = values(3 * RUN)
    given[::5] = 0
    assert np.all(decode(encode(given, form, 0), form)[::5] == 0)
    assert not decode(encode(np.zeros(7, np.float32), form, 0), form).any()
    for special in (np.nan, np.inf, -np.inf):
        given[RUN + 3] = special
        got = decode(encode(given, form, 0), form)
        assert not np.isfinite(got[RUN + 3]) and np.isfinite(got[:RUN]).all() and np.isfinite(got[2 * RUN :]).all()
    every = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(decode(encode(every, form, 0), form)).all()


def test_the_scale_is_the_least_power_of_two_that_is_enough():
    most = np.array([127, 127.00001, 1, 0.9921875, 0.9921876, 3e38, 1e-30, 2.0**-126], np.float32)
    found = codec.scales(codec.exponents(most)).astype(np.float64)
    assert np.all(127 * found >= most) and np.all((127 * found / 2 < most) | (found == 2.0**-126))
