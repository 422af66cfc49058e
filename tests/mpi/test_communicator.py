"""Collectives of arrays that are too large for one call of MPI, and exchanges in pieces."""

from contextlib import suppress

import numpy as np
import pytest

from istmpi.comm import communicator, exchange

LIMITS = pytest.mark.parametrize("limit", [5, 2**30])


@pytest.fixture
def limited(monkeypatch, limit):
    monkeypatch.setattr(communicator, "LARGEST_CALL", limit)


@LIMITS
@pytest.mark.both
def test_an_all_gather_brings_all_parts_whatever_fits_into_one_call(comm, limited):
    counts = [3 * rank % 7 for rank in range(comm.size)]
    parts = [(np.arange(count) + 100 * rank).astype("float32") for rank, count in enumerate(counts)]
    before = comm.traffic.bytes
    found = comm.allgatherv(parts[comm.rank], counts)
    assert found.tolist() == np.concatenate(parts).tolist()
    assert comm.traffic.bytes - before == parts[comm.rank].nbytes * (comm.size - 1)


@LIMITS
@pytest.mark.parametrize("shape", [(0,), pytest.param((5, 7), marks=pytest.mark.both)])
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


@pytest.mark.real
@pytest.mark.ranks(also=5)
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_every_message_arrives_as_alltoallv_brings_it_and_nothing_else_is_touched(comm, piece, monkeypatch):
    mpi4py = pytest.importorskip("mpi4py.MPI")
    monkeypatch.setattr(exchange, "PIECE_BYTES", piece)
    monkeypatch.setattr(comm, "in_pieces", True)
    draw = np.random.default_rng(5)
    for most in (0, 1, 40):
        counts = draw.integers(0, most + 1, (comm.size, comm.size)) * (draw.random((comm.size, comm.size)) < 0.7)
        sent, received = counts[comm.rank].tolist(), counts[:, comm.rank].tolist()
        starts = [[64 * peer for peer in range(comm.size)] for _ in range(2)]
        buffer = np.random.default_rng(comm.rank).integers(0, 256, 64 * comm.size, dtype=np.uint8)
        mine, theirs = (np.full(64 * comm.size, 0xAB, dtype=np.uint8) for _ in range(2))
        before = comm.traffic.bytes
        for _ in range(3):  # one right behind the other
            comm.alltoallv((buffer, sent, starts[0]), (mine, received, starts[1]))
        assert comm.traffic.bytes - before == 3 * (sum(sent) - sent[comm.rank])
        comm.mpi.Alltoallv([buffer, sent, starts[0], mpi4py.BYTE], [theirs, received, starts[1], mpi4py.BYTE])
        assert np.array_equal(mine, theirs)


@pytest.mark.real
@pytest.mark.ranks(min=2)
def test_no_two_ranks_clean_the_same_root(comm, tmp_path_factory):
    """The root whose old folders pytest removes holds those of one rank."""
    roots = comm.allgather(str(tmp_path_factory.getbasetemp().parent))
    assert len(set(roots)) == comm.size
