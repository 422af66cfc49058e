"""What a comparison says of runs: when a score is reached, medians and spread over repeats, ratios, and the table."""

import json
import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
import torch
from curves import curve

from istmpi.config import Run
from istmpi.errors import ConfigError, DataError
from istmpi.multilabel import Labels
from istmpi.record import FAILURE, RunFolder
from istmpi.report.comparison import NOT_REACHED, Spread, compare, default_targets, find_reached, smooth
from istmpi.report.curves import read_curves
from istmpi.report.sheets import notes, sheets, verdict
from istmpi.tasks import TASKS, higher_is_better

FAST = [0.5, 0.7, 0.8, 0.9]
SLOW = [0.2, 0.4, 0.6, 0.8]


def test_one_lucky_evaluation_reaches_nothing():
    """A score is smoothed with its two neighbours."""
    for count in (0, 1, 2, 50):
        scores = np.random.default_rng(0).random(count).tolist()
        last = count - 1
        assert smooth(scores) == [median(scores[i - 1 : i + 2]) if 0 < i < last else scores[i] for i in range(count)]
    lucky = curve("ist", [0.1, 0.9, 0.2, 0.3, 0.6, 0.7])
    assert find_reached(lucky.points, 0.5).round == 5 and find_reached(lucky.points, 0.8) is None
    assert find_reached(lucky.points, 0.7).round == 6, "the last evaluation counts as it is"


def test_an_error_is_reached_from_above():
    assert find_reached(curve("ist", [0.9, 0.5, 0.4, 0.3]).points, 0.5, higher_is_better=False).round == 2
    found = compare([curve("ist", [0.9, 0.5, 0.4], score_name="mean absolute error")], [0.4, 0.9])
    assert found.targets == (0.9, 0.4), "the easiest first"


@pytest.mark.parametrize("name", sorted(TASKS.keys() - {"own"}))
def test_which_scores_are_errors_is_told_by_the_tasks(name):
    task, right = TASKS[name], torch.eye(4)
    numbers = torch.arange(4)
    targets = {
        "multi-label": Labels(torch.arange(5), numbers),
        **dict.fromkeys(("classification", "node-classes"), numbers),
    }
    points = [task.points(outputs, targets.get(name, right)) for outputs in (right, right.flip(0))]
    good, bad = (task.score_from_means(*one) if task.numbers > 1 else one for one in points)
    assert (good > bad) == task.higher_is_better == higher_is_better(task.score) and good != bad
    assert higher_is_better("of another program")


def test_without_targets_the_best_that_all_reach_and_a_little_less():
    assert default_targets([curve("ist", FAST), curve("local-sgd", SLOW)]) == [0.7, 0.75, 0.8]
    lucky = curve("local-sgd", [0.2, 0.8, 0.4, 0.4567])
    assert default_targets([curve("ist", FAST), lucky])[-1] == 0.456, "smoothed, and rounded down"
    errors = [curve("ist", [3.0, 0.98765, 0.98765]), curve("local-sgd", [0.5, 0.4])]
    assert default_targets(errors, higher_is_better=False) == [1.49, 1.24, 0.988], "rounded to the worse"
    near_chance = [curve("ist", [0.1, 0.13, 0.14]), curve("local-sgd", [0.11, 0.12])]
    assert default_targets(near_chance) == [0.11, 0.115, 0.12], "above the worst start"
    assert default_targets([curve("ist", [2.3, 2.2])], higher_is_better=False) == [2.25, 2.23, 2.2]
    failed = curve("fedavg", [0.1], problem="failed: the loss is no longer finite")
    assert default_targets([curve("ist", FAST), failed])[-1] == 0.9 and default_targets([failed])[-1] == 0.1
    assert default_targets([replace(failed, points=())]) == default_targets([curve("ist", [0.0, 0.0])]) == []
    for target in (0, 1.01, math.nan):
        with pytest.raises(ConfigError, match="must be above 0 and at most 1"):
            compare([curve("ist", FAST)], [0.5, target])


