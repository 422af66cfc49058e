"""The full network sums over more units than a subnet: what it multiplies them by, against NumPy."""

import numpy as np
import pytest
import torch
from batches import examples_of
from resuming import save
from small import small_run, trained, whole
from uses import check_uses, read_all

from istmpi.comm import Communicator
from istmpi.evaluation.sample import draw_calibration_rows
from istmpi.training.loop import Training

TARGET = 10.0
NUMBERS = {
    "optimizer__lr": 0.005,
    "method__local_steps": 10,
    "train__rounds": 20,
    "train__batch": 32,
    "model__norm": "none",
    "model__hidden": [130, 87],
}
BOTH = ["hidden1", "hidden2"]


def numbers(comm, folder):
    """Numbers around TARGET that a linear map of six features gives: without noise, so that all losses come down."""
    path = folder / "numbers.npz"
    if comm.rank == 0:
        random = np.random.default_rng(3)
        x = random.uniform(size=(300, 6)).astype(np.float32)
        y = TARGET + x @ random.normal(size=(6, 1))
        np.savez(path, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    comm.barrier()
    return {**NUMBERS, "data__source": str(path), "data__standardise": False}  # or a bias would hide what is wrong


def outputs(training, shares, x):
    """The full network's outputs for examples: what NumPy makes of its weights and the shares of its hidden layers."""
    weights = whole(training)
    for number, (before, name) in enumerate([(None, "hidden1"), ("hidden1", "hidden2"), ("hidden2", "labels")]):
        x = x @ weights[f"{name}.linear.weight"].T * shares.get(before, 1) + weights[f"{name}.linear.bias"]
        x = np.maximum(x, 0) if number < 2 else x
    return x


@pytest.mark.parametrize(
    "partition, scale", [([], "share"), (["hidden2"], "share"), (BOTH, "share"), (BOTH, "none"), (BOTH, "fitted")]
)
def test_every_use_of_a_network_agrees_on_the_scale(comm, shared_tmp, partition, scale):
    """Training, its file, evaluation on any number of ranks and prediction: the formula with 1/P where it was dealt."""
    settings = numbers(comm, shared_tmp) | {"model__bias": True, "train__rounds": 3, "method__partition": partition}
    training, progress = trained(comm, **settings, model__scale=scale)
    x, _ = read_all(training.dataset.test)
    factors = dict.fromkeys(partition, 1.0 if scale == "none" else 1 / comm.size)
    if scale == "fitted":
        factors = dict(training.store.fitted)
        assert {*factors} == {*partition} and all(other == factors for other in comm.allgather(factors))
    expected = torch.from_numpy(outputs(training, factors, x.double().numpy()))
    check_uses(comm, shared_tmp / "network.h5", training, progress[-1].score, expected)


def test_on_other_ranks_it_goes_on_with_the_same_function(comm, shared_tmp):
    """Resumed on one rank, whose subnet is the full network, the loss goes on where it was; and the scale stays."""
    training, progress = trained(comm, **numbers(comm, shared_tmp))
    path = save(training, shared_tmp / "network.h5")
    resumed = Training(training.run.override({"train.rounds": 22}), Communicator(comm.mpi.Split(comm.rank)))
    resumed.resume(path)
    assert resumed.evaluate().loss == pytest.approx(progress[-1].score.loss, rel=1e-9)
    assert np.sqrt(next(iter(resumed.rounds())).loss) < 1.2 * np.sqrt(progress[-1].loss) + TARGET / 20
    assert dict(resumed.store.scale) == {"hidden1": 1 / comm.size, "hidden2": 1 / comm.size}


def test_fitted_factors_are_the_best_on_the_examples_that_they_are_fitted_on(comm, shared_tmp):
    """Of one layer: of two layers only their product counts."""
    settings = numbers(comm, shared_tmp) | {"model__hidden": [60], "evaluate__calibration_examples": 64}
    training, _ = trained(comm, **settings | {"model__scale": "fitted", "train__rounds": 6})
    split = training.dataset.train
    x, y = examples_of(split, draw_calibration_rows(training.run.train.seed, len(split), 64))
    weights = whole(training)
    hidden = np.maximum(x.astype(np.float64) @ weights["hidden1.linear.weight"].T, 0)
    outputs = hidden @ weights["labels.linear.weight"].T
    (fitted,) = training.store.fitted.values()
    best = min(np.geomspace(fitted / 3, fitted * 3, 200), key=lambda factor: ((outputs * factor - y) ** 2).mean())
    assert fitted == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_factors_are_fitted_on_fewer_examples_than_ranks(comm, norm):
    few = {"model__norm": norm, "model__output_norm": False, "evaluate__calibration_examples": 2}
    training, _ = trained(comm, model__scale="fitted", train__rounds=2, **few)
    factors = training.store.fitted.values()
    assert factors and all(0 < factor < np.inf for factor in factors)


def test_a_finish_goes_on_with_what_was_fitted(comm, shared_tmp):
    """Ranks train the very network that is evaluated; what was dealt out by then is not fitted any more."""
    settings = numbers(comm, shared_tmp) | {"method__finish": "local-sgd:50%", "train__rounds": 4}
    training = Training(small_run(**settings, model__scale="fitted", evaluate__every=1), comm)
    found = []
    for _ in training.rounds():
        found.append(dict(training.store.fitted))
    assert found[1] == found[2] == found[3] and found[0].keys() == found[3].keys()
    network, seen = training.method.subnet.network, []
    network[1][0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x = torch.ones(2, *training.architecture.example_shape, dtype=next(network.parameters()).dtype)
    network(x)
    torch.testing.assert_close(seen[0], network[0](x) * found[3]["hidden1"])
