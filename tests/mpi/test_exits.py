"""Networks with several exits in training and in use: scores of every exit."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from own_runs import FILE, RESNET, own_trained
from small import own_run, whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate
from istmpi.training.loop import Training

EARLY = {"model__name": f"{FILE}:Early", "train__rounds": 2, "train__exit_weights": [0.5, 1.0]}

pytestmark = pytest.mark.ranks(only=[1, 3])


def saved(comm, path, **settings):
    training, progress = own_trained(comm, **settings)
    commit(path, *training.state(calibrated=True), "direct", comm)
    return training, progress


@pytest.mark.parametrize("method", ["ist", "data-parallel", "fedavg", "codistillation"])
def test_every_method_trains_every_exit(comm, method):
    training = Training(own_run(**EARLY, method__name=method), comm)
    assert training.architecture.table.output_names == ("exit1", "output")
    before, progress = whole(training), list(training.rounds())
    after = whole(training)
    assert all(np.abs(after[name] - before[name]).max() > 1e-4 for name in ("exit.weight", "last.weight"))
    score = progress[-1].score
    assert len(score.exits) == 2 and score.exits[-1] == score.score


def test_a_regression_has_exits(comm, shared_tmp):
    if comm.rank == 0:
        random = np.random.default_rng(3)
        x = random.uniform(size=(300, 6)).astype(np.float32)
        y = x @ random.normal(size=(6, 2))
        np.savez(shared_tmp / "numbers.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    comm.barrier()
    path = shared_tmp / "network.h5"
    _, progress = saved(comm, path, **EARLY | {"data__source": str(shared_tmp / "numbers.npz")})
    score = progress[-1].score
    assert len(score.exits) == 2 and score.exits[-1] == score.score
    result = evaluate(path, comm, model=EARLY["model__name"])
    assert result.score.exits == pytest.approx(score.exits)
    comm.barrier()


def test_an_export_has_the_outputs_of_every_exit(comm, shared_tmp):
    """As torch.export's program, and as ONNX where that is there."""
    if comm.size > 1:
        return  # one rank's network is exported as any other's
    path = shared_tmp / "network.h5"
    saved(comm, path, **RESNET | {"model__exits": [1], "model__dtype": "float32"})
    x = np.random.default_rng(0).normal(8, 4, (5, 64)).astype(np.float32)
    with open_checkpoint(path) as checkpoint:
        temperature = checkpoint.header.temperature
        opened = CalibratedNetwork(checkpoint)
        expected = [of.numpy() / temperature for of in opened.outputs(opened.batch(x))]
    program = torch.export.load(export(path, "torch").beside).module()
    for found, wanted in zip(program(torch.from_numpy(x.reshape(-1, 1, 8, 8))), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
    if all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        import onnxruntime

        session = onnxruntime.InferenceSession(export(path, "onnx").path)
        assert [output.name for output in session.get_outputs()] == ["exit1", "output"]
        for found, wanted in zip(session.run(None, {"input": x.reshape(-1, 1, 8, 8)}), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
