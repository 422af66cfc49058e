"""How values travel in fewer bits, against the naive version in double precision."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from istmpi.comm import codec
from istmpi.comm.codec import BFLOAT16, CODECS, INT8, RUN, count_encoded_bytes
from istmpi.engine.few_bits import Float4, TopK
from istmpi.engine.packed_sizes import float4_bytes, top_k_bytes

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
    assert coded.dtype == np.uint8 and coded.nbytes == count_encoded_bytes(length, form, 4)
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


# ---- values in 4 bits, and the largest of them in 2: value by value


SIZES = [0, 1, 2, 3, 1023, 1024, 1025, 2500]


def arrived(values):
    return Float4().decode(Float4().encode(values), len(values))


@pytest.mark.parametrize("size", SIZES)
def test_a_value_becomes_the_nearest_that_there_is(size):
    values = np.random.default_rng(size).normal(size=size).astype(np.float32) ** 5
    packed = Float4().encode(values)
    assert len(packed) == float4_bytes(size) and packed.dtype == np.uint8
    for start in range(0, size, 1024):
        block, found = values[start : start + 1024], arrived(values)[start : start + 1024]
        levels = [0.0, *(float(np.abs(block).max()) / 2**power for power in range(7))]
        for value, taken in zip(block.tolist(), found.tolist()):
            assert abs(taken) in levels and taken * value >= 0
            assert abs(taken - value) <= min(abs(level - abs(value)) for level in levels) * (1 + 1e-6)


@given(st.lists(st.floats(-1024, 1024, width=32).map(lambda one: one if abs(one) > 1e-20 else 0.0), max_size=40))
@settings(max_examples=60, deadline=None)
def test_coding_what_was_decoded_changes_nothing(values):
    once = arrived(np.array(values, np.float32))
    assert arrived(once).tolist() == once.tolist()
    assert all(math.isfinite(one) for one in once.tolist())


def test_zeros_stay_and_what_is_not_finite_is_seen():
    assert arrived(np.zeros(1500, np.float32)).tolist() == [0.0] * 1500
    for bad in (math.inf, math.nan):
        values = np.ones(1500, np.float32)
        values[3] = bad
        found = arrived(values)
        assert np.isnan(found[:1024]).all() and found[1024:].tolist() == [1.0] * 476


@pytest.mark.parametrize("top", [1, 64, 1000, 4096])
def test_the_largest_of_each_chunk_are_sent(top):
    sizes = (5000, 10, 4096, 3, 8192)
    generator = np.random.default_rng(top)
    tensors = [torch.from_numpy(generator.normal(size=size).astype(np.float32)) for size in sizes]
    codec = TopK(top, sizes)
    packed = codec.encode(tensors)
    assert len(packed) == top_k_bytes(top, sizes)
    places, values = codec.decode(packed, torch.float32)
    flat, expected = torch.cat(tensors), {}
    first = 0
    for tensor in tensors:
        for start in range(0, len(tensor), 4096):
            chunk = tensor[start : start + 4096].tolist()
            count = math.ceil(top * len(chunk) / 4096)
            chosen = sorted(sorted(range(len(chunk)), key=lambda i: (-abs(chunk[i]), i))[:count])
            mean = sum(abs(chunk[i]) for i in chosen) / count
            groups = {
                above: [abs(chunk[i]) for i in chosen if (abs(chunk[i]) > mean) == above] for above in (True, False)
            }
            for i in chosen:
                group = groups[abs(chunk[i]) > mean]
                expected[first + start + i] = math.copysign(sum(group) / len(group), chunk[i])
        first += len(tensor)
    assert places.tolist() == list(expected)
    # A bfloat16 has eight bits.
    np.testing.assert_allclose(values, list(expected.values()), rtol=2**-8)
    assert torch.equal(flat[places].sign(), values.sign())


def test_of_equals_the_first_are_sent_and_zeros_stay_zeros():
    codec = TopK(4, (4096,))
    places, values = codec.decode(codec.encode([torch.ones(4096)]), torch.float32)
    assert places.tolist() == [0, 1, 2, 3] and values.tolist() == [1.0] * 4
    sparse = torch.zeros(4096)
    sparse[100] = -2.0
    places, values = codec.decode(codec.encode([sparse]), torch.float32)
    assert dict(zip(places.tolist(), values.tolist())) == {0: 0.0, 1: 0.0, 2: 0.0, 100: -2.0}
