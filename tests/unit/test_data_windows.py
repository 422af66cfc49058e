"""Windows of text: a batch is a pure function of its key, and no token is lost."""

import zlib
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istmpi import rng
from istmpi.data.batches import Batches, place
from istmpi.data.text.split import TextSplit


def naive(tokens, length, indices, key):
    """A batch by slices of a list, one window after the other."""
    inputs, targets = [], []
    for place_in_batch, index in enumerate(indices):
        start = index * length
        if key is not None:
            start += int(rng.bits(rng.key(key, "window"), place_in_batch, 1)[0]) % length
            start = min(start, len(tokens) - length - 1)
        inputs.append(tokens[start : start + length])
        targets.append(tokens[start + 1 : start + length + 1])
    return inputs, targets


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, 60),
    length=st.integers(1, 9),
    key=st.none() | st.integers(0, 2**64 - 1),
    rows=st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    dtype=st.sampled_from([np.uint8, np.uint16, np.uint32]),
)
def test_a_batch_is_that_of_the_naive_oracle(count, length, key, rows, dtype):
    length = min(length, count - 1)
    tokens = (np.arange(count) * 7 % 251).astype(dtype)
    split = TextSplit(tokens, length)
    rows = [row % len(split) for row in rows]
    batch = split.batch(np.array(rows), key)
    (inputs,), targets = batch.inputs, batch.targets
    assert (inputs.tolist(), targets.tolist()) == naive(tokens.tolist(), length, rows, key)
    assert str(inputs.dtype) == str(targets.dtype) == "torch.int64" and batch.examples == len(rows)


def test_every_token_is_a_target_in_a_pass_and_the_first_is_not():
    for count, length in product((2, 10, 23), (1, 2, 7)):
        if count > length:
            split = TextSplit(np.arange(count, dtype=np.uint8), length)
            targets = split.batch(np.arange(len(split))).targets.flatten().tolist()
            assert targets == list(range(1, len(split) * length + 1)) and count - 1 - len(targets) < length


def test_training_comes_to_every_place_of_a_stream():
    split = TextSplit(np.arange(30, dtype=np.uint8), 7)
    starts = {int(split.batch(np.arange(4), key).inputs[0][row, 0]) for key in range(200) for row in range(4)}
    assert starts == set(range(30 - 7))


def test_a_batch_is_the_same_on_every_rank_and_machine():
    """A value that stays fixed: other windows would be another run."""
    tokens = (np.arange(5000) * 31 % 256).astype(np.uint8)
    one, other = (Batches(TextSplit(tokens.astype(dtype), 16), np.arange(312), 8, 3, 1) for dtype in ("u1", "u4"))
    found = [[part.numpy().tobytes() for part in (*of.at(5).inputs, of.at(5).targets)] for of in (one, other)]
    assert found[0] == found[1] and zlib.crc32(found[0][0]) == 2756349747


def test_windows_are_dealt_to_ranks_as_other_examples_and_their_labels_take_no_memory():
    split = TextSplit(np.zeros(1000, np.uint8), 10)
    shards = [place("sharded", split.labels(), rank, 4, 0) for rank in range(4)]
    assert sorted(np.concatenate(shards)) == list(range(len(split))) == list(range(99))
    split = TextSplit(np.broadcast_to(np.uint8(0), 10**12), 100)
    assert len(split) == len(split.labels()) == 10**10 - 1 and split.labels().strides == (0,)


@pytest.mark.parametrize("count", [50, 2**23])
def test_the_fingerprint_is_of_the_tokens_alone(count):
    tokens = (np.arange(count) % 251).astype(np.uint8)
    expected = TextSplit(tokens, 5).features_checksum
    assert TextSplit(tokens.astype(np.uint32), 9).features_checksum == expected
    assert (zlib.crc32(tokens.astype("<u4")) == expected) == (count == 50)
    assert TextSplit(tokens[::-1].copy(), 5).features_checksum != expected
