"""IST's controls and rivals: equal budgets, and learning rates chosen without the test data."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

MODULE = "benchmarks.time_to_accuracy.seconds"


def archive_of(files):
    """A tar file in memory, rewound."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    content.seek(0)
    return content


def remade(kind, files):
    """The files of an archive's validation archive."""
    from benchmarks.controls.validation_data import REMAKE

    made = io.BytesIO()
    with tarfile.open(fileobj=archive_of(files)) as source, tarfile.open(fileobj=made, mode="w") as target:
        REMAKE[kind](source, target)
    made.seek(0)
    with tarfile.open(fileobj=made) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive.getmembers()}


def test_no_recording_for_testing_is_in_the_validation_data():
    speakers, words = ("cleo", "anna", "bert"), ("one", "two")
    files = {f"set/{word}/{who}_nohash_0.wav": f"{word} {who}".encode() for word in words for who in speakers}
    found = remade("speech", {**files, "set/testing_list.txt": b"one/anna_nohash_0.wav\ntwo/anna_nohash_0.wav\n"})
    listed = found.pop("set/testing_list.txt").decode().split()
    assert listed == ["one/bert_nohash_0.wav", "two/bert_nohash_0.wav"]
    assert found == {name: content for name, content in files.items() if "anna" not in name}


def test_no_image_for_testing_is_in_the_validation_data():
    training = {f"set/train/cat/{number:03}.jpg": b"train %d" % number for number in range(50)}
    found = remade("images", {"set/test/cat/000.jpg": b"test", **training})
    assert sorted(found.values()) == sorted(training.values())
    assert {name: found[name] for name in found if "/test/" in name} == {
        "set/test/cat/000.jpg": b"train 0",
        "set/test/cat/025.jpg": b"train 25",
    }


def test_every_rival_has_the_same_budget_and_is_judged_on_the_validation_split():
    from benchmarks.controls.rivals import METHODS, SETTINGS, chosen, controls, plan, tried
    from benchmarks.controls.tasks import TASKS

    task = TASKS["speech"]
    assert sorted(METHODS) == sorted(SETTINGS)
    assert {len(tried(task, method, "sharded", 4)) for method in METHODS} == {6}
    done = {}

    def record(cell):
        return done.get(cell.name)

    first = next(plan(record, task, 4, 1))
    assert (first.kind, first.placement, first.method) == ("rate", "by-label", METHODS[0])
    for number, cell in enumerate(tried(task, METHODS[0], "by-label", 4)):
        assert chosen(record, task, METHODS[0], "by-label", 4) is None
        done[cell.name] = {"points": [{"accuracy": 0.9}, {"accuracy": 0.5 + 0.01 * (number == 3)}]}
    best = chosen(record, task, METHODS[0], "by-label", 4)
    assert best == tried(task, METHODS[0], "by-label", 4)[3]
    (cell,) = controls(record, task, METHODS[0], "by-label", 4, 1)
    assert next(plan(record, task, 4, 1)) == cell and (cell.lr, cell.local_steps) == (best.lr, best.local_steps)
    done[cell.name] = {"points": []}
    assert next(plan(record, task, 4, 1)).method == METHODS[1]
    assert cell.run({"control": Path("digits")}).data.source == "digits"


def test_differences_are_taken_seed_by_seed():
    from benchmarks.controls.rivals import differences
    from benchmarks.controls.tasks import TASKS

    accuracies = {"ist": (0.90, 0.94, 0.80), "ist-never": (0.89, 0.91)}

    def record(cell):
        if cell.method not in accuracies or (cell.kind, cell.placement) not in {
            ("rate", "shared"),
            ("control", "shared"),
        }:
            return None
        known = accuracies[cell.method] if cell.kind == "control" else (0.5,)
        return {"points": [{"accuracy": known[cell.seed]}]} if cell.seed < len(known) else None

    (found,) = differences(record, TASKS["speech"], 4, 3)
    assert (found["ahead"], found["of"], found["seeds"]) == ("ist", "ist-never", 2)
    assert (found["points"], found["+-"]) == ("+2.0", "12.7")


