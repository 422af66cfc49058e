"""The ring all-reduce against the mean that NumPy takes, in all sizes, and against its schedule."""

import time

import numpy as np
import pytest
import torch

from istmpi.comm import backoff, mpi, ring
from istmpi.comm.allreduce import MeanOverRanks

CASES = {
    "one": ([1], torch.float64, 1e-14),
    "fewer than ranks": ([2], torch.float64, 1e-14),
    "several": ([7, 300, 1, 90, 2000, 5], torch.float64, 1e-14),
    "of numbers that NumPy has not": ([1000, 3], torch.bfloat16, 0.05),
}


def values(comm, sizes, dtype=torch.float64, scale=1.0):
    per_rank = [np.random.default_rng(rank).normal(size=sum(sizes)) * scale for rank in range(comm.size)]
    parts = [torch.from_numpy(one).to(dtype).split(sizes) for one in per_rank]
    return [{str(number): part.clone() for number, part in enumerate(one)} for one in parts]


def mean_over_ranks(comm, tensors):
    """In place, handed over from the last to the first, as a backward pass does."""
    mean = MeanOverRanks({name: tensor.nbytes for name, tensor in tensors.items()}, comm)
    for _ in range(2):  # it can be used again
        for name, tensor in reversed(tensors.items()):
            mean.add(name, tensor)
        mean.finish()


def wait_for(comm, values, expected):
    """Until they are there on all ranks."""
    for _ in range(1000):
        if all(comm.allgather(torch.allclose(values, expected, rtol=0, atol=1e-14))):
            return
        time.sleep(0.01)
    pytest.fail("it waits for the end")


@pytest.mark.ranks(also=5)
@pytest.mark.parametrize("background", [pytest.param(True, marks=pytest.mark.real), False])
@pytest.mark.parametrize("case, short", [*((case, 0) for case in CASES), ("several", 80), ("several", 2**14)])
def test_it_is_the_mean_and_the_same_bits_on_every_rank(comm, case, short, background, monkeypatch):
    """Messages of 160 bytes and buckets of 320, so that all is cut."""
    for name, nbytes in {"CHUNK_BYTES": 160, "BUCKET_BYTES": 320, "SHORT_BYTES": short}.items():
        monkeypatch.setattr(ring, name, nbytes)
    monkeypatch.setattr(mpi, "threads_may_call", lambda: background)
    sizes, dtype, tolerance = CASES[case]
    mine, sent = values(comm, sizes, dtype)[comm.rank], comm.traffic.bytes
    mean_over_ranks(comm, mine)
    for name, tensor in mine.items():
        expected = sum(one[name].double() for one in values(comm, sizes, dtype)) / comm.size
        torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=tolerance)
        bits = tensor.view(torch.uint8).numpy().tobytes()
        assert comm.broadcast_from_root(bits) == bits
    lengths = {name: len(tensor) for name, tensor in mine.items()}
    assert comm.traffic.bytes - sent == 2 * ring.count_sent_bytes(lengths, dtype.itemsize, comm.size)[comm.rank]


@pytest.mark.real
@pytest.mark.ranks(min=2)
def test_a_tensor_may_be_handed_over_in_parts(comm, monkeypatch):
    """What there is of it has its mean before the rest is made; parts that come early wait for their turn."""
    monkeypatch.setattr(ring, "BUCKET_BYTES", 64)
    monkeypatch.setattr(ring, "CHUNK_BYTES", 8 * 10)
    made = 35 * comm.size
    sizes = [made + 5, made + 5, 3]
    mine = values(comm, sizes)[comm.rank]
    means = {name: sum(one[name] for one in values(comm, sizes)) / comm.size for name in mine}
    later = mine["1"][made:].clone()
    mine["1"][made:] = torch.nan
    mean = MeanOverRanks({name: tensor.nbytes for name, tensor in mine.items()}, comm)
    mean.add("0", mine["0"], made)
    mean.add("2", mine["2"])
    mean.add("1", mine["1"], made - 1)
    mean.add("1", mine["1"], made)
    there = 30 * comm.size  # whole segments
    wait_for(comm, mine["1"][:there], means["1"][:there])
    mine["1"][made:] = later
    mean.add("1", mine["1"])
    mean.add("0", mine["0"])
    mean.finish()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, means[name])


@pytest.mark.real
@pytest.mark.ranks(min=2)
def test_a_rank_may_wait_long_for_the_others(comm, monkeypatch):
    """So often in vain that its naps would last for years if they doubled each time."""
    monkeypatch.setattr(backoff, "LONGEST_SLEEP", 1e-6)
    mine = values(comm, [100])[comm.rank]
    if comm.rank == 0:
        time.sleep(0.5)
    mean_over_ranks(comm, mine)
    assert torch.isfinite(mine["0"]).all()


@pytest.mark.ranks(min=2)
def test_what_fails_in_the_background_is_raised_where_it_is_waited_for(comm, monkeypatch):
    monkeypatch.setattr(ring, "BUCKET_BYTES", 64)
    monkeypatch.setattr(comm, "start_send", lambda *_: 1 / 0)
    mine = values(comm, [100, 100])[comm.rank]
    mean = MeanOverRanks({name: tensor.nbytes for name, tensor in mine.items()}, comm)
    for name, tensor in reversed(mine.items()):
        mean.add(name, tensor)
    with pytest.raises(ZeroDivisionError):
        mean.finish()
