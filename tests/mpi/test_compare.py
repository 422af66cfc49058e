"""A comparison is fair: same initial network, same batches, evaluations off the clock; and one failure ends nothing."""

import json
import time
from dataclasses import replace

import pytest
from small import on_root, small_run

from istmpi.errors import ConfigError, DivergedError, StoppedError
from istmpi.evaluation.evaluator import Evaluator
from istmpi.methods.base import Method
from istmpi.methods.codistillation import Codistillation
from istmpi.methods.ist import IST
from istmpi.record import RunFolder
from istmpi.report.comparison import OFF_THE_CLOCK
from istmpi.report.curves import read_curves
from istmpi.training import comparison as comparisons
from istmpi.training import loop as train
from istmpi.training import run as whole_run
from istmpi.training import run_record
from istmpi.training.comparison import Comparison, ComparisonWatch

pytestmark = pytest.mark.ranks(only=[2])
NAMES = ("ist", "local-sgd", "data-parallel")


@pytest.fixture
def compared(comm, shared_tmp):
    """``compared(methods, repeats, **settings)`` makes a comparison of small runs in one and the same folder."""

    def make(methods=NAMES, repeats=1, **settings):
        settings = {"output__folder": str(shared_tmp / "comparison"), "train__rounds": 2} | settings
        return Comparison(small_run(**settings), methods, repeats, comm)

    yield make
    comm.barrier()


@pytest.fixture
def rounds_take(comm, monkeypatch):
    """``rounds_take(seconds)``: on the clock of training a round takes so long, an evaluation a thousand times that."""

    def take(seconds):
        now = [0.0]
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])
        _slower(monkeypatch, Method, "attempt", now, seconds)
        _slower(monkeypatch, Evaluator, "score", now, 1000 * seconds)

    return take


def _slower(monkeypatch, kind, name, now, seconds):
    real = getattr(kind, name)

    def slower(self, *arguments, **options):
        outcome = real(self, *arguments, **options)
        now[0] += seconds
        return outcome

    monkeypatch.setattr(kind, name, slower)


@pytest.fixture
def ran(comm, monkeypatch):
    runs = []
    run_training = whole_run.run_training

    def noted(run, *arguments, **settings):
        runs.append(run)
        return run_training(run, *arguments, **settings)

    monkeypatch.setattr(comparisons, "run_training", noted)
    return runs


def test_runs_differ_in_their_method_and_seed_alone(compared, ran):
    """The initial weights and the batches are functions of the seed: tests/unit/test_store.py, test_data_batches.py."""
    assert compared(repeats=2).run_training() == {}
    assert [(run.method.name, run.train.seed) for run in ran] == [(name, seed) for seed in (5, 6) for name in NAMES]
    for run in ran:
        same = {"train.seed": 5, "output.folder": ""}
        assert replace(run.override(same), method=ran[0].method) == ran[0].override(same)


def test_the_rehearsal_leaves_no_trace(compared, shared_tmp, comm):
    compared(NAMES[:2]).run_training()
    rehearsed = compared(NAMES[:2], output__folder=str(shared_tmp / "rehearsed"))
    rehearsed.rehearse()
    assert not rehearsed.folder.exists()
    comm.barrier()
    rehearsed.run_training()
    for turn in rehearsed.turns:
        plain, other = (RunFolder(shared_tmp / name / turn.folder.name) for name in ("comparison", "rehearsed"))
        for one, same in zip(plain.metrics(), other.metrics(), strict=True):
            for fact in ("loss", "bytes", "score", "evaluation_bytes", "saving_bytes"):
                assert one.get(fact) == same.get(fact), fact


def test_the_rehearsal_has_all_that_a_run_will_need(compared, monkeypatch):
    fetched, finished = [], []
    fetch, attempt = Codistillation._fetch_others, IST.attempt
    monkeypatch.setattr(Codistillation, "_fetch_others", lambda *all: fetched.append(True) or fetch(*all))
    monkeypatch.setattr(IST, "attempt", lambda *all: finished.append(True) or attempt(*all))
    compared(["codistillation"], train__rounds=10, method__finish="local-sgd:10%").rehearse()
    assert len(fetched) == len(finished) == 1


def test_a_comparison_stopped_by_a_file_says_that_it_must_be_removed(compared, comm):
    comparison = compared(["ist", "local-sgd"])
    on_root(comm, lambda: comparison.folder.mkdir(parents=True))
    (comparison.folder / "comparison.json").write_text(json.dumps({"ranks": comm.size}))
    (comparison.folder / "STOP").touch()
    with pytest.raises(StoppedError, match=r"^stopped by the file .* Remove .*STOP and run the same command to"):
        comparison.run_training()
    on_root(comm, lambda: (comparison.folder / "STOP").unlink())
    assert compared(["ist", "local-sgd"]).run_training() == {}


def test_a_run_that_was_stopped_says_of_how_many_ranks_and_what_its_score_is(compared, monkeypatch, comm):
    def stopped(*_, **__):
        error = StoppedError("stopped")
        error.everywhere = True
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(run_record.Saver, "save_now", stopped)
        comparison = compared(["ist"])
        with pytest.raises(StoppedError):
            comparison.run_training()
    (curve,) = read_curves([comparison.folder])
    assert (curve.ranks, curve.score_name) == (comm.size, "accuracy") and curve.points


def test_evaluations_are_not_on_the_clock_and_not_in_the_bytes(compared, rounds_take, shared_tmp):
    rounds_take(2.0)
    compared(NAMES[:2], evaluate__every=1).run_training()
    compared(NAMES[:2], evaluate__every=2, output__folder=str(shared_tmp / "rarely")).run_training()
    often, rarely = read_curves([shared_tmp / "comparison"]), read_curves([shared_tmp / "rarely"])
    assert [curve.method for curve in often] == [*NAMES[:2]]
    for one, other in zip(often, rarely):
        assert [point.seconds for point in one.points] == [2.0, 4.0]
        assert one.points[1:] == other.points