def test_median_and_range_over_repeats():
    late, never = Spread((3.0, 1.0, NOT_REACHED)), Spread((1.0, NOT_REACHED, NOT_REACHED))
    assert (late.median, late.range, late.reached) == (3, (1, 3), 2)
    assert (never.median, never.range, never.reached) == (NOT_REACHED, (1, 1), 1)
    assert Spread(()).range is None and Spread(()).median == NOT_REACHED


def repeats(method, steps, first=0):
    """Runs of a method with one seed after the other, by their seconds a round."""
    return [curve(method, FAST, seed, step) for seed, step in enumerate(steps, first)]


@pytest.mark.parametrize(
    "runs, ratio",
    [
        (repeats("ist", (1, 10, 100)) + repeats("local-sgd", (3, 20, 900)), median([3, 2, 9])),
        (repeats("ist", (1, 10, 100)) + repeats("local-sgd", (3, 20, 900), first=10), 20 / 10),
        ([curve("ist", FAST), *(curve("local-sgd", FAST, 0, step) for step in (100, 3, 4))], 4),
    ],
    ids=["of a seed", "no seed in common", "a seed several times"],
)
def test_a_ratio_is_the_median_over_seeds_not_the_ratio_of_medians(runs, ratio):
    found = compare(runs, [0.9])
    ist, local = found.groups
    assert found.ratio(ist, "seconds", 0.9) == 1 and found.ratio(local, "seconds", 0.9) == ratio


def test_where_nothing_is_sent_or_no_run_arrives_the_ratio_is_one_or_none():
    found = compare([curve("ist", FAST, sent=0), curve("local-sgd", SLOW, sent=0), curve("fedavg", [0.1])], [0.8, 1])
    ist, local, fedavg = found.groups
    assert found.ratio(fedavg, "seconds", 0.8) is None and found.ratio(ist, "seconds", 1) is None
    assert found.ratio(local, "bytes", 0.8) == 1


def test_runs_of_one_method_with_other_settings_are_not_repeats():
    def run(method, seed=0, rounds=4, steps=20):
        settings = {"train.seed": seed, "train.rounds": rounds, "method.local_steps": steps}
        return curve(method, FAST, seed, settings=settings)

    found = compare([run("ist"), run("ist", 1), run("ist", steps=60), run("local-sgd")])
    assert [group.name for group in found.groups] == [f"ist, local steps {n}" for n in (20, 60)] + [
        "local-sgd, local steps 20"
    ]
    assert [len(group.curves) for group in found.groups] == [2, 1, 1]
    two = [curve("ist", FAST), curve("ist", FAST, ranks=2), curve("torch-ddp", FAST, ranks=2)]
    assert [group.name for group in compare(two).groups] == ["ist, ranks 4", "ist, ranks 2", "torch-ddp, ranks 2"]
    found = compare([run("ist"), run("ist", steps=60), run("local-sgd"), run("ist", rounds=9)])
    labels = [f"ist (rounds {rounds}, local steps {steps})" for rounds, steps in ((4, 20), (4, 60), (9, 20))]
    labels.insert(2, "local-sgd")
    assert [group.label for group in found.groups] == labels == list(sheets(found)[0].columns)
    table = sheets(found)[-1]
    assert table.title == "Settings that differ"
    assert table.rows == (("train.rounds", ("4", "4", "4", "9")), ("method.local_steps", ("20", "60", "20", "20")))


def test_runs_with_different_scores_or_on_different_data_are_not_compared():
    with pytest.raises(DataError, match="different scores"):
        compare([curve("ist", FAST), curve("ist", FAST, score_name="mean absolute error")])
    runs = [curve("ist", FAST, settings={"data.source": name}) for name in ("/here/a.h5", "/tmp/job.1/a.h5", "b.h5")]
    runs.append(curve("torch-ddp", FAST))
    with pytest.raises(DataError, match=r"different data cannot be compared: a\.h5, b\.h5, unnamed data\. "):
        compare(runs)
    assert len(compare(runs[:2]).groups) == 1, "one data set in two places"
    assert compare([*runs[:2], runs[3]]).data == "a.h5", "what does not tell counts to the only one"
    told = [replace(one, data=contents) for one, contents in zip([*runs[:2], runs[0]], ("1f", "1f", "2e"))]
    with pytest.raises(DataError, match="a.h5 1f, a.h5 2e"):
        compare(told)


