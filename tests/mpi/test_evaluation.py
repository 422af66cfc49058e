"""The sharded full network against the whole one in plain torch, with moments computed by hand."""

import hashlib

import numpy as np
import pytest
import torch
from batches import examples_of
from small import small_run, trained, whole

from istmpi.evaluation.full import FullNetwork
from istmpi.training.loop import Training

NETWORKS = pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model__bias": True, "model__norm": "layer"},
        {"model__bias": True, "model__norm": "none", "model__activation": "tanh", "model__hidden": [7]},
        {"model__output_norm": False, "model__dropout": 0.5},
    ],
    ids=["batch", "layer", "none", "dropout"],
)


def plain(training, sample):
    """The whole network as a function of examples: its weights gathered, its moments those of the sample.

    All hidden units are dealt, so that a subnet sums over a P-th of them: so does this, where no moments absorb it.
    """
    weights = {name: torch.from_numpy(values) for name, values in whole(training).items()}
    model, stages = training.run.model, training.architecture.stages
    moments = {}

    def forward(x, calibrate=False):
        for stage in stages:
            last = stage == "labels"
            norm = (
                ("batch" if model.output_norm in (None, True) and model.norm == "batch" else "") if last else model.norm
            )
            x = x @ weights[f"{stage}.linear.weight"].T
            if norm != "batch" and stage != stages[0]:
                x = x / training.communicator.size
            if model.bias:
                x = x + weights[f"{stage}.linear.bias"]
            if norm == "batch":
                if calibrate:
                    moments[stage] = x.mean(dim=0), ((x - x.mean(dim=0)) ** 2).mean(dim=0)
                mean, variance = moments[stage]
                x = (x - mean) / torch.sqrt(variance + 1e-5)
            elif norm == "layer":
                mean = x.mean(dim=1, keepdim=True)
                x = (x - mean) / torch.sqrt(((x - mean) ** 2).mean(dim=1, keepdim=True) + 1e-5)
            if not last:
                if norm in ("batch", "layer"):
                    x = x * weights[f"{stage}.norm.weight"] + weights[f"{stage}.norm.bias"]
                x = torch.tanh(x) if model.activation == "tanh" else x.clamp(min=0)
        return x

    forward(sample, calibrate=True)
    return forward


def scored(forward, split):
    x, y = examples_of(split, np.arange(len(split)))
    outputs = forward(torch.from_numpy(x).double())
    losses = outputs.logsumexp(dim=1) - outputs[torch.arange(len(y)), torch.from_numpy(y)]
    return float(losses.mean()), float((outputs.argmax(dim=1).numpy() == y).mean())


def calibration_sample(training, count):
    """So many rows, or all of them, drawn by hand as the seed says: SplitMix64 from a key that BLAKE2 makes."""
    key = hashlib.blake2b(f"int:{training.run.train.seed}\x1fstr:calibration\x1fint:0".encode(), digest_size=8)
    drawn = []
    for row in range(len(training.dataset.train)):
        z = (row * 0x9E3779B97F4A7C15 + int.from_bytes(key.digest(), "little")) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        drawn.append((z ^ z >> 31, row))
    rows = np.sort([row for _, row in sorted(drawn)[:count]])
    return torch.from_numpy(examples_of(training.dataset.train, rows)[0]).double()


@NETWORKS
def test_the_score_is_that_of_the_whole_network(comm, settings):
    training, progress = trained(comm, **settings)
    score = progress[-1].score
    forward = plain(training, calibration_sample(training, 1024))
    loss, accuracy = scored(forward, training.dataset.test)
    assert score.examples == len(training.dataset.test) == 360
    assert score.loss == pytest.approx(loss, abs=1e-10)
    assert score.score == accuracy


def test_the_score_does_not_depend_on_the_ranks(comm):
    """Before training all rank counts have the same network; with data-parallel on equal batches also afterwards."""
    training = Training(small_run(), comm)
    score = training.evaluate()
    assert score.loss == pytest.approx(2.466071294787149, abs=1e-12)
    assert score.score == 62 / 360


