"""The methods against a naive oracle in one process, and against each other where one is a case of another."""

import numpy as np
import oracle
import pytest
from batches import plain
from replicas import replicas
from small import assert_near, assert_same_bits, assert_trained, trained, whole
from torch import nn

from istmpi.config.methods import METHODS

# Batch normalisation makes gradients that are zero but for rounding, which Adam blows up to 1e-9.
ADAM = {"optimizer__name": "adamw", "model__norm": "none", "model__bias": True}
CARRIED = {"method__optimizer_state": "carry"}
MOMENTUM = {"optimizer__momentum": 0.9, "optimizer__lr": 0.03, **CARRIED}
CASES = {
    "no norm, bias, tanh": {"model__norm": "none", "model__bias": True, "model__activation": "tanh"},
    "batch norm, bias, no output norm": {"model__bias": True, "model__output_norm": False},
    "one layer": {"model__hidden": [7]},
    "three layers, one as wide as there are ranks": {"model__hidden": [9, 3, 7], "model__norm": "layer"},
    "shares": {"method__shares": [3.0, 1.0, 2.0]},
    "never redealt": {"method__redeal": 0.0},
    "one group dealt": {"method__partition": ["hidden1"], "model__norm": "layer"},
    "nothing dealt": {"method__partition": []},
    "momentum carried": MOMENTUM,
    "weight decay": {"optimizer__weight_decay": 0.1},
    "adam reset": {**ADAM, "optimizer__weight_decay": 0.1},
    "adam carried, a part redealt": {**ADAM, "method__optimizer_state": "carry", "method__redeal": 0.5},
    "local SGD, momentum carried": {"method__name": "local-sgd", **MOMENTUM},
    "outer step, a part redealt": {"method__outer_lr": 0.7, "method__outer_momentum": 0.9, "method__redeal": 0.4},
    "local SGD, adam kept": {"method__name": "local-sgd", **ADAM, "method__optimizer_state": "keep"},
    "cosine": {"optimizer__warm_up": 2, "optimizer__schedule": "cosine"},
    "a finish of local SGD": {"method__finish": "local-sgd:40%", "train__rounds": 5, "method__outer_momentum": 0.5},
    "a finish of local SGD, adam carried": {**ADAM, "method__finish": "local-sgd:50%", **CARRIED},
    "shards by label": {"data__placement": "by-label", "data__alpha": 1.0},
}


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_the_naive_oracle(comm, case):
    training, progress = trained(comm, **CASES[case])
    groups = METHODS[training.run.method.name].groups(training.run, training.architecture)
    weights, losses = oracle.train(training.run, training.architecture, comm.size, groups)
    assert_trained(training, progress, weights, losses)


def bare_loop(run, streams, steps):
    """A plain PyTorch loop on the full network; a batch is all the streams' batches, one after the other."""
    first, *others = replicas(run, streams)
    for step in range(steps):
        parts = [plain(one.batches.at(step)) for one in (first, *others)]
        first.learn(*(np.concatenate(part) for part in zip(*parts)))
    return first.named()


ON_ONE_RANK = ("ist", "local-sgd", "data-parallel", "dynamic-averaging", "codistillation", "diloco", "joint")
BARE = {
    "batch": {"model__norm": "batch", "model__dtype": "float32", "model__bias": True},
    "momentum": MOMENTUM,
}


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize("case", BARE)
@pytest.mark.parametrize("method", ON_ONE_RANK)
def test_on_one_rank_every_method_is_plain_sgd_bit_for_bit(comm, method, case):
    settings = BARE[case] | ({"method__outer_lr": 1.0, "method__outer_momentum": 0.0} if method == "diloco" else {})
    training, _ = trained(comm, method__name=method, **settings)
    mine = {name: values for name, values in whole(training).items() if "/" not in name}
    assert_same_bits(mine, bare_loop(training.run, 1, 12))


SELDOM = {"method__share_every": 2}
LONG = {"method__local_steps": 6, "train__rounds": 2}


@pytest.mark.parametrize("state", ["reset", "carry"])
@pytest.mark.parametrize("dealt, local", [({}, {}), (SELDOM, LONG)], ids=["", "a mean every second round"])
def test_ist_with_nothing_dealt_is_local_sgd_bit_for_bit(comm, state, dealt, local):
    """Two rounds up to a mean are one of twice as many steps."""
    settings = {"method__optimizer_state": state, "optimizer__momentum": 0.9, "model__dtype": "float32"}
    if dealt and state == "reset":
        settings["optimizer__momentum"] = 0.0
    nothing, mine = trained(comm, method__partition=[], **settings, **dealt)
    averaged, expected = trained(comm, method__name="local-sgd", **settings, **local)
    assert_same_bits(whole(nothing), whole(averaged))
    assert mine[-1].bytes == expected[-1].bytes
    assert dealt or [one.loss for one in mine] == [one.loss for one in expected]


def test_local_sgd_with_one_local_step_is_data_parallel(comm):
    settings = {"method__local_steps": 1, "train__rounds": 6, "model__bias": True}
    local, _ = trained(comm, method__name="local-sgd", **settings)
    parallel, _ = trained(comm, method__name="data-parallel", **settings)
    assert_near(whole(local), whole(parallel), 1e-12)


@pytest.mark.parametrize("norm, momentum", [("layer", 0.9), ("none", 0.0)])
def test_data_parallel_is_sgd_on_a_batch_p_times_as_large(comm, norm, momentum):
    settings = {"model__norm": norm, "model__bias": True, "optimizer__momentum": momentum, "optimizer__lr": 0.03}
    training, _ = trained(comm, method__name="data-parallel", **settings)
    assert_near(whole(training), bare_loop(training.run, comm.size, 12))


@pytest.mark.ranks(only=[2])
def test_carried_moments_of_adam_dropout_and_bfloat16_go_together(comm):
    settings = {"optimizer__name": "adam", "optimizer__lr": 0.01, "method__optimizer_state": "carry"}
    settings |= {"model__hidden": [32, 16], "model__dtype": "float32", "model__dropout": 0.1, "train__autocast": True}
    assert trained(comm, **settings, method__local_steps=10, train__rounds=20)[1][-1].score.score > 0.7


def test_every_rank_trains_its_own_narrow_network(comm):
    """No rank has the full network, and all units are trained: 13 + 11 over all ranks."""
    training, _ = trained(comm)
    layers = [module for module in training.method.subnet.network.modules() if isinstance(module, nn.Linear)]
    assert np.sum(comm.allgather([layer.out_features for layer in layers]), axis=0).tolist() == [13, 11, 10 * comm.size]


def test_training_in_bfloat16_stays_near(comm):
    exact, _ = trained(comm, model__dtype="float32", train__rounds=1, method__local_steps=1)
    rounded, _ = trained(comm, model__dtype="float32", train__rounds=1, method__local_steps=1, train__autocast=True)
    mine, expected = whole(rounded)["labels.linear.weight"], whole(exact)["labels.linear.weight"]
    assert mine.dtype == np.float32
    assert 0 < np.abs(mine - expected).max() < 0.05
