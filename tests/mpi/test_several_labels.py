"""Dense examples with several labels: the scores of all ranks together are those of one process."""

import numpy as np
import pytest
from batches import examples_of
from labels_oracle import naive_scores, write
from own_runs import FILE, RESNET, own_trained
from small import on_root, trained

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate

pytestmark = pytest.mark.ranks(only=[1, 3])


def scores(score):
    return {"loss": score.loss, "P@1": score.score, **score.more}


def source(comm, folder, **more):
    on_root(comm, lambda: write(folder / "several.npz", **more))
    return str(folder / "several.npz")


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("method", ["ist", "local-sgd", "fedavg"])
def test_scores_are_those_of_one_process(comm, shared_tmp, method):
    path = source(comm, shared_tmp, labels=4 if method == "fedavg" else 6)
    check(comm, shared_tmp, *trained(comm, data__source=path, method__name=method, optimizer__lr=0.5))


@pytest.mark.parametrize("model", ["Rows", "resnet"])
def test_so_are_those_of_plain_modules(comm, shared_tmp, model):
    settings = RESNET | {"model__exits": [1]} if model == "resnet" else {"model__name": f"{FILE}:{model}"}
    path = source(comm, shared_tmp, shape=(1, 8, 8))
    training, progress = own_trained(comm, data__source=path, **settings)
    check(comm, shared_tmp, training, progress)
    exits = progress[-1].score.exits
    assert exits is None if model == "Rows" else exits[-1] == progress[-1].score.score


def check(comm, folder, training, progress):
    """The last scores are those of the checkpoint, and those that a naive oracle makes of all outputs."""
    score, path = progress[-1].score, folder / "network.h5"
    own = training.run.model.name if ":" in training.run.model.name else None
    commit(path, *training.state(calibrated=True), "direct", comm)
    assert scores(evaluate(path, comm, model=own).score) == pytest.approx(scores(score), abs=1e-9)
    with open_checkpoint(path) as checkpoint:
        network = CalibratedNetwork(checkpoint, model=own)
    test = training.dataset.test
    x, y = examples_of(test, np.arange(len(test)))
    expected = naive_scores(network(x), y)
    if len(training.architecture.table.output_names) > 1:
        expected["loss"] = score.loss  # the sum over exits
    assert scores(score) == pytest.approx(expected, abs=1e-6)
