"""The simulated MPI by itself: what it must keep to, and what it must find in wrong programs."""

import numpy as np
import pytest
import torch

from istmpi.comm import Backoff
from istmpi.comm.mpi import stand_in
from istmpi.errors import ConfigError, SimulationError
from istmpi.simulated import Faults, simulate

SEEDS = range(30)
BYTE = "BYTE"


def under_all(program, ranks=3):
    return [simulate(program, ranks, Faults(seed)).require() for seed in SEEDS]


def wait_for(requests):
    for request in requests:
        request.wait()


def bytes_of(*values):
    return np.array(values, dtype=np.uint8)


# ---- what MPI promises


def test_messages_of_one_sender_and_tag_do_not_overtake_each_other_and_others_do():
    pairs = [(source, tag) for source in (0, 1) for tag in (7, 8)]

    def program(comm):
        if comm.rank < 2:
            wait_for([comm.mpi.isend(number, 2, tag) for number in (0, 1) for tag in (7, 8)])
            return None
        arrived = []
        backoff = Backoff()
        while len(arrived) < 8:
            backoff.wait_unless(False)
            for pair in pairs:
                while comm.mpi.iprobe(*pair):
                    arrived.append((pair, comm.mpi.irecv(*pair).wait()))
        return arrived

    orders = [results[2] for results in under_all(program)]
    for order in orders:
        assert all([number for its, number in order if its == pair] == [0, 1] for pair in pairs)
    assert len(set(map(tuple, orders))) > 5, "sources and tags overtake each other"


def test_objects_that_arrive_are_the_receivers_own():
    def program(comm):
        mine = [comm.rank]
        comm.allgather(mine)[0].append("changed")
        comm.barrier()
        return mine

    assert simulate(program, 2).require() == [[0], [1]]


def test_every_rank_has_a_random_generator_of_its_own():
    def program(comm):
        torch.manual_seed(comm.rank)
        comm.barrier()
        return torch.rand(1).item()

    before = torch.get_rng_state()
    drawn = [torch.rand(1, generator=torch.Generator().manual_seed(rank)).item() for rank in range(3)]
    assert simulate(program, 3, Faults(1)).require() == drawn
    assert torch.equal(before, torch.get_rng_state())


def racing(comm):
    """A sum in the order of arrival, which is no function of the input."""
    if comm.rank:
        comm.mpi.isend(10.0 ** (8 * comm.rank), 0).wait()
        return 0.0
    total = 1e-9
    for _ in range(comm.size - 1):
        total = total * 0.1 + comm.mpi.recv()
    return total


def test_a_schedule_is_a_function_of_its_seed():
    first, again = ([simulate(racing, 4, Faults(seed)) for seed in SEEDS] for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert (one.results, one.trace, one.seconds) == (other.results, other.trace, other.seconds)
    assert len({outcome.trace for outcome in first}) > len(SEEDS) / 2
    assert len({outcome.results[0] for outcome in first}) > 1, "a race is found"


def test_faults_are_drawn_of_all_kinds_and_told_and_a_slow_rank_is_slow():
    told = " ".join(str(Faults.draw(seed, 4)) for seed in range(40))
    assert all(word in told for word in ("delayed", "stopped for", "slowed", "killed at its call"))
    assert not any(Faults.draw(seed, 4, ["stops", "slow"]).kills for seed in range(40))

    def program(comm):
        for _ in range(50):
            comm.mpi.iprobe()
        return stand_in().now()

    alike, slow = (simulate(program, 2, faults).require() for faults in (Faults(), Faults(slow={1: 100.0})))
    assert alike[1] == alike[0] == slow[0] and slow[1] == pytest.approx(100 * alike[1])


@pytest.mark.parametrize("polls", [False, True])
def test_ranks_that_wait_for_each_other_are_found(polls):
    def crossed(comm):
        request = comm.mpi.irecv(source=1 - comm.rank, tag=5)
        if polls:
            backoff = Backoff()
            while not request.Test():
                backoff.wait_unless(False)
        request.wait()

    with pytest.raises(SimulationError) as found:
        simulate(crossed, 2).require()
    told = str(found.value)
    assert told.startswith("deadlock, the ranks wait for each other: rank 0 in a receive with tag 5 for rank 1 (test_")
    assert "rank 1 in a receive with tag 5 for rank 0 (test_simulated.py:" in told


def test_a_rank_that_leaves_before_the_others_is_named():
    def program(comm):
        if comm.rank != 1:
            comm.barrier()

    message = str(simulate(program, 3).ended)
    assert "rank 0 in Barrier for rank 1 (which has ended)" in message and "rank 2 in Barrier" in message


def test_other_collective_calls_than_the_others_and_messages_of_another_length_are_found():
    message = str(simulate(lambda comm: comm.mpi.Barrier() if comm.rank else comm.allgather(1), 2).ended)
    assert "Barrier" in message and "Alltoallv" in message and "call 1" in message

    def program(comm):
        counts = [1, 2] if comm.rank else [1, 1]
        comm.alltoallv((bytes_of(1, 2), [1, 1], [0, 1]), (np.zeros(4, np.uint8), counts, [0, 2]))

    assert "1 bytes were sent where 2 were expected" in str(simulate(program, 2).ended)


def test_sends_that_rely_on_room_at_the_receiver_are_found():
    def program(comm):
        comm.mpi.Isend([bytes_of(1), BYTE], 1 - comm.rank, 0).wait()
        comm.mpi.Irecv([np.zeros(1, np.uint8), BYTE], 1 - comm.rank, 0).wait()

    outcomes = [simulate(program, 2, Faults(seed)) for seed in SEEDS]
    stuck = [outcome for outcome in outcomes if isinstance(outcome.ended, SimulationError)]
    assert 0 < len(stuck) < len(outcomes), "it works, often"


def test_memory_that_is_touched_while_it_is_sent_is_found():
    def program(comm):
        values = bytes_of(comm.rank)
        if comm.rank:
            comm.mpi.Irecv([values, BYTE], 0, 0).wait()
            return int(values[0])
        request = comm.mpi.Isend([values, BYTE], 1, 0)
        values[0] = 9
        request.wait()

    assert {results[1] for results in under_all(program, 2)} == {0, 9}


def test_an_error_of_one_rank_ends_all_and_one_of_all_does_not():
    def broken(comm):
        if comm.rank == 1:
            raise ValueError("one")
        comm.barrier()

    outcome = simulate(broken, 3)
    assert isinstance(outcome.ended, ValueError) and outcome.ended_by == 1

    def agreed(comm):
        with comm.agreed():
            if comm.rank == 1:
                raise ConfigError("two")

    outcome = simulate(agreed, 3)
    assert outcome.ended is outcome.errors[0] and outcome.ended_by is None
    assert [str(error) for error in outcome.errors] == ["rank 1: two"] * 3