def golden():
    split = {"compute": 3.0, "pull": 1.0, "evaluate": 2.0}
    return compare(
        [
            curve("ist", FAST, 0, 1.0, 1000, phases=split),
            curve("ist", FAST, 1, 1.2, 1000, phases=split),
            curve("local-sgd", SLOW, 0, 2.0, 2000),
            curve("local-sgd", [0.2, 0.4], 1, 2.0, 2000, problem="failed: the loss is no longer finite"),
            curve("torch-ddp", SLOW, 0, 300.0, 10**6),
            curve("torch-ddp", SLOW, 1, 310.0, 10**6),
        ],
        [0.5, 0.75],
    )


def test_the_table_in_full():
    made = {sheet.title: sheet for sheet in sheets(golden())}
    measures = ("Training time", "Bytes sent by all ranks", "Examples consumed by all ranks")
    assert list(made) == [*(f"{measure} to a score" for measure in measures), "Final figures", "Time by phase"]
    time = made["Training time to a score"]
    assert (time.corner, time.columns) == ("accuracy reached", ("ist", "local-sgd", "torch-ddp"))
    assert time.rows == (
        ("0.5", ("1.1 s  1.00x\n1 s to 1.2 s", "not reached\n1 of 2 did", "915 s  838x\n900 s to 930 s")),
        ("0.75", ("3.3 s  1.00x\n3 s to 3.6 s", "not reached\n1 of 2 did", "1,220 s  372x\n1,200 s to 1,240 s")),
    )
    assert time.best == (frozenset({0}), frozenset({0}))
    (first, _) = made["Bytes sent by all ranks to a score"].rows
    assert first == ("0.5", ("1 kB  1.00x", "not reached\n1 of 2 did", "3 MB  3,000x"))
    final = made["Final figures"]
    ends, marks = dict(final.rows), dict(zip(dict(final.rows), final.best))
    assert marks["final accuracy"] == frozenset({0}) == marks["examples a second"]
    assert not marks["training time"], "after other numbers of rounds times do not compare"
    assert ends["final accuracy"] == ("0.9000", "0.6000\n0.4000 to 0.8000", "0.8000")
    assert ends["rounds"] == ("4", "4 or 2", "4")
    assert ends["examples a second"][0] == "235\n213 to 256"
    assert ends["sent by a rank"] == ("1 kB", "1.5 kB\n1 kB to 2 kB", "1 MB")
    phases = {"pull": "1 s  25%", "compute": "3 s  75%", "evaluate (not counted)": "2 s"}
    assert made["Time by phase"].rows == tuple((phase, (figure, "", "")) for phase, figure in phases.items())
    assert notes(golden())[-1] == "local-sgd, seed 1: failed: the loss is no longer finite"


def leave_run(folder, method="ist", scores=FAST, rounds=4, finished=True):
    """A run's folder as training leaves it, evaluated in every second round."""
    made = RunFolder.choose(str(folder), "x")
    made.make()
    settings = {"method.name": method, "train.rounds": rounds, "output.folder": str(folder), "train.seed": 7}
    made.write("run.toml", Run().override(settings).toml())
    known = {"ranks": 2, "score_name": "accuracy"}
    for round, score in enumerate(scores, 1):
        line = {"round": round, "seconds": 2.0 * round, "bytes": 10 * round, "examples": 256 * round, "loss": 1.0}
        made.append(line | known | ({"score": score, "test_loss": 1.0, "test_examples": 9} if round % 2 == 0 else {}))
    if finished:
        made.write("summary.json", json.dumps(known | {"seconds": {"compute": 4.0}}))
    return made


