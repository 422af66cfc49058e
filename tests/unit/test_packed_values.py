"""Values in 4 bits, and the largest of them in 2: codecs against others, written value by value."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from istmpi.engine.few_bits import Float4, TopK
from istmpi.engine.packed_sizes import float4_bytes, top_k_bytes

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
