"""A rank lost at any call of MPI, on simulated ranks: the others go on with all that is left, or the job ends."""

import itertools
import random
import shutil
from dataclasses import replace

import pytest
from lost_ranks import (
    APART,
    BEFORE,
    IN_TIME,
    LATE,
    RECOVERING,
    SET_UP,
    SPLIT,
    TOGETHER,
    TOO_MANY,
    Survived,
    calls_of_mpi,
)
from small import small_run

from istmpi.checkpoint.saver import Saver
from istmpi.comm.simulated import KILLED, Faults, Kill, Split, simulate
from istmpi.errors import ConfigError, SimulationError, StuckError
from istmpi.methods import METHODS
from istmpi.training import survival
from istmpi.training.run import run_training
from istmpi.training.simulation import Schedules, simulated_training
from istmpi.training.watch import Watch

SHORT = {"train__rounds": 3, "method__local_steps": 2, "evaluate__every": 1}


@pytest.fixture(scope="module")
def three():
    return Survived(small_run(**SHORT), 3)


@pytest.fixture(scope="module")
def five():
    return Survived(small_run(**SHORT), 5)


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


def test_a_further_loss_while_the_others_recover_is_survived(five):
    five.seen.clear()
    first = Kill(0, 300)
    recovery = five.recovery(first, 1)
    kills = [(rank, call) for rank, (begins, ends) in recovery.items() for call in range(begins + rank, ends + 30, 43)]
    findings = [five.finding([first, Kill(*kill, bool(number % 2))], 1) for number, kill in enumerate(kills)]
    assert findings == [""] * len(kills)
    assert five.seen[RECOVERING] > five.seen[APART] > 0 == five.seen[TOO_MANY]


def test_of_a_split_network_one_part_at_most_goes_on(five):
    """More than half; the others end, and harm nothing: the network is what those left make of theirs."""
    five.seen.clear()
    drawn = random.Random("splits")
    for number, call in enumerate(range(150, min(five.calls), 53)):
        away = drawn.sample(range(5), drawn.choice((1, 2, 3)))
        assert five.finding([], number, splits=[Split(away, drawn.randrange(5), call)]) == "", (away, call)
    assert five.seen[SPLIT] > 4 < five.seen[TOGETHER] and not five.seen[TOO_MANY]


def test_a_network_that_splits_while_a_loss_or_a_split_is_got_over(five):
    five.seen.clear()
    drawn = random.Random("more splits")
    first = Kill(1, 300), Split([1], 1, 300)
    recovery = five.recovery(first[0], 1)
    for number in range(10):
        rank = drawn.choice(list(recovery))
        then = Split(drawn.sample([0, 2, 3, 4], drawn.choice((1, 2))), rank, drawn.randint(*recovery[rank]))
        kills, splits = ([first[0]], [then]) if number % 2 else ([], [first[1], then])
        assert five.finding(kills, 1, splits=splits) == "", (kills, splits)
    assert five.seen[SPLIT] == 10 > five.seen[TOO_MANY] > 0


def test_of_two_lost_ranks_one_may_be_told_of_by_its_copy_of_the_round_and_the_other_by_none(five):
    splits = [Split([3, 1, 4], 2, 419), Split([4, 3, 1, 0], 4, 437)]
    late = five.seen[TOGETHER]
    assert five.finding([], 44, splits=splits) == ""
    assert five.seen[TOGETHER] == late + 1


def test_who_waits_for_a_rank_that_could_not_make_a_communicator_looks_for_losses(five):
    """All others have made it, and its revocation cannot reach them there."""
    splits = [Split([4, 2, 3, 1], 4, 519), Split([0, 2, 1, 4], 3, 614)]
    assert five.finding([], 123, splits=splits) == ""


def test_of_two_halves_the_one_with_the_first_rank_goes_on():
    for ranks, some in (2, ([0], [1])), (4, ([1, 2], [0, 3])):
        of_those = Survived(small_run(**SHORT), ranks)
        for away, call in zip(some, (240, 300)):
            assert of_those.finding([], call, splits=[Split(away, 0, call)]) == ""
        assert of_those.seen[SPLIT] == 2 and not of_those.seen[TOO_MANY]


def test_where_most_are_lost_the_others_end_and_are_resumed(tmp_path):
    """For all they know those are at work."""
    run = small_run(**SHORT, comm__survive=True, checkpoint__every=1)
    for lost, left in ([1, 2], [0]), ([0, 1, 2], [3, 4]), ([0], [1]):
        ranks = len(lost) + len(left)
        folder = tmp_path / str(ranks)
        here = run.override({"output.folder": str(folder)})
        outcome = simulated_training(here, ranks, Faults(kills=[Kill(rank, 300) for rank in lost]))
        assert outcome.dead == {*lost} and outcome.ended is None
        for rank in left:
            error = outcome.errors[rank]
            assert isinstance(error, StuckError) and error.exit_code == 76
            assert f"the job ends: {len(left)} of {ranks} ranks have lost the others" in str(error)
            assert "or half of them with rank 0. The same command with --resume auto " in str(error)
        assert not (folder / "summary.json").exists()
        (summary, *_) = simulated_training(here, len(left), Faults(), resume="auto").require()
        assert summary.last.round == 3


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
