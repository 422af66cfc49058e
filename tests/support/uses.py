"""All uses of a network that was trained, held against the outputs that a test has computed by hand."""

import numpy as np
import pytest
import torch
from batches import examples_of
from small import checkpoint_state
from torch.nn import functional

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.comm import Communicator
from istmpi.data.sources import open_dataset
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate


def read_all(split):
    """The examples and the targets of a split, as tensors."""
    return map(torch.from_numpy, examples_of(split, np.arange(len(split))))


def check_uses(comm, path, training, score, logits, plain=None, shape=(-1,)):
    """Training, scoring on these ranks and on one, prediction and exports use the network whose ``logits`` are given.
    The logits are those of the test split, in float64. ``plain``: a module that the state dict of an export fits,
    which takes examples of a shape."""
    x, y = read_all(training.dataset.test)
    regression = y.is_floating_point()
    loss = float((functional.mse_loss if regression else functional.cross_entropy)(logits, y))
    assert (score.loss, score.examples) == (pytest.approx(loss, rel=1e-9), len(y))
    name = training.run.model.name
    model = name if ":" in name else None
    commit(path, *checkpoint_state(training, calibrated=True), "direct", comm)
    for ranks in (comm, Communicator(comm.mpi.Split(comm.rank))):
        assert evaluate(path, ranks, model=model).score.loss == pytest.approx(loss, rel=1e-9)
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.errors()) == []
        test = open_dataset(training.run.data.source).with_normalisation(None).test
        raw = examples_of(test, np.arange(len(test)))[0]
        expected = logits / checkpoint.header.temperature
        for calibrate_on in (None, training.run.data.source):
            outputs = CalibratedNetwork(checkpoint, calibrate_on, model)(raw.copy())
            np.testing.assert_allclose(outputs, expected.numpy(), rtol=1e-9, atol=1e-9)
    if comm.rank == 0 and plain:
        done = export(path, "torch", model=model)
        plain.load_state_dict(torch.load(done.path, weights_only=True)["state_dict"])
        with torch.no_grad():
            torch.testing.assert_close(plain.eval()(x.double().view(len(x), *shape)), logits)
        program = torch.export.load(done.beside).module()
        outputs = program(torch.from_numpy(raw).double().view(len(x), *shape))
        torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    comm.barrier()
