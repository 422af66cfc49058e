"""Random numbers, fixed for ever; the same initial network at any number of ranks, and only the owned rows of it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from istmpi import rng
from istmpi.engine import store
from istmpi.engine.layout import Replicated
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.models import mlp_network

NETWORK = mlp_network(7, [13, 5], 3, bias=True)


def stores(ranks, seed=3, network=NETWORK):
    made = [ParameterStore(network.parameters, network.lengths, ranks, rank) for rank in range(ranks)]
    for one in made:
        one.initialise(seed)
    return made


def whole(made):
    return {name: torch.cat([one.tensors[name] for one in made]) for name in made[0].tensors}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_the_initial_network_is_the_same_at_any_number_of_ranks(ranks, dtype, monkeypatch):
    """The published code gives every shard the same initial values. Chunks do not show."""
    network = mlp_network(7, [13, 5], 3, bias=True, dtype=dtype)
    one, many = stores(1, network=network), stores(ranks, network=network)
    expected = one[0].tensors
    for name, tensor in whole(many).items():
        assert torch.equal(tensor, expected[name]), name
    assert sum(part.digest() for part in many) % 2**64 == one[0].digest()
    monkeypatch.setattr(store, "_CHUNK", 5)
    chunked = stores(ranks, network=network)
    assert [part.digest() for part in chunked] == [part.digest() for part in many]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in whole(chunked).items())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_each_rank_can_compute_all_initial_values(dtype, monkeypatch):
    """The same bits as the owners' rows, so that no rank has to send them."""
    monkeypatch.setattr(store, "_CHUNK", 5)
    many = stores(3, network=mlp_network(7, [13, 5], 3, bias=True, dtype=dtype))
    deal = Partition.draw(NETWORK.lengths, NETWORK.groups, 3, 0, 0)
    everything = Replicated(NETWORK.lengths, 3)
    for name, tensor in whole(many).items():
        values = torch.empty_like(tensor)
        many[1].fill_initial(name, everything, values)
        assert torch.equal(values, tensor), name
        axes = many[1].parameters[name].pattern.axes
        at = np.ix_(*[deal.positions(axis, place, 1) for place, axis in enumerate(axes)])
        values = torch.empty_like(tensor[at])
        many[1].fill_initial(name, deal, values)
        assert torch.equal(values, tensor[at]), name


def test_the_initial_values_are_those_of_their_positions():
    """Derived by hand: element (4, 2) of a matrix with 7 columns is number 30 of its parameter's own stream."""
    (one,) = stores(1)
    number = rng.uniform(rng.key(3, "initial", "hidden1.linear.weight"), 30, 1)[0]
    assert one.tensors["hidden1.linear.weight"][4, 2].item() == np.float32((2 * number - 1) / np.sqrt(7))
    assert one.tensors["hidden1.linear.weight"][0, :2].tolist() == pytest.approx([0.085514, 0.0914764], abs=1e-7)


@given(name=st.sampled_from(sorted(NETWORK.parameters)), position=st.integers(0, 90), bit=st.integers(0, 31))
def test_the_digest_notices_any_bit_and_an_exchange(name, position, bit):
    (one,) = stores(1)
    before = one.digest()
    bits = one.tensors[name].view(-1).view(torch.int32).numpy()
    bits[position % len(bits)] ^= np.array(1 << bit, dtype=np.uint32).astype(np.int32)
    assert one.digest() != before
    bits[position % len(bits)] ^= np.array(1 << bit, dtype=np.uint32).astype(np.int32)
    rows = one.tensors["hidden1.linear.weight"]
    rows[[0, 1]] = rows[[1, 0]]
    assert one.digest() != before, "an exchange"


STREAMS = st.integers(0, 2**64 - 1)


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


@pytest.mark.parametrize("one, other", [((1, 12), (11, 2)), (("1",), (1,)), (("a", "b"), ("ab",)), ((1, 2), (2, 1))])
def test_other_purposes_have_other_keys(one, other):
    assert rng.key(*one) != rng.key(*other)
    assert rng.key(*one) == rng.key(*one)
    assert 0 <= rng.key(*one) < 2**64
