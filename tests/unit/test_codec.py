"""How values travel in fewer bits, against the naive version in double precision; what a ring sends."""

import math
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from istmpi.comm import codec, ring
from istmpi.comm.codec import BFLOAT16, CODECS, INT8, RUN, count_encoded_bytes
from istmpi.engine.few_bits import Float4, TopK
from istmpi.engine.packed_sizes import float4_bytes, top_k_bytes

FORMS = (BFLOAT16, INT8)
FLOAT4 = "float4"
BLOCK = {BFLOAT16: 1, INT8: RUN, FLOAT4: 1024}
"""How many values share a scale."""
LENGTHS = (0, 1, 7, RUN, RUN + 1, 3 * RUN - 1, codec._AT_ONCE + 5)


def encode(values, form, key=0, start=0):
    return Float4().encode(values) if form == FLOAT4 else CODECS[form].encode(values, key, start)


def decode(coded, form, count=None):
    return Float4().decode(coded, count) if form == FLOAT4 else CODECS[form].decode(coded, len(coded))


def pass_on(given, form, key=0, start=0):
    return decode(encode(given, form, key, start), form, len(given))


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
    given, keys = values(RUN, seed=3), 4000
    _, _, step = neighbours(given, form)
    mean = np.mean([pass_on(given, form, key).astype(np.float64) for key in range(keys)], axis=0)
    # A rounding has at most half a step of deviation; 5 of them in any of 256 values is one in 7,000.
    assert np.all(np.abs(mean - given) <= 5 * step / 2 / keys**0.5)
    everywhere = pass_on(np.full(10**6, 0.3, np.float32), form, 1).astype(np.float64)
    assert len(np.unique(everywhere)) == 2 and abs(everywhere.mean() - np.float32(0.3)) < 5e-3 * np.ptp(everywhere)


@given(st.sampled_from([*FORMS, FLOAT4]), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 3 * RUN))
def test_what_was_decoded_is_encoded_exactly(form, key, other, length):
    once = pass_on(values(length, key % 1000, spread=3.0), form, key)
    assert np.array_equal(pass_on(once, form, other), once)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_key_and_place_round_alike_however_the_values_are_cut(form):
    given = values(10 * RUN)
    whole = pass_on(given, form, 9)
    parts = [pass_on(given[at : at + 2 * RUN], form, 9, at) for at in range(0, len(given), 2 * RUN)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert not np.array_equal(pass_on(given, form, 10), whole)
    assert not np.array_equal(pass_on(given, form, 9, 1), whole)


@pytest.mark.parametrize("form", BLOCK)
def test_zeros_stay_and_what_is_no_number_is_seen(form):
    """It spoils its own block at most."""
    block = BLOCK[form]
    given = values(3 * max(block, RUN))
    given[::5] = 0
    assert np.all(pass_on(given, form)[::5] == 0)
    assert not pass_on(np.zeros(1500, np.float32), form).any()
    for special in (np.nan, np.inf, -np.inf):
        given[block + block // 3] = special
        got = np.isfinite(pass_on(given, form))
        assert not got[block + block // 3] and got[:block].all() and got[2 * block :].all()
    every = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(pass_on(every, form)).all()


# ---- values in 4 bits, and the largest of them in 2: value by value


SIZES = [0, 1, 2, 1025, 2500]


@pytest.mark.parametrize("size", SIZES)
def test_a_value_becomes_the_nearest_that_there_is(size):
    values = np.random.default_rng(size).normal(size=size).astype(np.float32) ** 5
    packed = Float4().encode(values)
    assert len(packed) == float4_bytes(size) and packed.dtype == np.uint8
    for start in range(0, size, 1024):
        block, found = values[start : start + 1024], pass_on(values, FLOAT4)[start : start + 1024]
        levels = [0.0, *(float(np.abs(block).max()) / 2**power for power in range(7))]
        for value, taken in zip(block.tolist(), found.tolist()):
            assert abs(taken) in levels and taken * value >= 0
            assert abs(taken - value) <= min(abs(level - abs(value)) for level in levels) * (1 + 1e-6)


def naive_top(chunk, top):
    """Of a chunk the places of the largest, with the mean of those above the mean of all, or of the others."""
    count = math.ceil(top * len(chunk) / 4096)
    chosen = sorted(sorted(range(len(chunk)), key=lambda i: (-abs(chunk[i]), i))[:count])
    sizes = [abs(chunk[i]) for i in chosen]
    groups = {above: [size for size in sizes if (size > fmean(sizes)) == above] for above in (True, False)}
    return {i: math.copysign(fmean(groups[abs(chunk[i]) > fmean(sizes)]), chunk[i]) for i in chosen}


@pytest.mark.parametrize("top", [1, 64, 4096])
def test_the_largest_of_each_chunk_are_sent(top):
    sizes = (5000, 10, 4096, 3)
    generator = np.random.default_rng(top)
    tensors = [torch.from_numpy(generator.normal(size=size).astype(np.float32)) for size in sizes]
    packed = TopK(top, sizes).encode(tensors)
    assert len(packed) == top_k_bytes(top, sizes)
    places, values = TopK(top, sizes).decode(packed, torch.float32)
    expected, first = {}, 0
    for tensor in tensors:
        for start in range(0, len(tensor), 4096):
            chosen = naive_top(tensor[start : start + 4096].tolist(), top)
            expected |= {first + start + i: value for i, value in chosen.items()}
        first += len(tensor)
    assert places.tolist() == list(expected)
    # A bfloat16 has eight bits.
    np.testing.assert_allclose(values, list(expected.values()), rtol=2**-8)


def test_of_equals_the_first_are_sent_and_zeros_stay_zeros():
    codec = TopK(4, (4096,))
    places, values = codec.decode(codec.encode([torch.ones(4096)]), torch.float32)
    assert places.tolist() == [0, 1, 2, 3] and values.tolist() == [1.0] * 4
    sparse = torch.zeros(4096)
    sparse[100] = -2.0
    places, values = codec.decode(codec.encode([sparse]), torch.float32)
    assert dict(zip(places.tolist(), values.tolist())) == {0: 0.0, 1: 0.0, 2: 0.0, 100: -2.0}


# ---- the ring: what is grouped and cut covers everything once

TENSORS = st.lists(st.integers(1, 5_000_000), min_size=1, max_size=6)


@given(TENSORS)
def test_buckets_hold_every_tensor_once_from_the_last_to_the_first(sizes):
    named = {str(number): size for number, size in enumerate(sizes)}
    grouped = ring.buckets(named)
    assert [name for names in grouped for name in names] == list(reversed(named))
    for names in grouped:
        assert len(names) == 1 or sum(named[name] for name in names) <= ring.BUCKET_BYTES


@given(st.integers(0, 9_000_000), st.sampled_from([2, 4, 8]), st.integers(1, 70))
def test_pieces_cover_a_bucket_and_no_message_is_too_long(elements, itemsize, ranks):
    position = 0
    for segment in ring.segments(elements, itemsize, ranks):
        assert segment.start == position < segment.stop
        length, end = segment.stop - segment.start, 0
        for chunk in ring.chunks(length, ranks):
            assert chunk.start == end <= chunk.stop
            assert (chunk.stop - chunk.start) * itemsize <= ring.CHUNK_BYTES
            end = chunk.stop
        assert end == length
        position = segment.stop
    assert position == elements
