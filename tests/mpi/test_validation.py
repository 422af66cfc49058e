"""A validation split in training: scored in place of the test split, for the best network and for an early end."""

import json
import random
import shutil

import damaging
import h5py
import numpy as np
import pytest
from batches import examples_of
from damage import reseal
from following import lines
from resuming import stored
from small import Listening, assert_same_bits, on_root, small_run, trained, whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm.stopping import StopSign
from istmpi.data.sources import open_dataset, open_for_training
from istmpi.deploy.scoring import evaluate
from istmpi.errors import StoppedError
from istmpi.hdf5 import CREATION
from istmpi.training.run import run_training

HELD_OUT = {"data__validation": 0.2, "evaluate__every": 1}


def test_it_is_as_if_the_data_had_come_so(comm, shared_tmp):
    """A file that has the rest for training and what is held out for testing trains the very same network."""
    run = small_run(**HELD_OUT)
    data = open_for_training(run.data, 0, run.train.seed)
    arrays = {}
    for split, name in (("train", "train"), ("validation", "test")):
        x, arrays[f"y_{name}"] = examples_of(data.splits[split], np.arange(len(data.splits[split])))
        arrays[f"x_{name}"] = x.reshape(len(x), 1, 8, 8)
    path = shared_tmp / "so.npz"
    on_root(comm, lambda: np.savez(path, **arrays))
    for settings in ({}, {"data__placement": "by-label", "data__alpha": 1.0}):
        mine, progress = trained(comm, **HELD_OUT, **settings)
        theirs, expected = trained(comm, data__source=str(path), evaluate__every=1, **settings)
        assert_same_bits(whole(mine), whole(theirs))
        assert [one.validation.record() for one in progress] == [one.score.record() for one in expected]
        assert [one.score is None for one in progress] == [True, True, True, False]
        assert progress[-1].score.examples == 360


def test_ranks_with_examples_of_their_own_hold_out_their_own(comm, shared_tmp):
    data, mine = open_dataset("digits"), slice(comm.rank, None, comm.size)
    arrays = {}
    for split in ("train", "test"):
        x, y = examples_of(data.splits[split], np.arange(len(data.splits[split]))[mine])
        arrays |= {f"x_{split}": x, f"y_{split}": y}
    np.savez(shared_tmp / f"{comm.rank}.npz", **arrays)
    comm.barrier()
    _, progress = trained(comm, data__source=str(shared_tmp / "{rank}.npz"), **HELD_OUT)
    held_out = comm.allreduce_sum(np.array([round(0.2 * len(arrays["y_train"]))]))
    assert [one.validation.examples for one in progress] == [held_out[0]] * 4
    assert progress[-1].score.examples == 360


def ran(comm, folder, resume="", **settings):
    watch = Listening()
    summary = run_training(small_run(output__folder=str(folder), **HELD_OUT | settings), comm, watch, resume)
    comm.barrier()
    return summary, watch.said


def test_training_ends_where_nothing_gets_better(comm, shared_tmp):
    still = {"optimizer__lr": 1e-30, "train__patience": 3, "train__rounds": 50}
    summary, _ = ran(comm, shared_tmp / "whole", **still)
    assert summary.last.round == 4  # the first evaluation is the best, three are not better
    assert summary.ended == (
        "no better accuracy on the validation split in 3 evaluations (train.patience); the best was after round 1"
    )
    assert summary.last.score and summary.last.validation
    assert comm.allgather(summary.last.round) == [4] * comm.size
    nothing, said = ran(comm, shared_tmp / "whole", "auto", **still)
    assert nothing is None
    if comm.rank == 0:
        assert "nothing left to train" in said[0] and len(lines(shared_tmp / "whole")) == 4
    # What was evaluated before a resume counts, in a new folder, too.
    ran(comm, shared_tmp / "half", **{**still, "train__rounds": 2})
    for folder, resume in (("new", str(shared_tmp / "half")), ("half", "auto")):
        summary, said = ran(comm, shared_tmp / folder, resume, **still)
        assert summary.last.round == 4
        if comm.rank == 0:
            assert [line["round"] for line in lines(shared_tmp / folder)] == [1, 2, 3, 4]
            assert not any("not used" in one for one in said)


def test_the_best_network_is_kept(comm, shared_tmp):
    """A step too large makes the later ones worse."""
    lively = {"optimizer__lr": 0.9, "checkpoint__best": True, "train__rounds": 6, "model__norm": "none"}
    folder = shared_tmp / "best"
    summary, _ = ran(comm, folder, **lively)
    scores = [line["validation_score"] for line in lines(folder)]
    best = int(np.argmax(scores)) + 1
    assert (summary.best.round, summary.best.validation) == (best, max(scores))
    with open_checkpoint(summary.best.path) as checkpoint:
        assert checkpoint.header.round == best
        calibrated = checkpoint.calibrated
    assert calibrated
    assert evaluate(summary.best.path, comm).score.score == summary.best.score.score
    validation = evaluate(summary.best.path, comm, split="validation")
    assert (validation.score.score, validation.score.examples) == (max(scores), 287)
    if best == 6:
        assert summary.best.score == summary.last.score


class Stops(Listening):
    """Asks for a stop as soon as a round is done, so that the next round is the last one of this job."""

    def __init__(self, stop):
        super().__init__()
        self.stop = stop

    def progressed(self, progress):
        self.stop._signal = "a test"


