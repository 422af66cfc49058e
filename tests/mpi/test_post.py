"""Messages that nobody waits for: they are seen at the next look, and none is lost at the end."""

import time

import pytest
from patience import Limit

from istmpi.comm.thread_mailbox import ThreadMailbox

pytestmark = pytest.mark.real


@pytest.fixture
def post(comm):
    """Closed by all ranks behind the test."""
    post = ThreadMailbox(comm.mpi.Dup())
    yield post
    post.close()


def collected(post, number, seconds=20):
    """What comes until so many messages are there."""
    limit, found = Limit(seconds), []
    while len(found) < number and limit.left:
        found += post.receive()
        time.sleep(0.001)
    return found


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


@pytest.mark.ranks(min=2)
def test_a_message_that_has_come_is_seen_at_the_first_look(comm, post):
    """A look may be the only call of MPI that a rank makes in a long time."""
    for number in range(3):
        comm.barrier()
        if comm.rank == 0:
            for rank in range(1, comm.size):
                post.send(rank, "a word", number)
        time.sleep(0.3)
        seen = post.receive()
        assert comm.gather_to_root(seen) in (None, [[], *[[(0, ("a word", number))]] * (comm.size - 1)])


@pytest.mark.ranks(min=2)
def test_the_next_one_is_sent_once_the_last_is_received(comm, post):
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for number in range(5):
        post.send_unless_last_is_under_way(to, number)
    comm.barrier()
    assert collected(post, 2, seconds=0.5) == [(source, (0,))]
    comm.barrier()
    post.send_unless_last_is_under_way(to, 9)
    assert collected(post, 1) == [(source, (9,))]


def test_what_nobody_received_is_under_way_no_more_when_it_is_closed(comm):
    """MPI would have messages left at its end."""
    post = ThreadMailbox(comm.mpi.Dup())
    for rank in range(comm.size):
        post.send(rank, bytes(100_000))
        post.send_unless_last_is_under_way(rank, "the last")
    post.close()
    assert comm.allgather(comm.rank) == list(range(comm.size))
