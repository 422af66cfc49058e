"""Small runs for the tests of the engine, and a look at the whole network that they trained."""

import numpy as np
import torch

from istmpi.config import Run
from istmpi.methods.ist import IST
from istmpi.methods.joint import Joint
from istmpi.training.loop import Training
from istmpi.training.watch import Watch

SETTINGS = {
    "model.hidden": [13, 11],
    "model.dtype": "float64",
    "method.local_steps": 3,
    "optimizer.lr": 0.1,
    "train.rounds": 4,
    "train.batch": 8,
    "train.seed": 5,
    "train.threads": 1,
    "train.device": "cpu",
    "evaluate.every": 1000,
}


def small_run(**settings):
    """A run on the digits that takes milliseconds; ``method__name="ist"`` sets method.name."""
    return Run().override(SETTINGS | {key.replace("__", "."): value for key, value in settings.items()})


def own_run(**settings):
    """A small run of a network of one's own: the mlp's settings are none of it."""
    return small_run().override({key.replace("__", "."): value for key, value in settings.items()})


def trained(comm, **settings):
    """The Training of a small run after its last round, and the Progress of every round."""
    training = Training(small_run(**settings), comm)
    return training, list(training.rounds())


def whole(training):
    """Every tensor of the store, whole, on every rank: ``{name: array}``. Held weights have come home."""
    if isinstance(training.method, IST | Joint):
        training.method.publish()
    per_rank = training.communicator.allgather({name: t.numpy() for name, t in training.store.tensors.items()})
    return {name: np.concatenate([rows[name] for rows in per_rank]) for name in training.store.tensors}


def checkpoint_state(training, calibrated=False):
    """The header and this rank's pieces of a checkpoint; every rank raises the refusal of a rank."""
    header, pieces, refusal = training.collect_state(calibrated)
    with training.communicator.agreed():
        if refusal:
            raise refusal
    return header, pieces


def assert_same_bits(one, other):
    """The same names with the same values, to the last bit."""
    assert one.keys() == other.keys()
    for name in one:
        mine, theirs = np.asarray(one[name]), np.asarray(other[name])
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), name
        assert mine.tobytes() == theirs.tobytes(), f"{name} differs by up to {np.abs(mine - theirs).max()}"


def assert_near(found, expected, tolerance=1e-10):
    """All expected values, arrays or tensors by name, are found but for a tolerance."""
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=tolerance, err_msg=name)


def initial_weights(training):
    """The full network's weights as tensors, for an oracle that trains them."""
    weights = {name: values for name, values in whole(training).items() if "/" not in name}
    return {name: torch.from_numpy(values.copy()) for name, values in weights.items()}


def assert_trains(training, train, tolerance=1e-10):
    """All rounds give the weights and losses of an oracle that trains the initial weights; the progress and these."""
    initial = initial_weights(training)
    progress = list(training.rounds())
    expected, losses = train(initial)
    assert initial.keys() <= expected.keys()
    assert_trained(training, progress, expected, losses, tolerance)
    return progress, expected


def assert_trained(training, progress, expected, losses, tolerance=1e-10):
    """A training has an oracle's weights and losses; a record keeps losses as float32."""
    assert_near(whole(training), expected, tolerance)
    np.testing.assert_allclose([one.loss for one in progress], losses, rtol=1e-6)


def on_root(comm, action):
    """Rank 0 does something while the other ranks wait."""
    comm.barrier()
    if comm.rank == 0:
        action()
    comm.barrier()


class Listening(Watch):
    """Hears what a run says: ``said``."""

    def __init__(self):
        self.said = []

    def noticed(self, message):
        self.said.append(message)
