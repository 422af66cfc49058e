"""Arrays too large for one call of MPI, exchanges in pieces, and messages that nobody waits for: none is lost."""

import time
from contextlib import suppress

import numpy as np
import pytest
from patience import Limit, patient

from istmpi.comm import at_once, communicator, exchange
from istmpi.comm.thread_mailbox import ThreadMailbox

LIMITS = pytest.mark.parametrize("limit", [5, 2**20, 2**30])


@pytest.fixture
def limited(monkeypatch, limit):
    monkeypatch.setattr(communicator, "LARGEST_CALL", limit)
    if limit < 2**30:
        monkeypatch.setattr(at_once, "MOST_BYTES", 0)


@LIMITS
@pytest.mark.both
def test_an_all_gather_brings_all_parts_whatever_fits_into_one_call(comm, limited):
    counts = [3 * rank % 7 for rank in range(comm.size)]
    parts = [(np.arange(count) + 100 * rank).astype("float32") for rank, count in enumerate(counts)]
    before = comm.traffic.bytes
    assert comm.allgatherv(parts[comm.rank], counts).tolist() == np.concatenate(parts).tolist()
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
@pytest.mark.ranks(only=[4])
def test_a_rank_hears_what_rank_0_tells_while_other_ranks_are_late(comm):
    """Ranks that pass it on would wait for each other here: rank 3 for rank 2, and rank 2 for rank 3."""
    if comm.rank == 2:
        comm.receive(np.empty(1), 3)
    assert comm.broadcast_from_root("news" if comm.rank == 0 else None) == "news"
    if comm.rank == 3:
        comm.send(np.ones(1), 2)


@pytest.mark.real
@pytest.mark.ranks(only=[1])
def test_communicators_of_some_ranks_do_not_add_up_also_where_their_block_raises(comm):
    """MPICH has some 2,000 of them to give, to one rank as to several."""
    for number in range(2100):
        with suppress(ValueError), comm.among(range(comm.size)) as some:
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
    assert len(set(comm.allgather(str(tmp_path_factory.getbasetemp().parent)))) == comm.size


@pytest.fixture
def post(comm):
    post = ThreadMailbox(comm.mpi.Dup())
    yield post
    post.close()


def collected(post, number, seconds=20):
    limit, found = Limit(seconds), []
    while len(found) < number and limit.left:
        found += post.receive()
        time.sleep(0.001)
    return found


@pytest.mark.real
def test_all_that_is_sent_arrives_in_the_order_of_its_sender(comm, post):
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    for number in range(20):
        for rank in others:
            post.send(rank, "a word", comm.rank, number, bytes(number * 1000))
    found = collected(post, 20 * len(others))
    for rank in others:
        sent = [("a word", rank, number, bytes(number * 1000)) for number in range(20)]
        assert [message for sender, message in found if sender == rank] == sent
    assert post.receive() == []


@pytest.mark.real
@pytest.mark.ranks(min=2)
def test_a_message_that_has_come_is_seen_at_the_first_look(comm, post):
    """A look may be the only call of MPI that a rank makes in a long time."""
    for number in range(3):
        comm.barrier()
        if comm.rank == 0:
            for rank in range(1, comm.size):
                post.send(rank, "a word", number)
        time.sleep(patient(0.3))
        assert comm.gather_to_root(post.receive()) in (None, [[], *[[(0, ("a word", number))]] * (comm.size - 1)])


@pytest.mark.real
@pytest.mark.ranks(min=2)
def test_the_next_one_is_sent_once_the_last_is_received(comm, post):
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for number in range(5):
        post.send_unless_last_is_under_way(to, number)
    comm.barrier()
    assert collected(post, 1) == [(source, (0,))] and collected(post, 1, seconds=0.5) == []
    comm.barrier()
    post.send_unless_last_is_under_way(to, 9)
    assert collected(post, 1) == [(source, (9,))]


@pytest.mark.real
def test_what_nobody_received_is_under_way_no_more_when_it_is_closed(comm):
    """MPI would have messages left at its end."""
    post = ThreadMailbox(comm.mpi.Dup())
    for rank in range(comm.size):
        post.send(rank, bytes(100_000))
        post.send_unless_last_is_under_way(rank, "the last")
    post.close()
    assert comm.allgather(comm.rank) == list(range(comm.size))
