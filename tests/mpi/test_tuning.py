"""Settings are chosen on held-out examples, as by a plain loop that trains each value alone."""

import json
from math import ceil

import pytest
from small import on_root, small_run

from istmpi.errors import ConfigError, DivergedError, StoppedError
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.tuning import TunedComparison

pytestmark = pytest.mark.ranks(only=[2])
RATES = (0.001, 0.01, 0.05, 0.25)
ROUNDS = 8


@pytest.fixture
def tuned(comm, shared_tmp):
    """``tuned(methods, repeats, grid, **settings)`` makes a comparison in one and the same folder."""

    def make(methods=("ist",), repeats=1, grid=None, **settings):
        settings = {"output__folder": str(shared_tmp / "tuned"), "train__rounds": ROUNDS} | settings
        return TunedComparison(small_run(**settings), methods, repeats, comm, grid or {"optimizer.lr": RATES})

    yield make
    comm.barrier()


def outcome(comparison):
    return json.loads((comparison.folder / "tuning.json").read_text())["methods"]["ist"]


def scores_alone(comm, lr):
    """Train one rate by itself; return its scores on the validation split after two, four and eight rounds."""
    run = small_run(optimizer__lr=lr, data__validation=0.1, evaluate__every=2, train__rounds=ROUNDS)
    progress = {one.round: one.validation.score for one in Training(run, comm).rounds() if one.validation}
    return [progress[round] for round in (2, 4, 8)]


def choose_alone(scores):
    left = list(scores)
    for rung in range(3):
        left = sorted(left, key=lambda lr: -scores[lr][rung])
        if rung < 2:
            left = left[: max(ceil(len(left) / 2), 2)]
    return left[0]


def test_the_chosen_value_is_that_of_a_loop_which_trains_each_alone(tuned, comm):
    comparison = tuned(repeats=2)
    assert comparison.run_training() == {}
    found = outcome(comparison)
    tried = {trial["values"]["optimizer.lr"]: trial for trial in found["trials"]}
    scores = {lr: scores_alone(comm, lr) for lr in tried}
    for lr, trial in tried.items():
        assert trial["score"] == scores[lr][(2, 4, 8).index(trial["rounds"])]
    first = choose_alone({lr: scores[lr] for lr in RATES})
    assert (first in (RATES[0], RATES[-1])) == (len(tried) == len(RATES) + 1), "an edge is extended once"
    best = choose_alone(scores)
    assert found["chosen"] == {"optimizer.lr": best} and not found["time_is_up"]
    # The repeats train it anew, on all training examples.
    for turn in comparison.turns:
        assert (turn.run.optimizer.lr, turn.run.data.validation, turn.run.evaluate.every) == (best, 0.0, 1000)
        assert "validation_score" not in RunFolder(turn.folder).metrics()[-1]
    assert [turn.folder.name for turn in comparison.turns] == ["ist-5", "ist-6"]


def test_an_edge_is_extended_once(tuned, comm):
    comparison = tuned(grid={"optimizer.lr": (0.005, 0.01)})
    comparison.run_training()
    found = outcome(comparison)
    assert [trial["values"]["optimizer.lr"] for trial in found["trials"]] == [0.005, 0.01, 0.02]
    assert found["on_the_edge"] and found["chosen"] == {"optimizer.lr": 0.02}


def test_a_second_start_goes_on_and_says_the_same(tuned, comm, shared_tmp, monkeypatch):
    # A whole comparison may be shorter than the second between two looks for the file.
    monkeypatch.setattr("istmpi.comm.stopping._SECONDS_BETWEEN_LOOKS", 0.0)
    whole = tuned(output__folder=str(shared_tmp / "whole"))
    whole.run_training()

    def stopping(comparison, after):
        train = comparison._train_to
        calls = []

        def counted(*arguments):
            calls.append(True)
            if len(calls) == after:
                on_root(comm, (comparison.folder / "STOP").touch)
            train(*arguments)

        comparison._train_to = counted
        return comparison

    for after in (3, 4):
        comparison = stopping(tuned(), after)
        with pytest.raises(StoppedError, match="stopped by the file"):
            comparison.run_training()
        on_root(comm, (comparison.folder / "STOP").unlink)
    again = tuned()
    assert again.run_training() == {}
    one, other = outcome(whole), outcome(again)
    for trial in (*one["trials"], *other["trials"]):
        del trial["seconds"]
    assert one == other
    one, other = (RunFolder(comparison.folder / "ist-5").metrics() for comparison in (whole, again))
    assert [(line["loss"], line["bytes"]) for line in one] == [(line["loss"], line["bytes"]) for line in other]
    finished = tuned()
    finished._train_to = None  # nothing is trained twice
    finished.run_training()


def test_a_value_that_diverges_is_not_chosen(tuned):
    comparison = tuned(grid={"optimizer.lr": (0.05, 1e30)}, model__norm="none")
    assert comparison.run_training() == {}
    found = outcome(comparison)
    assert found["chosen"] == {"optimizer.lr": 0.05} and "finite" in found["trials"][1]["problem"]
    comparison = tuned(grid={"optimizer.lr": (1e29, 1e30)}, model__norm="none", output__folder=f"{comparison.folder}-2")
    assert isinstance(comparison.run_training()["ist"], DivergedError) and comparison.turns == []


def test_minutes_end_trials_but_decide_nothing(tuned):
    """Each method has as many, half of them for its trials."""
    comparison = tuned(("ist", "local-sgd"), 2, train__max_minutes=8.0)
    assert {turn.run.train.max_minutes for turn in comparison.turns} == {1.0} and comparison._seconds == 120
    little = tuned(train__max_minutes=1e-9, output__folder=f"{comparison.folder}-2")
    assert "too few for 2 rounds of one. Give more minutes" in str(little.run_training()["ist"])
    found = outcome(little)
    assert found["time_is_up"] and [trial["rounds"] for trial in found["trials"]] == [1, 0, 0, 0]


def test_what_cannot_be_chosen_or_compared_is_refused(tuned):
    with pytest.raises(ConfigError, match="--tune model.hidden does not go with narrow"):
        tuned(("ist", "narrow"), grid={"model.hidden": ((16,), (32,))})
    with pytest.raises(ConfigError, match=r"optimizer.lr = -1"):
        tuned(grid={"optimizer.lr": (-1, 0.1)})
    with pytest.raises(ConfigError, match=r"ist: hidden1 has 1 unit, but the run has 2 ranks"):
        tuned(grid={"model.hidden": ((16,), (1,))}).rehearse()
    tuned(grid={"optimizer.lr": (0.1, 0.2, 0.4)}).run_training()
    with pytest.raises(ConfigError, match=r"chosen from other values \(--tune\)"):
        tuned()
    with pytest.raises(ConfigError, match=r"is another run \(train.batch = 8 there, 4 here"):
        tuned(grid={"optimizer.lr": (0.1, 0.2, 0.4)}, train__batch=4)
