"""A wider network that begins with a narrower one's weights computes what that does, and trains on."""

import numpy as np
import pytest
from own_runs import own_trained
from resuming import save
from small import assert_same_bits, own_run, whole

from istmpi.deploy.scoring import evaluate
from istmpi.training.loop import Training
from istmpi.training.run import load_initial_weights

RESNET = {"model__name": "resnet", "model__blocks": [1, 5], "method__partition": ["blocks2", "inner1"]}
CASES = {
    "mlp": ({"model__hidden": [6, 5]}, {"model__hidden": [13, 11]}),
    "sums that are scaled": (
        {"model__hidden": [6, 5], "model__norm": "none", "model__scale": "share"},
        {"model__hidden": [6, 11], "model__norm": "none", "model__scale": "share"},
    ),
    "resnet": (
        RESNET | {"model__channels": [4, 5], "model__inner": [4, 5]},
        RESNET | {"model__channels": [7, 5], "model__inner": [4, 9]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wider_network_begins_as_the_narrow_one_and_trains_on(comm, shared_tmp, case):
    narrow, wide = CASES[case]
    path = save(own_trained(comm, **narrow)[0], shared_tmp / "narrow.h5")
    settings = wide | {"train__init": str(path), "train__widen": True}
    training = Training(own_run(**settings), comm)
    assert "narrower in the file, in the first places here" in "\n".join(load_initial_weights(training))
    before = whole(training)
    begun = save(training, shared_tmp / "wide.h5")
    losses = [evaluate(file, comm).score.loss for file in (path, begun)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    rounds = training.rounds()
    next(rounds)
    middle = save(training, shared_tmp / "middle.h5")
    list(rounds)
    after = whole(training)
    # New units are no copies: all weights between them train.
    assert all(np.any(before[name] != after[name]) for name in before)
    resumed = Training(own_run(**settings), comm)
    resumed.resume(middle)
    list(resumed.rounds())
    assert_same_bits(after, whole(resumed))


def test_another_network_is_not_widened(comm, shared_tmp):
    """A longer axis, and a kernel of another size, are no narrower network."""
    path = save(own_trained(comm, model__hidden=[6, 5])[0], shared_tmp / "network.h5")
    settings = {"model__hidden": [9, 4], "train__init": str(path), "train__widen": True}
    lines = "\n".join(load_initial_weights(Training(own_run(**settings), comm)))
    assert "wrong shape, ignored: hidden2.linear.weight" in lines and "places here: hidden1.linear.weight" in lines
