"""Which trial of a setting is chosen: halving by rounds, what happens when time is up, and the value beyond an edge."""

import json
from dataclasses import replace
from math import ceil

import pytest
from curves import curve
from hypothesis import given
from hypothesis import strategies as st

from istmpi.report.comparison import compare
from istmpi.report.sheets import sheets
from istmpi.report.tuning import read_tunings
from istmpi.training.trials import FINALISTS, TimeIsUpError, find_next, halve, list_beyond, list_rungs, list_values

RATES = {"optimizer.lr": (0.01, 0.03, 0.1)}


@given(st.permutations(range(9)), st.integers(1, 40), st.booleans())
def test_halving_never_drops_the_best_of_scores_whose_order_stays(order, rounds, higher):
    sign = 1 if higher else -1
    asked = []

    def score(item, rung):
        asked.append((rung, item))
        return sign * order[item] * rung

    ranked = halve(range(len(order)), list_rungs(rounds), score, higher)
    assert order[ranked[0]] == max(order) and len(asked) == len({*asked})
    counts = [sum(rung == other for other, _ in asked) for rung in list_rungs(rounds)]
    assert counts[0] == 9 and all(more == max(ceil(n / 2), FINALISTS) for n, more in zip(counts, counts[1:]))


@pytest.mark.parametrize("until, best", [(0, None), (2, 1), (3, 2), (6, 2), (7, 1)])
def test_when_time_is_up_the_last_rung_that_all_finished_decides(until, best):
    """Trials 1 and 2 go on; 2 leads at first, 1 in the end. Time is up after so many scores."""
    scores = iter([*(0.1, 0.2, 0.3), *(0.9, 0.4), *(0.5, 0.9)])
    done = []

    def score(item, rung):
        if len(done) == until:
            raise TimeIsUpError
        done.append(item)
        return next(scores)

    assert halve([0, 1, 2], [1, 2, 4], score, higher_is_better=True)[:1] == ([] if best is None else [best])


def test_a_trial_without_a_score_is_never_chosen():
    assert halve("abc", [1, 2, 4], lambda item, rung: None if item < "c" else 0.0, False) == ["c"]
    assert halve("abc", [1, 2, 4], lambda item, rung: None, True) == []


def test_the_next_value_is_as_far_as_the_neighbour():
    assert [find_next(value, (0.1, 0.01, 0.03)) for value in (0.01, 0.03, 0.1)] == [0.00333, None, 0.333]
    assert [find_next(value, (5, 20)) for value in (5, 20)] == [1, 80]
    assert find_next(1, (1, 2)) is None and find_next(2, (1, 2)) == 4, "no whole number below 1"
    for values in ((0.0, 0.9), ("sgd", "adam"), (True, False), ((32,), (64,)), (3,)):
        assert find_next(values[-1], values) is None
    tried = [{"a": a, "b": b} for a in (1.0, 2.0) for b in (1.0, 3.0, 9.0)]
    assert list_beyond({"a": 2.0, "b": 3.0}, tried) == [{"a": 4.0, "b": 3.0}]


def test_a_method_has_only_the_settings_that_it_reads():
    grid = {**RATES, "method.redeal": (0.1, 1.0)}
    counts = {name: len(list_values(name, grid)) for name in ("ist", "local-sgd")}
    assert counts == {"ist": 6, "local-sgd": 3}


def test_a_report_says_what_was_chosen_stopped_and_not_finished(tmp_path):
    trial = {"rounds": 8, "score": 0.5, "seconds": 1.0, "problem": ""}
    diverged = {"rounds": 3, "problem": "no longer finite"}
    outcomes = [{}, {"score": 0.75}, {"rounds": 2}, diverged, {"rounds": 0, "score": None}]
    trials = [trial | {"values": {"optimizer.lr": 10.0**place}} | more for place, more in enumerate(outcomes)]
    choice = {"chosen": {"optimizer.lr": 10.0}, "on_the_edge": True, "time_is_up": False, "trials": trials}
    late = {"chosen": None, "on_the_edge": False, "time_is_up": True, "trials": trials[2:3]}
    methods = {"ist": choice, "narrow": late}
    tree = {"settings": ["optimizer.lr"], "score_name": "accuracy", "rounds": 8, "methods": methods}
    (tmp_path / "tuning.json").write_text(json.dumps(tree))
    (tuning,) = read_tunings([tmp_path, tmp_path / "elsewhere"])
    sheet = sheets(replace(compare([curve("ist", [0.5])]), tunings=(tuning,)))[-1]
    assert sheet.title == "Choice of optimizer.lr: accuracy on held-out examples"
    assert (sheet.columns, sheet.rows) == (
        ("ist", "narrow"),
        (
            ("1.0", ("0.5000", "")),
            ("10.0", ("0.7500\nchosen", "")),
            ("100.0", ("0.5000\nstopped after round 2", "0.5000\nnot finished: round 2")),
            ("1000.0", ("0.5000\ndiverged after round 3", "")),
            ("10000.0", ("not tried", "")),
        ),
    )
    said = " ".join(tuning.notes)
    assert "ist: its value is on the edge" in said and "narrow: its minutes ended" in said
