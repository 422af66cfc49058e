"""A run that is followed learns and sends what it does alone, and what is told of it is so."""

import json
import re
from collections import defaultdict

import h5py
import numpy as np
import pytest
from small import small_run, trained

from istmpi.errors import ConfigError
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.run import run_training
from istmpi.training.watch import Watch

pytestmark = pytest.mark.real

OF_IST = {"deal", "hop", "pull", "compute", "wait", "push", "evaluate", "save"}
OF_DATA_PARALLEL = {"compute", "all-reduce", "wait", "push", "evaluate", "save"}
OUTSIDE = {"evaluate", "save"}
"""Phases after a round."""


@pytest.fixture
def run_in(shared_tmp, comm):
    """``run_in("name", profile=None, watch=None, **settings)`` carries a run out in a folder, which it returns."""

    def run(name, profile=None, watch=None, **settings):
        settings = {"checkpoint__every": 2, "evaluate__every": 2, "output__folder": str(shared_tmp / name), **settings}
        run_training(small_run(**settings), comm, watch, profile=profile)
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


@pytest.mark.ranks(only=[2, 4])
@pytest.mark.parametrize("method, phases", [("ist", OF_IST), ("data-parallel", OF_DATA_PARALLEL)])
def test_a_trace_has_the_phases_and_messages_of_every_rank_and_changes_no_bit(run_in, comm, method, phases):
    alone = run_in("alone", method__name=method)
    folder = run_in("profiled", profile=2, method__name=method)
    assert learnt(folder) == learnt(alone)
    assert not list(alone.glob("trace*"))

    trace = json.loads((folder / "trace-round-2.json").read_text())
    events = trace["traceEvents"]
    assert {event["pid"] for event in events} == set(range(comm.size))
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [named[rank].split(" on ")[0] for rank in range(comm.size)] == [f"rank {rank}" for rank in range(comm.size)]
    sent = 0
    for rank in range(comm.size):
        mine = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
        ranges = [event for event in mine if event.get("cat") == "user_annotation"]
        assert phases <= {event["name"] for event in ranges}
        (whole,) = [event for event in ranges if event["name"] == "round 2"]
        start, end = whole["ts"], whole["ts"] + whole["dur"]
        assert all(
            (start <= event["ts"] and event["ts"] + event["dur"] <= end + 1) != (event["name"] in OUTSIDE)
            for event in ranges
            if event["name"] in phases
        )
        assert any(event["name"] == "aten::mm" or event["name"] == "aten::addmm" for event in mine)
        calls = [event for event in mine if event.get("cat") == "mpi"]
        assert calls and all(event["tid"] == "MPI" for event in calls)
        sent += sum(event["args"]["bytes"] for event in calls if event["ts"] < end)
    assert sent == RunFolder(folder).metrics()[1]["round_bytes"]


@pytest.mark.ranks(only=[1, 2])
def test_a_round_that_a_run_does_not_have_cannot_be_profiled(run_in, shared_tmp):
    for round in (0, 5, -1):
        with pytest.raises(ConfigError, match=rf"--profile {round}: the run has rounds 1 to 4"):
            run_in("refused", profile=round)
    assert not (shared_tmp / "refused").exists()


@pytest.mark.ranks(only=[2])
def test_a_trace_that_cannot_be_written_is_no_reason_to_fail(run_in, comm):
    class Watcher(Watch):
        said = ()

        def started(self, training, folder, saver):
            (folder.path / "trace-round-3.json").mkdir()

        def noticed(self, message):
            self.said += (message,)

    watch = Watcher()
    folder = run_in("run", profile=3, watch=watch)
    assert len(RunFolder(folder).metrics()) == 4
    assert len(watch.said) == (comm.rank == 0) and all("The run goes on" in message for message in watch.said)


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