def test_a_run_says_how_often_it_evaluates_or_is_evaluated_twenty_times(compared):
    assert {turn.run.evaluate.every for turn in compared(evaluate__every=0, train__rounds=60).turns} == {3}
    assert {turn.run.evaluate.every for turn in compared(evaluate__every=7).turns} == {7}


def test_minutes_end_a_run_that_reaches_nothing(compared, rounds_take, comm):
    """They are a mean over ranks, and so are the phases on the clock, which add up to them."""
    rounds_take(30.0 + comm.rank)
    seconds = 4 * (30.0 + (comm.size - 1) / 2)
    comparison = compared(["ist"], **{"train__rounds": 1000, "train__max_minutes": 1.9})
    assert comparison.run_training() == {}
    (curve,) = read_curves([comparison.folder])
    assert (curve.points[-1].round, curve.points[-1].seconds, curve.problem) == (4, seconds, "")
    on_the_clock = sum(seconds for phase, seconds in curve.phases.items() if phase not in OFF_THE_CLOCK)
    assert on_the_clock == pytest.approx(seconds)
    assert comparison.turns[0].finished
    more = train.Training(comparison.turns[0].run, comm)
    more.resume(comparison.turns[0].folder / "network.h5")
    assert more.done and list(more.rounds()) == []


def test_one_method_that_fails_does_not_end_the_others(compared, monkeypatch, comm):
    attempt = Method.attempt

    def diverges(self, number):
        if self.spec.name != "local-sgd":
            return attempt(self, number)
        error = DivergedError("rank 0: the loss is no longer finite")
        error.everywhere = True
        raise error

    told, watch = [], ComparisonWatch()
    watch.failed = lambda turn, error: told.append(turn.folder.name)
    with monkeypatch.context() as patched:
        patched.setattr(Method, "attempt", diverges)
        comparison = compared()
        comparison.rehearse()
        failures = comparison.run_training(watch)
    assert failures["local-sgd-5"].exit_code == 3
    assert told == [*failures] * (comm.rank == 0)
    problems = {curve.method: curve.problem for curve in read_curves([comparison.folder])}
    assert problems.pop("local-sgd").startswith("failed: rank 0: the loss is no longer finite")
    assert problems == {"data-parallel": "", "ist": ""}
    assert compared().run_training() == {}, "what failed is tried again"
    assert not [curve.problem for curve in read_curves([comparison.folder]) if curve.problem]


def test_a_method_that_cannot_train_the_run_is_refused_before_any_does(compared, comm):
    comparison = compared(["local-sgd", "ist"], model__hidden=[comm.size - 1])
    with pytest.raises(ConfigError, match=f"^ist: hidden1 has {comm.size - 1} units?, but the run has {comm.size}"):
        comparison.rehearse()
    assert not comparison.folder.exists()


def test_narrow_is_local_sgd_of_a_network_as_wide_as_a_subnet(compared, ran):
    """Bit for bit, whatever method the run names, and a report calls it by its word."""
    comparison = compared(["ist", "narrow"], method__name="fedavg", model__hidden=[13, 11])
    comparison.run_training()
    assert [(run.method.name, run.model.hidden) for run in ran] == [("ist", (13, 11)), ("local-sgd", (6, 5))]
    compared(["local-sgd"], model__hidden=[6, 5], output__folder=f"{comparison.folder}/alone").run_training()
    by_hand, control = (RunFolder(comparison.folder / name).metrics() for name in ("alone/local-sgd-5", "narrow-5"))
    assert [line["loss"] for line in control] == [line["loss"] for line in by_hand]
    assert [curve.method for curve in read_curves([comparison.folder])] == ["ist", "narrow"]
    with pytest.raises(ConfigError, match="narrow: mlp has no width that ist would deal out"):
        compared(["narrow"], method__partition=())


def test_a_finished_comparison_takes_on_methods_and_repeats(compared, ran):
    compared(["ist"]).run_training()
    compared(["ist", "local-sgd"], repeats=2).run_training()
    assert [run.output.folder.rpartition("/")[2] for run in ran] == ["ist-5", "local-sgd-5", "ist-6", "local-sgd-6"]


def test_a_folder_of_something_else_is_left_alone(compared, shared_tmp, comm):
    compared(["ist"]).run_training()
    with pytest.raises(ConfigError, match=r"its ist-5 is another run \(optimizer.lr = 0.1 there, 0.2 here\)"):
        compared(["ist"], optimizer__lr=0.2)
    record = shared_tmp / "comparison" / "comparison.json"
    comm.barrier()
    if comm.rank == 0:
        record.write_text(json.dumps({"ranks": 77}))
    with pytest.raises(ConfigError, match=f"it has runs of 77 ranks, but this job has {comm.size}"):
        compared(["ist"])
    if comm.rank == 0:
        record.unlink()
    with pytest.raises(ConfigError, match="not empty and holds no comparison"):
        compared(["ist"])


def test_without_out_the_first_folder_that_fits(compared, shared_tmp, monkeypatch):
    monkeypatch.chdir(shared_tmp)
    first = compared(["ist"], output__folder="")
    assert str(first.folder) == "runs/compare-digits"
    first.run_training()
    assert str(compared(["ist", "local-sgd"], output__folder="").folder) == "runs/compare-digits"
    assert str(compared(["ist"], output__folder="", optimizer__lr=0.2).folder) == "runs/compare-digits-2"
