"""Probabilities of a classifier that is saved: as often right as they say; scores are those of training."""

import numpy as np
import pytest
import torch
from batches import examples_of
from small import trained

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.data.sources import open_dataset
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate
from istmpi.evaluation.fitting import fit_temperature
from istmpi.evaluation.sample import draw_calibration_rows

pytestmark = pytest.mark.ranks(only=[1, 3])
LONGER = {"train__rounds": 12, "model__hidden": [40], "train__batch": 32, "model__dtype": "float32"}


@pytest.mark.parametrize("settings", [{}, {"data__validation": 0.2}, {"evaluate__batch": 100}])
def test_it_is_fitted_stored_and_applied(comm, shared_tmp, settings):
    training, progress = trained(comm, **LONGER, **settings)
    path = shared_tmp / "network.h5"
    commit(path, *training.state(calibrated=True), "direct", comm)
    with open_checkpoint(path) as checkpoint:
        temperature, run = checkpoint.header.temperature, checkpoint.header.run
        network = CalibratedNetwork(checkpoint)
    assert comm.allgather(temperature) == [temperature] * comm.size and temperature != 1
    # In one process, from the outputs of the network that predicts.
    if run.data.validation:
        split = training.dataset.splits["validation"]
        rows = np.arange(len(split))
    else:
        split = training.dataset.train
        rows = draw_calibration_rows(run, len(split), 1024)
    data = open_dataset("digits")
    x, y = examples_of(split, rows)
    logits = network(x.reshape(len(x), -1) * data.std + data.mean) * temperature
    alone = fit_temperature(torch.from_numpy(logits).double(), torch.from_numpy(y), lambda own: own)
    assert temperature == pytest.approx(alone, rel=1e-4)
    raw = data.test.with_normalisation(None)
    x, y = examples_of(raw, np.arange(len(raw)))
    odds = torch.softmax(torch.from_numpy(network(x.reshape(len(x), -1))), dim=1).numpy()
    accuracy = (odds.argmax(axis=1) == y).mean()
    assert accuracy == pytest.approx(progress[-1].score.score)
    assert abs(odds.max(axis=1).mean() - accuracy) < 0.06
    again = evaluate(path, comm).score  # losses are of the logits that were trained, whatever the temperature
    assert (again.score, again.loss) == (progress[-1].score.score, pytest.approx(progress[-1].score.loss, rel=1e-5))
