"""A rank lost at any call of MPI, on simulated ranks: the others go on with all that is left, or the job ends."""

import itertools
import random
import shutil
from dataclasses import replace

import pytest
from lost_ranks import APART, BEFORE, IN_TIME, LATE, RECOVERING, SET_UP, Survived, calls_of_mpi
from small import small_run

from istmpi.checkpoint.saver import Saver
from istmpi.comm.simulated import KILLED, Faults, Kill, simulate
from istmpi.errors import ConfigError, SimulationError
from istmpi.methods import METHODS
from istmpi.training import survival
from istmpi.training.run import run_training
from istmpi.training.simulation import Schedules, simulated_training
from istmpi.training.watch import Watch

SHORT = {"train__rounds": 3, "method__local_steps": 2, "evaluate__every": 1}


@pytest.fixture(scope="module")
def three():
    return Survived(small_run(**SHORT), 3)


def test_a_rank_lost_at_any_call_takes_but_its_own_part_of_the_round_with_it(three):
    """Every 61st call of each rank, before it does anything or when its part is posted, each under another schedule."""
    kills = [(rank, call) for rank in range(3) for call in range(9 + 17 * rank, three.calls[rank], 61)]
    findings = [
        three.finding([Kill(rank, call, bool(number % 2))], number) for number, (rank, call) in enumerate(kills)
    ]
    assert findings == [""] * len(kills)
    assert three.seen[SET_UP] < len(kills) / 3 < three.seen[IN_TIME]


def test_before_a_round_and_before_its_copies_have_arrived(three):
    """Rare: losses at the beginning of a round are tried until both have been met."""
    three.seen.clear()
    findings = []
    for seed, (rank, call) in enumerate(itertools.product(range(3), range(150, 230, 3))):
        findings.append(three.finding([Kill(rank, call, True)], seed))
        if three.seen[BEFORE] and three.seen[LATE]:
            break
    assert three.seen[BEFORE] and three.seen[LATE]
    assert findings == [""] * len(findings)


def test_a_further_loss_while_the_others_recover_is_survived(three):
    three.seen.clear()
    first = Kill(0, 300)
    recovery = three.recovery(first, 1)
    kills = [(rank, call) for rank, (begins, ends) in recovery.items() for call in range(begins + rank, ends + 30, 23)]
    findings = [three.finding([first, Kill(*kill, bool(number % 2))], 1) for number, kill in enumerate(kills)]
    assert findings == [""] * len(kills)
    assert three.seen[RECOVERING] > three.seen[APART] > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"method__redeal": 0.5, "optimizer__momentum": 0.9, "method__optimizer_state": "carry", "optimizer__lr": 0.01},
        {"method__partition": ["hidden2"]},
    ],
    ids=["part redealt, momentum carried", "one group dealt"],
)
def test_eight_ranks(settings):
    eight = Survived(small_run(**SHORT, **settings), 8)
    kill = Kill(random.Random(str(settings)).randrange(8), 400, True)
    assert eight.finding([kill], 1) == "", kill


