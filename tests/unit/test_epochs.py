"""Epochs over resumes on other numbers of ranks: as many examples, and a rate that never rises again."""

import json
import random
from fractions import Fraction
from math import ceil
from shutil import copytree

import numpy as np
import pytest
from resuming import stop_after
from small import own_run

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.config import Run
from istmpi.optim.course import Course
from istmpi.simulated import simulate
from istmpi.training.epochs import with_rounds
from istmpi.training.run import run_training

IN_A_ROUND = 24


def drawn_course(seed):
    draw = random.Random(seed)
    epochs, in_a_round = Fraction(draw.randint(1, 90), 10), draw.randint(1, 50)
    most, done = {0: draw.randint(10, 200)}, 0
    for _ in range(draw.randint(0, 4)):
        rounds = Course.from_epochs(epochs, in_a_round, most).rounds
        if rounds - done < 2:
            break
        done = draw.randint(done + 1, rounds - 1)
        most[done] = draw.randint(10, 200)
    return epochs, in_a_round, most, Course.from_epochs(epochs, in_a_round, most)


@pytest.mark.parametrize("seed", range(40))
def test_a_course_has_its_epochs_to_within_a_round_and_goes_evenly_to_the_end_of_its_plan(seed):
    epochs, in_a_round, most, course = drawn_course(seed)
    begins = sorted(most)
    passes = [
        Fraction((end - begin) * in_a_round, most[begin]) for begin, end in zip(begins, [*begins[1:], course.rounds])
    ]
    assert epochs <= sum(passes) < epochs + Fraction(in_a_round, most[begins[-1]])
    assert course.planned == ceil(epochs * most[0] / in_a_round)
    steps = [course.find_planned_step(step, 7) for step in range(7 * course.rounds + 1)]
    assert steps == sorted(set(steps)) and (steps[0], steps[-1]) == (0, 7 * course.planned)
    first = begins[1] if course.changed else course.rounds
    assert steps[: 7 * first] == [*range(7 * first)]
    ends = [course.find_round(planned) for planned in range(course.planned + 1)]
    assert ends == sorted(ends) and ends[-1] == course.rounds
    for planned, end in enumerate(ends):
        assert steps[7 * max(end - 1, 0)] <= 7 * planned <= steps[7 * end] + 1e-9


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """60 training examples: 4 epochs of 3 steps of 8 are 5 rounds on 2 ranks, and 10 on one."""
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(60, 4)).astype(np.float32), draw.integers(0, 3, 60)
    x[np.arange(60), y] += 1
    path = tmp_path_factory.mktemp("data") / "a.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return str(path)


def train(folder, ranks, resume="", **settings):
    """Train the run of ``settings``, or of the folder, on as many ranks; return its metrics."""
    run = own_run(**settings) if settings else Run.load(str(folder))
    run = run.override({"output.folder": str(folder), "checkpoint.every": 1, "checkpoint.keep": 99})
    simulate(lambda comm: run_training(run, comm, resume=resume), ranks).require()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [*range(1, len(lines) + 1)]
    return lines


def settings_of(data, **changed):
    given = {"data__source": data, "data__placement": "sharded", "model__dtype": "float32", "model__hidden": [8]}
    return given | {"train__epochs": 4, "optimizer__schedule": "cosine"} | changed


@pytest.mark.parametrize("ranks, warm_up", [((3, 1), 5), ((2, 3, 2), 0)])
def test_epochs_over_changes_of_the_ranks_are_as_many_examples_and_the_rate_keeps_falling(
    data, tmp_path, ranks, warm_up
):
    """By the same command as at first, and from the run's folder alone."""
    settings, folder = settings_of(data, optimizer__warm_up=warm_up), tmp_path / "run"
    train(folder, ranks[0], **settings)
    for done, count in enumerate(ranks[1:], 2):
        stop_after(folder, done)
        copytree(folder, tmp_path / f"alone-{done}")
        lines = train(folder, count, "auto", **settings)
        assert train(tmp_path / f"alone-{done}", count, "auto")[-1]["loss"] == lines[-1]["loss"]
    assert {line["ranks"] for line in lines} == {*ranks}
    assert 240 <= lines[-1]["examples"] < 240 + IN_A_ROUND * ranks[-1]
    rates = [line["learning_rate"] for line in lines if 3 * line["round"] > warm_up]
    assert rates == sorted(rates, reverse=True) and 0 < rates[-1] < 0.01
    assert (folder / "run.toml").read_text().count("epochs = 4.0\n") == 1
    again = train(folder, 4, "auto", **settings | {"train__epochs": 6})
    assert 360 <= again[-1]["examples"] < 360 + IN_A_ROUND * 4
    with open_checkpoint(folder / "network.h5") as checkpoint:
        header = checkpoint.header
        assert header.course.rounds == header.run.train.rounds == len(again)


def test_images_and_methods_change_where_the_plan_has_them():
    settings = {"train.epochs": 4, "method.finish": "local-sgd:40%", "method.local_steps": 3, "train.batch": 8}
    run = Run().override(settings | {"model.name": "resnet", "train.resolution": [[0.4, 4], [0.6, 8]]})
    course = run.course({0: 30, 3: 60})  # 5 rounds are planned; the last 2 of them become 4
    assert run.phases(course) == [("ist", 3), ("local-sgd", 4)]
    assert run.sides(course) == [(2, 4), (7, 8)] and run.last_rounds(course) == {2, 3, 7}
    run = run.override({"train.resolution": [[0.12, 4], [0.88, 8]]})
    resumed = with_rounds(run, {0: 30, 2: 15}).with_implied()  # 4 rounds alone would have none of small images
    assert resumed.sides(resumed.course({0: 30, 2: 15})) == [(1, 4), (4, 8)] and len(resumed.sides()) == 2


def test_rounds_stay_rounds_and_a_resumed_run_may_count_in_epochs_from_then_on(data, tmp_path):
    settings = settings_of(data)
    epochs = settings.pop("train__epochs") + 1
    train(tmp_path / "run", 2, **settings, train__rounds=3)
    lines = train(tmp_path / "run", 1, "auto", **settings, train__rounds=5)
    assert lines[-1]["examples"] == 3 * 2 * IN_A_ROUND + 2 * IN_A_ROUND
    lines = train(tmp_path / "run", 3, "auto", **settings, train__epochs=epochs)
    assert 300 <= lines[-1]["examples"] < 300 + 3 * IN_A_ROUND
