"""Augmented images in a run: what a rank sees is a function of seed, rank and step; the evaluation sees none of it."""

import images_oracle
import networks
import numpy as np
import pytest
from small import own_run, small_run

from istmpi.data.sources import open_dataset
from istmpi.training.loop import Training

AUGMENTED = {"data__crop": 2, "data__flip": True, "data__cutout": 3}
OWN = {"model__name": f"{networks.__file__}:Convolutional", "model__channels": [7, 5], "model__hidden": 6}


RUNS = {"mlp": (small_run, {}, (64,)), "convolutional": (own_run, OWN, (1, 8, 8))}


@pytest.mark.parametrize("name", RUNS)
def test_every_rank_sees_the_images_of_the_naive_oracle(comm, name):
    make, settings, shape = RUNS[name]
    training = Training(make(**settings, **AUGMENTED), comm)
    train, per_rank = open_dataset("digits").train, []
    for step in (0, 1, 200):
        batch = training.method.batch(step)
        rows = training.batches.indices(step)
        stored = (train.x[rows] - train.mean) / train.std
        key = images_oracle.key_of(training.run.train.seed, "batch", comm.rank, step)
        expected = images_oracle.augmented(stored.reshape(-1, 1, 8, 8), key, 2, True, 3)
        assert batch.inputs[0].shape == (8, *shape)
        np.testing.assert_array_equal(batch.inputs[0].numpy().reshape(expected.shape), expected)
        np.testing.assert_array_equal(batch.targets.numpy(), train.y[rows])
        per_rank += comm.allgather(expected.tobytes())
    assert len(set(per_rank)) == len(per_rank)


def test_the_evaluation_sees_the_images_as_they_are(comm):
    plain, training = (Training(own_run(**OWN, **more), comm) for more in ({}, AUGMENTED))
    assert training.evaluate() == plain.evaluate()
    losses = [next(one.rounds()).loss for one in (plain, training)]
    assert losses[0] != losses[1], "training does see others"
    comm.barrier()