def in_many_jobs(comm, run):
    """Resume a run until it ends by itself. Jobs stop in their first round and in their second round in turn."""
    for job in range(50):
        stop = StopSign(comm)
        if job % 2 and comm.rank == 0:
            stop._signal = "a test"
        try:
            return run_training(run, comm, Stops(stop) if comm.rank == 0 else None, "auto", stop=stop)
        except StoppedError:
            comm.barrier()
    raise AssertionError("the run does not end")


RECORDED = ("round", "loss", "examples", "score", "test_loss", "validation_score", "validation_loss")
LIVELY = {"optimizer__lr": 0.9, "model__norm": "none", "train__rounds": 6}


@pytest.mark.parametrize(
    "settings",
    [
        {"checkpoint__best": True, "train__patience": 3, "train__rounds": 50},
        pytest.param({"data__validation": 0.0, "evaluate__every": 3}, marks=pytest.mark.ranks(only=[3])),
    ],
)
def test_a_run_that_stops_again_and_again_has_the_scores_of_the_whole_one(comm, shared_tmp, settings):
    """An evaluation that was due in the round of a stop is made up for when the run resumes."""
    run = small_run(**HELD_OUT | LIVELY | settings)
    folders = [shared_tmp / "whole", shared_tmp / "parts"]
    whole_run, parts = (run.override({"output.folder": str(folder)}) for folder in folders)
    expected = run_training(whole_run, comm)
    summary = in_many_jobs(comm, parts)
    comm.barrier()
    assert (summary.last.round, summary.ended) == (expected.last.round, expected.ended)
    assert summary.last.score == expected.last.score
    one, other = ([{name: line.get(name) for name in RECORDED} for line in lines(folder)] for folder in folders)
    assert one == other and len(one) == expected.last.round
    for name in ["network.h5"] + ["best.h5"] * run.checkpoint.best:
        assert_same_bits(*(stored(folder / name) for folder in folders))
    if run.checkpoint.best:
        assert (summary.best.round, summary.best.score) == (expected.best.round, expected.best.score)


@pytest.mark.parametrize("other", [None, "other"])
def test_the_best_begins_anew_where_its_network_is_gone_or_of_another_run(comm, shared_tmp, other):
    """Both runs have their best network after round 1."""
    lively = {"checkpoint__best": True, "train__rounds": 1}
    ran(comm, shared_tmp / "gone", **lively)
    if other:
        ran(comm, shared_tmp / other, **lively, optimizer__lr=0.01)
    if comm.rank == 0:
        (shared_tmp / "gone/best.h5").unlink()
        if other:
            shutil.copy(shared_tmp / other / "best.h5", shared_tmp / "gone/best.h5")
    comm.barrier()
    summary, said = ran(comm, shared_tmp / "gone", "auto", **{**lively, "train__rounds": 3})
    assert summary.best.round >= 2
    if comm.rank == 0:
        assert any("the best score starts over" in one for one in said)


class Damages(Listening):
    """Damages best.h5 before the run's last evaluation, of the best network."""

    def __init__(self, path, damage):
        super().__init__()
        self.path, self.damage = path, damage

    def progressed(self, progress):
        if progress.score:
            with np.errstate(all="ignore"):
                self.damage(self.path)


def poison(path):
    with h5py.File(path, "r+", **CREATION) as file:
        file["model/hidden1.linear.weight"][0, 0] = np.nan
        reseal(file)


BEST = {"optimizer__lr": 0.9, "checkpoint__best": True, "train__rounds": 8, "model__norm": "none"}
"""Its sixth round is the best."""


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize("damage", [poison, *range(4)])
def test_a_damaged_best_network_is_a_note_of_a_run_that_ends_well(comm, shared_tmp, damage):
    """A number draws a damage. What is damaged without a change to what is read gives the score of the good file."""
    folder = shared_tmp / str(damage)
    expected, _ = ran(comm, shared_tmp / "good", **BEST)
    assert (expected.best.round, expected.last.round) == (6, 8)
    done = damage if callable(damage) else lambda path: damaging.damage(path, random.Random(damage))
    watch = Damages(folder / "best.h5", done)
    summary = run_training(small_run(output__folder=str(folder), **HELD_OUT | BEST), comm, watch)
    assert summary.last.score == expected.last.score and (folder / "network.h5").is_file()
    if summary.best:
        assert summary.best.score == expected.best.score and damage is not poison
    else:
        (said,) = watch.said
        assert "best.h5" in said and f"The best network, of round {expected.best.round}, is not scored." in said


METRICS = {
    "none": lambda lines: [],
    "two are swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "another run's": lambda lines: [line | {"loss": line["loss"] + 1e-9} for line in lines],
}


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize("lines_left", METRICS.values(), ids=METRICS)
def test_metrics_that_are_not_those_of_the_checkpoint_are_not_believed(comm, shared_tmp, lines_left):
    folder = shared_tmp / "run"
    ran(comm, folder, **BEST | {"train__rounds": 3})
    metrics = folder / "metrics.jsonl"
    perfect = [line | {"validation_score": 1.0} for line in lines(folder)]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines_left(perfect)))
    summary, said = ran(comm, folder, "auto", **BEST)
    noted = [one for one in said if "its scores are not used" in one]
    assert len(noted) == 1 and noted[0].startswith(f"{metrics}: ")
    assert summary.best.round == 6 and summary.best.validation < 1
