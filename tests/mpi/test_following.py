"""A run that is followed learns and sends what it does alone, and what is told of it is so."""

import numpy as np
import pytest
from small import small_run, trained

from istmpi.training.loop import Training


@pytest.mark.ranks(only=[2, 3])
@pytest.mark.parametrize("method", ["ist", "fedavg"])
def test_each_ranks_compute_and_wait_are_those_of_its_clock(comm, method):
    training = Training(small_run(method__name=method), comm)
    before = [{}] * comm.size
    for progress in training.rounds():
        now = comm.allgather(dict(training.clock.seconds))
        last = progress.last_round
        for phase, told in (("compute", last.compute), ("wait", last.wait)):
            spent = [of[phase] - earlier.get(phase, 0.0) for of, earlier in zip(now, before)]
            assert told == pytest.approx(spent)
            assert last.phases[phase] == pytest.approx(np.mean(spent))
        before = now


@pytest.mark.ranks(only=[2])
def test_they_come_with_the_gather_that_a_round_has_anyway(comm, monkeypatch):
    """One for the losses, one for what the round took."""
    calls = []
    allgather = comm.allgather
    monkeypatch.setattr(comm, "allgather", lambda value: calls.append(value) or allgather(value))
    training = Training(small_run(method__name="local-sgd"), comm)
    counted = []
    for _ in training.rounds():
        counted.append(len(calls))
        calls.clear()
    assert counted[1:-1] == [2, 2], "behind the last an evaluation follows"


@pytest.mark.ranks(only=[1, 3])
def test_what_a_round_took_adds_up(comm):
    _, progress = trained(comm)
    assert sum(one.last_round.bytes for one in progress) == progress[-1].bytes
    assert [one.local_steps for one in progress] == [3, 6, 9, 12]
    assert [one.examples for one in progress] == [8 * comm.size * one.local_steps for one in progress]
    assert sum(one.last_round.examples for one in progress) == progress[-1].examples
    assert sum(one.last_round.seconds for one in progress) == pytest.approx(progress[-1].seconds)
    assert {one.ranks for one in progress} == {comm.size} and {one.score_name for one in progress} == {"accuracy"}
    assert ["evaluate" in one.last_round.phases for one in progress] == [False, False, False, True]
