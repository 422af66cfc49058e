"""A validation split in training: scored in place of the test split, for the best network and for an early end."""

import numpy as np
import pytest
from batches import examples_of
from following import lines
from small import Listening, assert_same_bits, small_run, trained, whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.data.sources import open_dataset, open_for_training
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError
from istmpi.training.run import run_training

pytestmark = pytest.mark.ranks(only=[1, 3])
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
    if comm.rank == 0:
        np.savez(path, **arrays)
    comm.barrier()
    for settings in ({}, {"data__placement": "by-label", "data__alpha": 1.0}):
        mine, progress = trained(comm, **HELD_OUT, **settings)
        theirs, expected = trained(comm, data__source=str(path), evaluate__every=1, **settings)
        assert_same_bits(whole(mine), whole(theirs))
        assert [one.validation for one in progress] == [one.score for one in expected]
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
    """A run in a folder: its summary, and what was said."""
    watch = Listening()
    run = small_run(output__folder=str(folder), **HELD_OUT | settings)
    summary = run_training(run, comm, watch, resume)
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
        assert "nothing left to train" in said[0]
        assert len(lines(shared_tmp / "whole")) == 4
    # What was evaluated before a resume counts.
    ran(comm, shared_tmp / "half", **{**still, "train__rounds": 2})
    summary, _ = ran(comm, shared_tmp / "half", "auto", **still)
    assert summary.last.round == 4


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
    alone = evaluate(summary.best.path, comm)
    assert alone.score.score == summary.best.score.score
    validation = evaluate(summary.best.path, comm, split="validation")
    assert (validation.score.score, validation.score.examples) == (max(scores), 287)
    if best == 6:
        assert summary.best.score == summary.last.score


def test_the_best_begins_anew_where_its_network_is_gone(comm, shared_tmp):
    lively = {"checkpoint__best": True, "train__rounds": 2}
    ran(comm, shared_tmp / "gone", **lively)
    if comm.rank == 0:
        (shared_tmp / "gone/best.h5").unlink()
    comm.barrier()
    summary, said = ran(comm, shared_tmp / "gone", "auto", **{**lively, "train__rounds": 4})
    assert summary.best.round >= 3
    if comm.rank == 0:
        assert any("the best score starts over" in one for one in said)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"train__patience": 2}, "train.patience = 2 needs a validation split, and digits has none"),
        ({"checkpoint__best": True}, "checkpoint.best = true needs a validation split"),
        ({"data__validation": 0.9999}, "both parts need at least one"),
    ],
)
def test_what_cannot_be_is_refused(comm, settings, said):
    with pytest.raises(ConfigError, match=said):
        trained(comm, **settings)