def test_a_folder_of_runs_is_read_and_what_is_not_finished_says_so(tmp_path):
    leave_run(tmp_path / "a")
    leave_run(tmp_path / "b", "local-sgd", rounds=9, finished=False)
    failed = leave_run(tmp_path / "c", "fedavg", [], finished=False)
    failed.write(FAILURE, json.dumps({"error": "no longer finite", "ranks": 2}))
    (tmp_path / "notes").mkdir()
    curves = read_curves([tmp_path])
    problems = {"ist": "", "local-sgd": "not finished: 4 of 9 rounds", "fedavg": "failed: no longer finite"}
    assert {one.method: one.problem for one in curves} == problems
    assert "fedavg, seed 7: failed: no longer finite" in notes(compare(curves, [0.7]))
    assert [curve.ranks for curve in curves] == [2, 2, 2]


def test_a_run_that_resumed_on_other_ranks_counts_each_job(tmp_path):
    made = leave_run(tmp_path / "a", rounds=6)
    for round, ranks in ((5, 4), (6, 2)):
        line = {"round": round, "seconds": 2.0 * round, "bytes": 100 * round, "examples": 256 * round, "loss": 1.0}
        made.append(line | {"ranks": ranks, "score": 0.9, "compute_seconds": 5.0, "all_reduce_seconds": 1.0})
    (run,) = read_curves([tmp_path])
    (line,) = compare([run], [0.7]).rows()
    ends = dict({sheet.title: sheet for sheet in sheets(compare([run]))}["Final figures"].rows)
    assert ends["ranks"] == ("2, then 4, then 2",) and line["ranks"] == "2, then 4, then 2"
    assert run.sent_by_a_rank == 40 / 2 + 460 / 4 + 100 / 2 and ends["sent by a rank"] == ("185 B",)
    assert run.phases == {"compute": 10.0, "all-reduce": 2.0}


def test_a_curve_of_another_program_is_read_back_as_it_was_written(tmp_path):
    made, path = curve("torch-ddp", FAST, 3, phases={"compute": 1.0}, source="elsewhere"), tmp_path / "curve.json"
    made.save(path)
    assert read_curves([tmp_path]) == read_curves([path]) == [made]
    replace(made, points=made.points[::-1]).save(path)
    with pytest.raises(DataError, match="must not decrease"):
        read_curves([path])


NAN = {"round": 1, "seconds": math.nan, "bytes": 0, "examples": 1, "score": 0.5}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"format": "other"}, "format is 'other'; it must be 'istmpi curve'"),
        ({"pionts": []}, r"pionts is \[\]; it is not a key of a curve"),
        ({"points": [NAN | {"seconds": "2"}]}, "seconds is '2'"),
        ({"ranks": 0}, "ranks is 0; it must be a whole number of at least 1"),
    ],
)
def test_a_damaged_curve_is_refused_by_name(tmp_path, change, message):
    path = tmp_path / "curve.json"
    curve("torch-ddp", FAST).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=message) as refused:
        read_curves([path])
    assert str(path) in str(refused.value)


def test_the_verdict_in_full():
    runs = [curve("local-sgd", SLOW, step=2.5, sent=10**7), curve("ist", FAST, step=1.0, sent=10**6)]
    assert verdict(compare([*runs, curve("fedavg", [0.1, 0.2], problem="failed: x")], [0.5, 0.8])) == (
        "ist reached an accuracy of 0.8 after 3 s of training and 3 MB sent by all ranks, and ended at 0.9. "
        "local-sgd reached an accuracy of 0.8 after 10 s of training and 40 MB sent by all ranks, and ended at 0.8. "
        "fedavg never reached an accuracy of 0.8, and ended at 0.2. "
        "Each method ran once, so noise does not show. Some runs of fedavg did not finish."
    )
    assert verdict(compare([curve("ist", [-0.5, 0.0])])) == "ist ended at 0."
    assert verdict(compare([replace(runs[1], test=0.7)], [0.8])) == (
        "ist reached an accuracy of 0.8 on the validation split after 3 s of training and 3 MB sent by all ranks, "
        "and ended at 0.7 on the test split."
    )