@pytest.mark.parametrize("method", [name for name, spec in METHODS.items() if spec.survives and name != "ist"])
def test_methods_with_the_whole_network_on_every_rank(method):
    of_three = Survived(small_run(**SHORT, method__name=method), 3)
    calls = [of_three.calls[1] * share // 10 for share in (5, 8)]
    assert [of_three.finding([Kill(1, call, True)], call) for call in calls] == [""] * len(calls)


def test_who_learns_of_a_loss_as_the_copies_set_out_still_takes_its_local_steps(three):
    """A slow rank knows that its buddy is gone before it begins to send to it."""
    three.seen.clear()
    calls = range(300, 312, 3)
    assert [three.finding([Kill(0, call, True)], 69, slow=[2]) for call in calls] == [""] * len(calls)
    assert three.seen[IN_TIME] + three.seen[LATE] == len(calls)


def test_what_is_lost_with_more_than_the_lost_rank_is_found(three, monkeypatch):
    """The oracle notices survivors that forget what they have trained."""
    planned = survival.planned
    monkeypatch.setattr(survival, "planned", lambda *known: replace(planned(*known), layers=()))
    assert "is not what is left" in three.finding([Kill(1, 300)])


def test_a_copy_that_is_not_taken_is_found(three, monkeypatch):
    monkeypatch.setattr("istmpi.methods.survival.Survival.take_what_arrived", lambda survival: None)
    assert "" not in [three.finding([Kill(1, call)]) for call in (260, 330)]


def test_a_schedule_with_a_loss_is_repeated_by_its_seed(tmp_path):
    """No thread of a rank's own has a part in it."""
    run = small_run(**SHORT, comm__survive=True)
    traces = set()
    for number in range(2):
        outcome = simulated_training(
            run.override({"output.folder": str(tmp_path / str(number))}), 3, Faults(7, kills=[Kill(2, 300)])
        )
        assert outcome.dead == {2} and [bool(result) for result in outcome.results] == [True, True, False]
        traces.add(outcome.trace)
    assert len(traces) == 1


class Told(Watch):
    """What a watch is told, in order."""

    def __init__(self):
        self.words = []

    def started(self, training, folder, saver):
        self.words.append("started")

    def progressed(self, progress):
        self.words.append(progress.round)

    def noticed(self, message):
        self.words.append(message)

    def finished(self, summary):
        self.words.append("finished")


@pytest.mark.parametrize("lost", [0, 1])
def test_the_watch_of_simulated_ranks_follows_the_run_without_any_of_them(tmp_path, lost):
    run = small_run(**SHORT, comm__survive=True).override({"output.folder": str(tmp_path / "run")})
    told = Told()
    outcome = simulated_training(run, 3, Faults(kills=[Kill(lost, 300)]), told)
    assert outcome.dead == {lost} and outcome.ended is None
    assert [word for word in told.words if isinstance(word, int)] == [1, 2, 3]
    assert told.words.count("started") == (1 if lost else 2) and told.words[-1] == "finished"
    assert any(str(word).startswith(f"rank {lost} on ") and "was lost in round" in str(word) for word in told.words)


def test_what_nobody_has_goes_on_as_in_the_checkpoint_the_run_began_with(tmp_path, monkeypatch):
    """Also where that lies in another folder and none is in the run's own yet."""
    run = small_run(**SHORT, comm__survive=True, comm__buddies=False)
    first, second = (run.override({"output.folder": str(tmp_path / name)}) for name in ("first", "second"))
    stop = first.override({"train.rounds": 1, "checkpoint.every": 1})
    simulated_training(stop, 3, Faults()).require()
    start = tmp_path / "first" / "network.h5"

    calls, save = [], Saver.save
    monkeypatch.setattr(Saver, "save", lambda *arguments: (calls.append(calls_of_mpi()), save(*arguments)))
    simulated_training(second, 3, Faults(), resume=str(start)).require()
    shutil.rmtree(tmp_path / "second")
    told = Told()
    outcome = simulated_training(second, 3, Faults(kills=[Kill(1, calls[0] + 3)]), told, str(start))
    assert outcome.dead == {1} and outcome.ended is None
    assert any(f"as {start} has it" in str(word) for word in told.words), told.words


def test_a_loss_in_set_up_ends_the_job_in_one_line(tmp_path):
    run = small_run(**SHORT, comm__survive=True).override({"output.folder": str(tmp_path / "run")})
    outcome = simulated_training(run, 3, Faults(kills=[Kill(1, 50)]))
    assert outcome.ended.exit_code == KILLED
    with pytest.raises(SimulationError, match="^rank 1 was killed in .*, its call 50; another rank could not go on"):
        outcome.require()


def test_simulated_ranks_that_end_with_any_of_them_refuse_to_survive(tmp_path):
    run = small_run(**SHORT, comm__survive=True).override({"output.folder": str(tmp_path / "run")})
    for outcome in [simulate(lambda comm: run_training(run, comm), 2)]:
        assert isinstance(outcome.errors[0], ConfigError)
        assert str(outcome.errors[0]).startswith("comm.survive = true: these simulated ranks end with any of them. ")


def test_schedules_are_of_jobs_that_end_with_a_rank():
    schedules = Schedules(small_run(train__rounds=2, comm__survive=True), 2, ("kills",))
    assert [schedule.finding for schedule in schedules.run(range(4))] == [""] * 4