def test_the_calibration_follows_the_weights(comm):
    """Every evaluation is that of the present weights, and changes nothing in training."""
    often, progress = trained(comm, evaluate__every=1)
    rarely, _ = trained(comm)
    assert [one.score is not None for one in progress] == [True] * 4
    assert len({one.score.loss for one in progress}) == 4
    for name, values in whole(often).items():
        np.testing.assert_array_equal(values, whole(rarely)[name])
    fresh = FullNetwork(often.architecture, often.store, comm, often.evaluator.plan.sharded)
    sample = calibration_sample(often, 1024)
    fresh.calibrate(sample)
    often.evaluator.calibrate()
    assert torch.equal(fresh(sample[:5]), often.evaluator.network(sample[:5]))


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_more_ranks_than_labels(comm, shared_tmp, norm):
    write(comm, shared_tmp / "two.npz", labels=2)
    training, progress = trained(comm, data__source=str(shared_tmp / "two.npz"), model__norm=norm, model__bias=True)
    forward = plain(training, calibration_sample(training, 1024))
    assert (progress[-1].score.loss, progress[-1].score.score) == pytest.approx(
        scored(forward, training.dataset.test), abs=1e-10
    )
    comm.barrier()


def test_regression(comm, shared_tmp):
    write(comm, shared_tmp / "numbers.npz", labels=None)
    training, progress = trained(comm, data__source=str(shared_tmp / "numbers.npz"), optimizer__lr=0.01)
    forward = plain_regression(training)
    x, y = examples_of(training.dataset.test, np.arange(len(training.dataset.test)))
    errors = forward(torch.from_numpy(x).double()).numpy() - y
    assert progress[-1].score.loss == pytest.approx((errors**2).mean(), abs=1e-10)
    _, std = training.dataset.targets
    assert progress[-1].score.score == pytest.approx((np.abs(errors) * std).mean(), abs=1e-10)
    comm.barrier()


def plain_regression(training):
    object.__setattr__(training.run.model, "output_norm", False)  # its default for regression, spelt out for `plain`
    return plain(training, calibration_sample(training, 1024))


@pytest.mark.parametrize("settings", [{}, {"model__norm": "layer", "model__bias": True}], ids=["batch", "layer"])
def test_where_every_rank_has_its_own_file_the_weights_travel(comm, shared_tmp, settings):
    """Files of different sizes, calibrated on all training examples: the score of all files laid end to end."""
    path = shared_tmp / f"data-{comm.rank}.npz"
    arrays = random_data(seed=comm.rank, rows=30 + 11 * comm.rank, labels=3)
    np.savez(path, **arrays)
    comm.barrier()
    settings = {
        "data__source": str(shared_tmp / "data-{rank}.npz"),
        "evaluate__calibration_examples": 10000,
        **settings,
    }
    training, progress = trained(comm, evaluate__batch=16, **settings)
    per_rank = comm.allgather(arrays)
    together = {name: np.concatenate([one[name] for one in per_rank]) for name in arrays}
    forward = plain(training, torch.from_numpy(together["x_train"]).double())
    outputs = forward(torch.from_numpy(together["x_test"]).double())
    y = together["y_test"]
    loss = float((outputs.logsumexp(dim=1) - outputs[torch.arange(len(y)), torch.from_numpy(y)]).mean())
    score = progress[-1].score
    assert score.examples == len(y)
    assert score.loss == pytest.approx(loss, abs=1e-10)
    assert score.score == pytest.approx((outputs.argmax(dim=1).numpy() == y).mean())
    assert comm.allgather(score) == [score] * comm.size
    comm.barrier()


def random_data(seed, rows, labels):
    random = np.random.default_rng(seed)
    x = random.normal(size=(2 * rows, 6)).astype(np.float32)
    if labels is None:
        y = np.stack([x.sum(axis=1), x[:, 0]], axis=1).astype(np.float32)
    else:
        y = np.concatenate([np.arange(labels), random.integers(0, labels, 2 * rows - labels)])
    order = np.concatenate([np.arange(rows), rows + np.arange(rows)])
    x, y = x[order], y[order]
    y_test = np.concatenate([y[:3], y[rows + 3 :]])  # every class in both splits
    return {"x_train": x[:rows], "y_train": y[:rows], "x_test": x[rows:], "y_test": y_test}


def write(comm, path, labels=3, order=0):
    """One file for all ranks; its test rows in one order or another."""
    if comm.rank == 0:
        arrays = random_data(0, 50, labels)
        shuffled = np.random.default_rng(order).permutation(50)
        arrays |= {name: arrays[name][shuffled] for name in ("x_test", "y_test")}
        np.savez(path, **arrays)
    comm.barrier()


def test_a_rank_gets_on_with_each_batch_that_it_evaluates(comm, monkeypatch):
    """Or one that is slow in a long evaluation would be taken for stuck."""
    training, _ = trained(comm, evaluate__batch=3, train__rounds=1)
    moments = []
    monkeypatch.setattr(comm.whereabouts, "heartbeat", lambda: moments.append(1))
    score = training.evaluate()
    assert sum(comm.allgather(len(moments))) >= score.examples // 3