def test_no_cell_is_planned_twice():
    from benchmarks.controls.rivals import controls, plan, tried
    from benchmarks.controls.tasks import TASKS

    task, done = TASKS["speech"], {}

    def planned():
        return [cell.name for cell in plan(lambda cell: done.get(cell.name), task, 4, 3)]

    before = planned()
    tuning = [cell.name for cell in tried(task, "ist", "sharded", 4)]
    assert len(set(before)) == len(before) and set(tuning) < set(before)
    done |= {name: {"points": [{"accuracy": 0.5}]} for name in tuning}
    seeds = [cell.name for cell in controls(lambda cell: done.get(cell.name), task, "ist", "sharded", 4, 3)]
    after = planned()
    assert len(seeds) == 3 and len(set(after)) == len(after)
    assert set(after) == set(before) - set(tuning) | set(seeds)


def test_a_row_says_the_mean_over_seeds_and_its_extremes():
    from benchmarks.controls.rivals import controls, interval, rows, tried
    from benchmarks.controls.tasks import TASKS

    task = TASKS["speech"]
    assert interval([0.8, 0.9]) == pytest.approx(0.6353)
    done = {cell.name: {"points": [{"accuracy": 0.5}]} for cell in tried(task, "ist", "sharded", 4)}
    for cell, accuracy in zip(controls(lambda cell: done.get(cell.name), task, "ist", "sharded", 4, 2), (0.8, 0.9)):
        done[cell.name] = {"points": [{"accuracy": 0.1}, {"accuracy": accuracy, "megabytes": 10 * accuracy}]}
    (row,) = rows(lambda cell: done.get(cell.name), task, 4, 2)
    assert (row["data"], row["method"], row["seeds"], row["accuracy"]) == ("a part each", "ist", 2, "0.8500")
    assert row["least and most"] == "0.8000 .. 0.9000" and row["MB sent"] == pytest.approx(8.5)


def test_seconds_to_an_accuracy_are_those_of_training_between_two_evaluations():
    from benchmarks.time_to_accuracy.seconds import composed, reached, require_same, rows

    timed = {
        "cell": "x",
        "accuracy": 0.8,
        "phases": {"compute": 15.0, "hop": 5.0, "evaluate": 4.0},
        "setting": "0.1, 5",
    }
    timed["points"] = [{"step": step, "seconds": 2.0 * step, "megabytes": 3.0} for step in (2, 4, 6, 8, 10)]
    fast = composed(timed, {"cell": "y", "points": [{"step": 4, "accuracy": 0.4}, {"step": 10, "accuracy": 0.8}]})
    assert [reached(fast["curve"], accuracy) for accuracy in (0.2, 0.6, 0.9)] == [
        pytest.approx(4),
        pytest.approx(14),
        None,
    ]
    slow = composed(
        timed | {"accuracy": 0.4},
        {"cell": "y", "points": [{"step": 4, "accuracy": 0.2}, {"step": 10, "accuracy": 0.4}]},
    )
    first, second = rows({"50mbit": {"a": [fast], "b": [slow]}})
    assert (first["all reach"], first["s to it"], second["s to it"]) == ("0.400", "8.0", "20.0")
    assert (first["99% of the best"], first["s to that"], second["s to that"]) == ("0.792", "19.8", "-")
    assert (first["computing"], first["s in all"]) == ("0.75", "20.0")
    with pytest.raises(ValueError, match="y: 0.8, without the slow network 0.7. Was it on another machine?"):
        require_same(timed, {"cell": "y", "points": [{"step": 10, "accuracy": 0.7}]})
    require_same(timed, {"cell": "y", "points": [{"step": 10, "accuracy": 0.8}]})


