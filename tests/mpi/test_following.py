"""A run that is followed learns and sends what it does alone, and what is told of it is so."""

import re
from collections import defaultdict

import h5py
import numpy as np
import pytest
from small import small_run, trained

from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.run import run_training

pytestmark = pytest.mark.real

OUTSIDE = {"evaluate", "save"}
"""Phases after a round."""


@pytest.fixture
def run_in(shared_tmp, comm):
    """``run_in("name", **settings)`` carries a run out in a folder, which it returns."""

    def run(name, **settings):
        settings = {"checkpoint__every": 2, "evaluate__every": 2, "output__folder": str(shared_tmp / name), **settings}
        run_training(small_run(**settings), comm)
        comm.barrier()
        return shared_tmp / name

    return run


def learnt(folder):
    """What a run learnt and sent: losses and bytes of its rounds, and every tensor of its network."""
    figures = [(line["loss"], line["bytes"]) for line in RunFolder(folder).metrics()]
    tensors = {}
    with h5py.File(folder / "network.h5") as file:
        file["model"].visititems(
            lambda name, item: tensors.update({name: item[...].tobytes()}) if isinstance(item, h5py.Dataset) else None
        )
    assert tensors
    return figures, tensors


LINE = re.compile(
    r"\[rank (\d+)\] round (\d+), ([\w -]+): ([\w -]+?)( x \d+)?, (\d+) bytes, (\d+\.\d+) s, ([\d.]+|-) MB/s"
)


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize("method", ["ist", "data-parallel", "dynamic-averaging"])
def test_a_line_for_each_rank_round_and_transfer(run_in, comm, capfd, monkeypatch, method):
    monkeypatch.setenv("ISTMPI_DEBUG", "1")
    folder = run_in("told", method__name=method)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[rank")]
    monkeypatch.delenv("ISTMPI_DEBUG")
    assert learnt(folder) == learnt(run_in("alone", method__name=method))
    assert "[rank" not in capfd.readouterr().err
    sent = defaultdict(int)
    for line in lines:
        rank, round, phase, _, _, nbytes, seconds, rate = LINE.fullmatch(line).groups()
        assert int(rank) == comm.rank
        if float(seconds) > 1e-4:
            assert float(rate) == pytest.approx(int(nbytes) / float(seconds) / 1e6, rel=0.01, abs=0.1)
        if phase not in OUTSIDE:
            sent[int(round)] += int(nbytes)
    per_rank = comm.allgather(sent)
    metrics = RunFolder(folder).metrics()
    assert [sum(of[line["round"]] for of in per_rank) for line in metrics] == [line["round_bytes"] for line in metrics]


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
    assert sum(one.last_round.examples for one in progress) == progress[-1].examples
    assert sum(one.last_round.seconds for one in progress) == pytest.approx(progress[-1].seconds)
    assert {one.ranks for one in progress} == {comm.size} and {one.score_name for one in progress} == {"accuracy"}
    assert ["evaluate" in one.last_round.phases for one in progress] == [False, False, False, True]
