"""A user's own loops, for the tests of `istmpi.Distributed`."""

from functools import partial

import networks
import numpy as np
import pytest
import torch
from own_runs import FILE
from small import on_root, own_run
from torch.nn import functional
from torch.utils.data import Dataset

import istmpi
from istmpi.data.sources import open_dataset
from istmpi.errors import StoppedError
from istmpi.training.loop import Training
from istmpi.training.watch import Watch

ARGUMENTS = {"shape": (1, 8, 8), "outputs": 10, "channels": [7, 5], "hidden": 6}
SETTINGS = {"local_steps": 3, "seed": 5, "threads": 1, "device": "cpu", "dtype": "float64"}
EXAMPLE = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
ZEROS = torch.zeros(8).long()
AS_TRAIN = {
    "data__source": "digits",
    "model__name": f"{FILE}:Convolutional",
    "model__channels": [7, 5],
    "model__hidden": 6,
    "train__rounds": 4,
    "model__init": "constructor",
}


def make_job(comm, network=networks.Convolutional, **settings):
    """Make a job of a convolutional network."""
    return istmpi.Distributed(network, ARGUMENTS, comm, **{"example": EXAMPLE} | SETTINGS | settings)


def make_towers(comm, hidden=16, **settings):
    """Make a job of two towers, which take five features each."""
    arguments, settings = {"features": 5, "hidden": hidden}, {"example": pair(6)} | SETTINGS | settings
    return istmpi.Distributed(networks.TwoTowers, arguments, comm, **settings)


def begin_rounds(job, rounds, folder, watch=None, **more):
    """Begin the rounds of a job that neither prints nor waits for signals."""
    return job.rounds(rounds, folder=folder, watch=watch or Watch(), signals=False, **more)


def seeded(step):
    return torch.Generator().manual_seed(step)


def pair(rows):
    return torch.randn(rows, 5), torch.randn(rows, 5)


def square_loss(module, x):
    return module(x, x).square().mean()


def take_steps(round):
    """Take the local steps of a round of two towers with random examples."""
    for _ in round.steps():
        round.step(round.module(*(x.double() for x in pair(4))).square().mean())


def compute_loss(module, batch):
    x, y = batch
    return functional.cross_entropy(module(x.double()), y)


def sum_outputs(round, x):
    return round.outputs(round.module(x))


def accuracy(module, batch):
    x, y = batch
    return (module(x.double()).argmax(dim=1) == y).double().mean()


def rmsprop(parameters):
    """A user's optimizer."""
    return torch.optim.RMSprop(parameters, lr=0.01)


def choose_method(comm):
    """Choose IST, which needs several ranks, where there are several."""
    return "ist" if comm.size > 1 else "local-sgd"


def translate(settings):
    known = {"method": "method.name", "optimizer": "optimizer.name", "lr": "optimizer.lr"}
    return {known.get(key, f"method.{key}"): value for key, value in settings.items()}


def make_training(comm, rounds=4, **settings):
    """Make the training of the command that does what a loop with these settings does."""
    return Training(own_run(**AS_TRAIN).override(translate(settings) | {"train.rounds": rounds}), comm)


def make_batches(comm, **settings):
    """Make the batches that the command takes."""
    return make_training(comm, **settings).batches


def yield_steps(batches, first):
    step = first
    while True:
        batch = batches.at(step)
        yield batch.inputs[0], batch.targets
        step += 1


def train(job, batches, rounds, folder, by_hand=False, behind=lambda round: None, scaler=None, **more):
    """Train with the batches that the command takes in the same steps; return the number of the first round."""
    first = None
    for round in begin_rounds(job, rounds, folder, **more):
        first = first or round.number
        for batch in round.take(yield_steps(batches, 3 * (round.number - 1))):
            loss = compute_loss(partial(sum_outputs, round), batch)
            if by_hand:
                loss.backward()
                round.optimizer.step()
            else:
                round.step(loss, scaler)
        behind(round)
    return first


def train_until_stopped(job, batches, folder, number, behind=lambda round: None, **more):
    """Train four rounds, of which a file stops one; the file is gone behind it. Return the message."""
    comm = job.communicator

    def stop(round):
        if round.number == number and comm.rank == 0:
            (folder / "STOP").touch()
        behind(round)

    with pytest.raises(StoppedError) as stopped:
        train(job, batches, 4, folder, behind=stop, **more)
    on_root(comm, (folder / "STOP").unlink)
    return str(stopped.value)


class Digits(Dataset):
    """The digits, one by one."""

    def __init__(self, split="train"):
        rows = open_dataset("digits").splits[split]
        self._batch = rows.batch(np.arange(len(rows)))

    def __len__(self):
        return self._batch.examples

    def __getitem__(self, index):
        return self._batch.inputs[0][index].view(1, 8, 8), self._batch.targets[index]