def test_further_seeds_are_accuracies_at_the_seconds_of_the_first():
    from benchmarks.controls.rivals import tried
    from benchmarks.controls.tasks import TASKS
    from benchmarks.time_to_accuracy.seconds import composed, plan, rows

    task = TASKS["speech-wide"]
    done = {cell.name: {"points": [{"accuracy": cell.lr}]} for cell in tried(task, "ist", "sharded", 8)}
    planned = {rate: plan(lambda cell: done.get(cell.name), task, rate, 3) for rate in ("10mbit", "")}
    assert [[cell.tuned.seed for cell in cells] for cells in planned.values()] == [[0], [0, 1, 2]]

    timed = {
        "points": [{"step": 5, "seconds": 10.0, "megabytes": 3.0}],
        "phases": {"compute": 1.0},
        "setting": "0.1, 5",
    }
    curves = [{"cell": "y", "points": [{"step": 5, "accuracy": accuracy}]} for accuracy in (0.8, 0.5, 0.4)]
    (row,) = rows({"50mbit": {"a": [composed(timed, curve) for curve in curves]}})
    assert (row["seeds"], row["all reach"], row["s to it"]) == (3, "0.500", "10.0 (6.2 to -)")


def test_all_of_it_is_tuned_then_run_without_and_with_each_slow_network_and_told():
    from argparse import Namespace

    from benchmarks.time_to_accuracy.seconds import steps

    options = Namespace(cells="c", task="cifar-wide", raw="r", results="o", seeds=5, without=["diloco"])
    tune, curves, *slow, told = (" ".join(command) for command in steps(options))
    assert "-m benchmarks.controls.rivals --cells c --task cifar-wide --raw r --ranks 8 --seeds 1" in tune
    measure = (
        "-m benchmarks.time_to_accuracy.seconds --cells c --task cifar-wide --seeds 5 --results o --without diloco"
    )
    assert " -n 8 " in curves and curves.endswith(measure) and told.endswith(f"{measure} --report")
    assert [command.split("--rate ")[1].split()[0] for command in slow] == ["200mbit", "50mbit", "10mbit"]
    assert all("cluster --hosts 8 " in command and command.endswith(measure) for command in slow)


def test_ways_to_send_have_the_settings_of_the_method_that_they_vary():
    from benchmarks.controls.rivals import tried
    from benchmarks.controls.tasks import TASKS
    from benchmarks.time_to_accuracy.seconds import plan

    task = TASKS["speech-wide"]
    done = {cell.name: {"points": [{"accuracy": cell.lr}]} for cell in tried(task, "ist-tenth", "sharded", 8)}
    found = {cell.method: cell for cell in plan(lambda cell: done.get(cell.name), task, "10mbit", 1)}
    assert sorted(found) == ["ist-tenth", "ist-tenth-int8", "ist-tenth-int8-delay"]
    assert {cell.tuned.lr for cell in found.values()} == {0.03}
    run = found["ist-tenth-int8"].run({"control": Path("digits")})
    assert (run.method.redeal, run.method.wire) == (0.1, "int8")
    assert run.evaluate.every == run.train.rounds
    curves = {cell.method: cell.curve for cell in found.values()}
    assert len({cell.name for cell in (*curves.values(), *found.values())}) == 6
    assert curves["ist-tenth-int8"].run({"control": Path("digits")}).evaluate.every < run.train.rounds


def test_where_nothing_was_tuned_or_no_curve_is_known_one_line_says_so(tmp_path):
    from benchmarks.controls.rivals import tried
    from benchmarks.controls.tasks import TASKS

    def refusal(**environment):
        command = [sys.executable, "-m", MODULE, "--cells", tmp_path, "--results", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        return done.stderr

    assert "no tuned cells" in refusal()
    assert not list(tmp_path.iterdir())
    for cell in tried(TASKS["speech-wide"], "ist", "sharded", 8):
        (tmp_path / f"{cell.name}.json").write_text('{"points": [{"accuracy": 0.5}]}')
    assert "has no accuracies by step yet" in refusal(ISTMPI_NETWORK="emulated, 50 Mbit/s per host, TCP")
