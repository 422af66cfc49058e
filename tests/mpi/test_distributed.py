"""A user's own loop: the same bits as `istmpi train`, and a clear line for each way to use it wrongly."""

import networks
import numpy as np
import pytest
import torch
from own_runs import FILE
from small import assert_same_bits, own_run, whole
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import istmpi
from istmpi.errors import ConfigError, DataError, DivergedError, StoppedError
from istmpi.training.loop import Training
from istmpi.training.watch import Watch

pytestmark = pytest.mark.both

ARGUMENTS = {"shape": (1, 8, 8), "outputs": 10, "channels": [7, 5], "hidden": 6}
SETTINGS = {"local_steps": 3, "seed": 5, "threads": 1, "device": "cpu", "dtype": "float64"}
EXAMPLE = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
AS_TRAIN = {
    "data__source": "digits",
    "model__name": f"{FILE}:Convolutional",
    "model__channels": [7, 5],
    "model__hidden": 6,
    "train__rounds": 4,
}
METHODS = [
    {"method": "ist"},
    {"method": "ist", "redeal": 0.1, "optimizer_state": "carry", "optimizer": "adamw"},
    {"method": "local-sgd", "optimizer": "adam", "optimizer_state": "carry"},
    {"method": "data-parallel"},
    {"method": "diloco"},
    {"method": "streaming-diloco"},
    {"method": "sparse-loco"},
    {"method": "dynamic-averaging"},
    {"method": "admm"},
    {"method": "downpour"},
    {"method": "easgd"},
]


def distributed(comm, **settings):
    return istmpi.Distributed(networks.Convolutional, ARGUMENTS, comm, example=EXAMPLE, **SETTINGS | settings)


def loss_of(module, batch):
    x, y = batch
    return functional.cross_entropy(module(x.double()), y)


def accuracy(module, batch):
    x, y = batch
    return (module(x.double()).argmax(dim=1) == y).double().mean()


def as_run(settings):
    known = {"method": "method.name", "optimizer": "optimizer.name", "lr": "optimizer.lr"}
    return {known.get(key, f"method.{key}"): value for key, value in settings.items()}


def run_of(settings, rounds=4):
    return own_run(**AS_TRAIN).override(as_run(settings) | {"train.rounds": rounds})


def steps_from(batches, first):
    step = first
    while True:
        batch = batches.at(step)
        yield batch.inputs[0], batch.targets
        step += 1


def loop(job, batches, first, rounds, by_hand=False, **more):
    taken = steps_from(batches, first)
    for round in job.rounds(rounds, watch=Watch(), signals=False, **more):
        for batch in round.take(taken):
            loss = loss_of(round.module, batch)
            if by_hand:
                loss.backward()
                round.optimizer.step()
            else:
                round.step(loss)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("settings", METHODS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_it_trains_to_the_bits_of_the_command(comm, shared_tmp, settings, by_hand):
    training = Training(run_of(settings), comm)
    progress = list(training.rounds())
    job = distributed(comm, lr=0.1, **settings)
    loop(job, training.batches, 0, 4, by_hand, folder=shared_tmp / "run")
    assert_same_bits(whole(job.training), whole(training))
    assert job.training.tally.counts.bytes == progress[-1].bytes
    if not by_hand:
        assert job.summary.last.loss == progress[-1].loss


@pytest.mark.parametrize("settings", METHODS[:4], ids=lambda settings: "-".join(map(str, settings.values())))
def test_a_resumed_loop_trains_to_the_bits_of_an_uninterrupted_one(comm, shared_tmp, settings):
    whole_job = distributed(comm, lr=0.1, **settings)
    batches = Training(run_of(settings), comm).batches
    loop(whole_job, batches, 0, 4, folder=shared_tmp / "whole")
    folder = shared_tmp / "halves"
    first = distributed(comm, lr=0.1, **settings)
    with pytest.raises(StoppedError, match="stopped by the file .*STOP, after [23] of 4 rounds; saved in"):
        for round in first.rounds(4, folder=folder, watch=Watch(), signals=False):
            for batch in round.take(steps_from(batches, 3 * (round.number - 1))):
                round.step(loss_of(round.module, batch))
            if round.number == 1 and comm.rank == 0:
                (folder / "STOP").touch()
    comm.barrier()
    if comm.rank == 0:
        (folder / "STOP").unlink()
    comm.barrier()
    second, begin = distributed(comm, lr=0.1, **settings), None
    for round in second.rounds(4, folder=folder, resume="auto", watch=Watch(), signals=False):
        begin = begin or round.number
        for batch in round.take(steps_from(batches, 3 * (round.number - 1))):
            round.step(loss_of(round.module, batch))
    assert begin in (3, 4)
    assert_same_bits(whole(second.training), whole(whole_job.training))
