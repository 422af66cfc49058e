"""Collectives of arrays that are too large for one call of MPI."""

from contextlib import suppress

import numpy as np
import pytest

from istmpi.comm import communicator

LIMITS = pytest.mark.parametrize("limit", [5, 2**30])


@pytest.fixture
def limited(monkeypatch, limit):
    monkeypatch.setattr(communicator, "LARGEST_CALL", limit)


@LIMITS
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.both), "uint8"])
def test_an_all_gather_brings_all_parts_whatever_fits_into_one_call(comm, limited, dtype):
    counts = [3 * rank % 7 for rank in range(comm.size)]
    parts = [(np.arange(count) + 100 * rank).astype(dtype) for rank, count in enumerate(counts)]
    before = comm.traffic.bytes
    found = comm.allgatherv(parts[comm.rank], counts)
    assert found.dtype == dtype
    assert found.tolist() == np.concatenate(parts).tolist()
    assert comm.traffic.bytes - before == parts[comm.rank].nbytes * (comm.size - 1)


@LIMITS
@pytest.mark.parametrize("shape", [(0,), (3,), pytest.param((5, 7), marks=pytest.mark.both)])
def test_a_broadcast_brings_all_of_the_roots_whatever_fits_into_one_call(comm, limited, shape):
    root = comm.size - 1
    expected = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    values = expected.copy() if comm.rank == root else np.full(shape, -1, np.float32)
    before = comm.traffic.bytes
    comm.broadcast(values, root)
    assert values.tolist() == expected.tolist()
    assert comm.traffic.bytes - before == (expected.nbytes * (comm.size - 1) if comm.rank == root else 0)


@pytest.mark.real
@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize("made", ["on this host", "among"])
def test_communicators_of_some_ranks_do_not_add_up_also_where_their_block_raises(comm, made):
    """MPICH has some 2,000 of them to give, to one rank as to several."""
    for number in range(2100):
        entered = comm.among(range(comm.size)) if made == "among" else comm.on_this_host()
        with suppress(ValueError), entered as some:
            assert 1 <= some.size <= comm.size
            if number % 2:
                raise ValueError
