"""Images in a run: small ones first, and what is carried to larger ones; augmented ones, of which scores see nothing.
test_interrupted.py goes on with images that grow.
"""

import images_oracle
import networks
import numpy as np
import pytest
from batches import examples_of
from images_oracle import downscaled
from own_runs import CONVOLUTIONAL, RESNET, own_trained
from resuming import save
from small import own_run, small_run, whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.cost import phase_costs
from istmpi.data.sources import open_dataset
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError
from istmpi.training.loop import Training

GROWING = {"train__resolution": [[0.5, 4], [0.5, 8]], "train__rounds": 4}
ADAM = {"optimizer__name": "adam", "optimizer__lr": 0.01, "method__optimizer_state": "carry"}


def test_the_first_rounds_are_those_of_small_data(comm, shared_tmp):
    """Which are downscaled by hand; and at the end the network is one of full size."""
    if comm.rank == 0:
        arrays = {}
        for name, split in open_dataset("digits").splits.items():
            x, y = examples_of(split, np.arange(len(split)))
            small = [downscaled(image.reshape(8, 8), 4) for image in x]
            arrays |= {f"x_{name}": np.array(small, np.float32)[:, None], f"y_{name}": y}
        np.savez(shared_tmp / "small.npz", **arrays)
    comm.barrier()
    training, progress = own_trained(comm, **RESNET | GROWING | {"evaluate__every": 2})
    settings = RESNET | {"data__source": str(shared_tmp / "small.npz"), "train__rounds": 2}
    _, expected = own_trained(comm, **settings)
    assert [one.loss for one in progress[:2]] == pytest.approx([one.loss for one in expected], rel=1e-5)
    assert progress[1].score.loss == pytest.approx(expected[1].score.loss, rel=1e-5)
    assert training.size.side == 0 and training.dataset.shape == (1, 8, 8)


@pytest.mark.parametrize("settings", [RESNET | {"model__exits": [1]}, CONVOLUTIONAL], ids=["resnet", "convolutional"])
def test_what_does_not_depend_on_the_size_is_carried(comm, settings):
    settings = settings | GROWING | ADAM
    training = Training(own_run(**settings), comm)
    rounds = training.rounds()
    next(rounds), next(rounds)
    assert training.size.side == 4, "what was trained is evaluated at its size"
    before = whole(training)
    training._grow_if_due()
    after, new = whole(training), whole(Training(own_run(**settings | {"train__resolution": []}), comm))
    anew = {"dense.weight"} if "model__hidden" in settings else set()
    assert after.keys() == before.keys()
    for name in after:
        parameter = getattr(name, "parameter", name)
        if parameter not in anew:
            np.testing.assert_array_equal(after[name], before[name], name)
        elif name == parameter:
            np.testing.assert_array_equal(after[name], new[name], name)
        else:
            assert not after[name].any(), name
    assert ("; 8 x 8 for 2 rounds, dense.weight anew" in training.sizes_in_words) == bool(anew)
    assert all(np.isfinite(progress.loss) for progress in rounds)


def test_a_network_of_small_images_is_of_use(comm, shared_tmp):
    """A checkpoint from the first size takes examples as they are in the data, and makes them small."""
    path = shared_tmp / "small.h5"
    training = Training(own_run(**CONVOLUTIONAL | GROWING | {"evaluate__every": 1}), comm)
    progress = next(training.rounds())
    save(training, path, calibrated=True)
    name = CONVOLUTIONAL["model__name"]
    result = evaluate(path, comm, model=name)
    assert result.score.loss == pytest.approx(progress.score.loss, rel=1e-9)
    assert result.score.score == progress.score.score
    test = open_dataset("digits").test
    x, labels = examples_of(test.with_normalisation(None), np.arange(len(test)))
    with open_checkpoint(path) as checkpoint:
        assert (checkpoint.header.side, checkpoint.header.shape) == (4, (1, 4, 4))
        right = CalibratedNetwork(checkpoint, model=name)(x).argmax(1) == labels
        assert CalibratedNetwork(checkpoint, "digits", name)(x[:1]).shape == (1, 10)
    assert right.mean() == pytest.approx(result.score.score)
    with pytest.raises(ConfigError, match="was saved while training on images of side 4"):
        export(path, "npz", model=name)
    other = Training(own_run(**CONVOLUTIONAL | {"train__rounds": 4}), comm)
    with pytest.raises(ConfigError, match="train.resolution = .* in the checkpoint"):
        other.resume(path)


def test_a_plan_knows_the_sizes(comm):
    settings = RESNET | GROWING | {"method__name": "local-sgd"}
    training, progress = own_trained(comm, **settings)
    smaller = {4: training.sizes[4].architecture}
    costs = phase_costs(training.run, training.sizes[0].architecture, comm.size, smaller=smaller)
    assert [(cost.side, rounds) for cost, rounds in costs] == [(4, 2), (8, 2)]
    assert sum(cost.sent_bytes(first, rounds) for first, (cost, rounds) in zip((0, 2), costs)) == progress[-1].bytes
    small, large = (cost.flops("products") for cost, _ in costs)
    assert 3 < large / small < 4, "a quarter of the pixels"


# ---- augmented images: what a rank sees is a function of seed, rank and step


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
