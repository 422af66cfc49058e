"""The simulated MPI where ranks are lost, or cut off: who fails, who agrees, and who goes on."""

import numpy as np
import pytest

from istmpi.comm import Backoff
from istmpi.comm.simulated import Faults, Kill, Split, simulate
from istmpi.comm.simulated.requests import ERR_PROC_FAILED, ERR_REVOKED, MPIError
from istmpi.comm.stand_in import stand_in

SEEDS = range(30)


def test_a_lost_rank_ends_the_job_with_a_word():
    def program(comm):
        for _ in range(5):
            comm.mpi.Barrier()

    outcome = simulate(program, 3, Faults(2, kills=[Kill(rank=1, call=3)]))
    assert str(outcome.ended) == "rank 1 was killed in Barrier, its call 3; the job ended, as a launcher ends it."
    assert outcome.ended.exit_code == 137 and outcome.dead == {1}


def require(error, *classes):
    """A wrong error would end the job."""
    if error.Get_error_class() not in classes:
        raise error


def recovering(comm):
    """Sums over all ranks, again and again; who meets a loss revokes, agrees, shrinks and goes on with the others."""
    world, rounds, seen, lost = comm.mpi, 0, [], False
    while rounds < 4:
        try:
            values = np.array([1 << comm.rank], np.int64)
            request = world.Iallreduce(stand_in().IN_PLACE, values)
            while not request.Test():
                Backoff().wait_unless(False)
            through = True
        except MPIError as error:
            require(error, ERR_PROC_FAILED, ERR_REVOKED)
            world.Revoke()
            through = False
        while True:
            world.Ack_failed()
            try:
                through = bool(world.Agree(int(through)))
                break
            except MPIError as error:
                require(error, ERR_PROC_FAILED)
        if through:
            rounds += 1
            seen.append(int(values[0]))
        else:
            world = world.Shrink()
            lost = True
    return seen, world.size, lost


@pytest.mark.parametrize("posted", [False, True])
def test_the_others_of_a_lost_rank_agree_whenever_it_is_lost(posted):
    """Every rank is killed at each of its calls, under several seeds: what is left has the same sums on all."""
    whole = simulate(recovering, 3).calls
    met, sizes = 0, set()
    for rank in range(3):
        for call in range(1, whole[rank] + 1):
            outcome = simulate(recovering, 3, Faults(call, kills=[Kill(rank, call, posted)]), survives=True)
            assert outcome.ended is None, outcome.ended
            left = [result for its, result in enumerate(outcome.results) if its not in outcome.dead]
            assert len(left) == 3 - len(outcome.dead)
            assert all(one == left[0] for one in left)
            sums, size, lost = left[0]
            without = 7 - (1 << rank)
            assert sums == sorted(sums, reverse=True) and set(sums) <= {7, without}
            met += lost
            sizes.add(size)
    assert met > 10 and sizes == {2, 3}


@pytest.mark.parametrize("call", range(1, 60, 7))
def test_the_parts_of_a_network_that_splits_go_on_by_themselves(call):
    """Each takes the other's ranks for lost; nothing passes between them, and none is in both."""

    def program(comm):
        comm.guard()
        numbers = []
        while len(numbers) < 20:
            try:
                numbers.append(sorted(comm.allgather(comm.ranks[comm.rank])))
                if comm.rank == 0:
                    for peer in range(1, comm.size):
                        comm.exchange(peer, np.array([comm.ranks[0]]), np.zeros(1, int))
                else:
                    first = np.zeros(1, int)
                    comm.exchange(0, np.array([comm.rank]), first)
                    assert first[0] == comm.ranks[0]
                if len(numbers) < 20 or comm.agree(True):
                    continue
            except Exception as error:
                if not comm.tells_of_a_loss(error):
                    raise
            comm.revoke()
            comm.shrink()
            numbers = []
        return tuple(comm.ranks), numbers

    for seed in SEEDS:
        outcome = simulate(program, 5, Faults(seed, splits=[Split([0, 3], 2, call)]), survives=True)
        parts = [ranks for ranks, _ in outcome.require()]
        assert parts == [(0, 3), (1, 2, 4), (1, 2, 4), (0, 3), (1, 2, 4)], outcome.happened
        assert all(numbers == [list(ranks)] * 20 for ranks, numbers in outcome.results)
        assert outcome.happened[0].startswith("the network between ranks 0, 3 and the others broke as rank 2 was in ")


def test_a_second_loss_while_recovering_hangs_nobody():
    ends = set()
    for seed in range(60):
        kills = [Kill(seed % 4, 5 + seed % 9), Kill((seed + 1) % 4, 9 + seed % 13, posted=bool(seed % 2))]
        outcome = simulate(recovering, 4, Faults(seed, kills=kills), survives=True)
        assert outcome.ended is None, (seed, outcome.ended)
        left = [result for rank, result in enumerate(outcome.results) if rank not in outcome.dead]
        assert all(one == left[0] for one in left)
        ends.add(len(left))
    assert 2 in ends


def test_who_receives_from_a_lost_rank_gets_what_it_sent_or_an_error():
    def program(comm):
        if comm.rank == 1:
            comm.mpi.isend("here", 0)
            comm.mpi.recv(source=0)
        try:
            first = comm.mpi.recv(source=1)
            second = comm.mpi.recv(source=1)
        except MPIError as error:
            return error.Get_error_class()
        return first, second

    kill = Kill(rank=1, call=2)
    seen = {simulate(program, 2, Faults(seed, kills=[kill]), survives=True).results[0] for seed in SEEDS}
    assert seen == {ERR_PROC_FAILED}


def test_after_a_revocation_everything_fails_but_the_agreement():
    def program(comm):
        mine = comm.mpi.Dup()
        if comm.rank == 0:
            mine.Revoke()
        classes = []
        for call in (mine.Barrier, lambda: mine.recv(source=(comm.rank + 1) % 3), lambda: mine.send(1, 0)):
            try:
                call()
            except MPIError as error:
                classes.append(error.Get_error_class())
        agreed = mine.Agree(5 | comm.rank << 1)
        again = mine.Shrink()
        return classes, mine.Is_revoked(), agreed, again.size, again.allgather(comm.rank)

    for results in [simulate(program, 3, Faults(seed)).require() for seed in SEEDS]:
        assert results == [([ERR_REVOKED] * 3, True, 5, 3, [0, 1, 2])] * 3
