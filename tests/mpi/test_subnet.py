"""One rank's subnet of the last deal, alone: evaluate, predict and export --subnet."""

import json

import numpy as np
import pytest
import torch
from exported import run_onnx
from own_runs import BOTH
from resuming import save
from small import own_run, small_run
from torch.utils.flop_counter import FlopCounterMode

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.deploy.export import export, measure
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.opening import NetworkFile
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError
from istmpi.models.resnet import ResNet
from istmpi.training.loop import Training

X = np.random.default_rng(0).random((6, 64), dtype=np.float32)
EVEN = {"model__dtype": "float32", "model__inner": [3, 6]}
THREE = {"model__blocks": [1, 4]}
# Without a batch normalisation, shares are even: the form blocks knows no factors of uneven ones.
RUNS = {
    "units": small_run(model__dtype="float32", method__shares=[1, 3, 2]),
    "layer norm": small_run(model__norm="layer", model__hidden=[12, 9]),
    "blocks and channels": own_run(**BOTH | EVEN | THREE),
}


def saved(comm, run, path):
    """Train and save the run; return True on the rank that looks at the file."""
    training = Training(run, comm)
    list(training.rounds())
    save(training, path, calibrated=True)
    comm.barrier()
    return comm.rank == 0


def logits(path, subnet, data=None):
    file = NetworkFile(path, subnet)
    with file.open() as checkpoint:
        network = CalibratedNetwork(checkpoint, data)
        with FlopCounterMode(display=False) as counter:
            network(X[:1])
        planned = measure(file, "torch")
        assert planned.flops == counter.get_total_flops()
        assert planned.bytes == sum(parameter.nbytes for parameter in network.module.parameters())
        return network(X) * checkpoint.header.temperature


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("name", RUNS)
def test_the_mean_of_all_subnets_alone_is_the_form_blocks(comm, shared_tmp, name):
    """Their moments, those of shares and of blocks that a rank lacks included."""
    path = shared_tmp / "network.h5"
    run = RUNS[name].override({"method.redeal": 0.0, "evaluate.form": "blocks"})
    if saved(comm, run, path):
        alone = [logits(path, rank) for rank in range(comm.size)]
        assert np.mean(alone, axis=0) == pytest.approx(logits(path, None), rel=1e-4, abs=1e-5)
        assert not np.allclose(alone[0], alone[1])


@pytest.mark.ranks(only=[3])
def test_every_export_of_a_subnet_predicts_what_the_subnet_does(comm, shared_tmp):
    path = shared_tmp / "network.h5"
    if not saved(comm, RUNS["blocks and channels"], path):
        return
    expected = logits(path, 1, "digits")
    subnet = NetworkFile(path, 1)
    torch_file = export(subnet, "torch")
    program = torch.export.load(torch_file.beside).module()
    x = X.reshape(6, 1, 8, 8)
    outputs = [program(torch.from_numpy(x)).detach().numpy()]
    outputs += run_onnx(export(subnet, "onnx").path, x)
    for values in outputs:
        assert values == pytest.approx(expected, rel=1e-3, abs=1e-4)
    state = torch.load(torch_file.path, weights_only=True)["state_dict"]
    arrays = np.load(export(subnet, "npz").path)
    for key in state.keys() & set(arrays.files):
        assert arrays[key].tobytes() == state[key].numpy().tobytes()
    export(subnet, "safetensors")
    settings = json.loads(torch.load(torch_file.path, weights_only=True)["metadata"]["run"])["model"]
    arguments = {key: settings[key] for key in ("blocks", "channels", "inner")}
    ResNet((1, 8, 8), 10, **arguments).load_state_dict(state)


def test_a_subnet_has_the_widths_of_its_rank_and_a_score_of_its_own(comm, shared_tmp):
    path = shared_tmp / "network.h5"
    saved(comm, small_run(), path)
    result = evaluate(NetworkFile(path, comm.size - 1), comm)
    assert result.calibrated_now and 0 < result.score.score < 1
    if comm.size > 1:
        assert result.score != evaluate(NetworkFile(path, 0), comm).score
        with NetworkFile(path, 0).open() as subnet, open_checkpoint(path) as whole:
            assert subnet.architecture.lengths["hidden1"] == -(-13 // comm.size)
            assert subnet.nbytes < whole.nbytes


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize(
    "settings, number, words",
    [
        ({}, 2, "--subnet 2: .* has the subnets 0 to 1. Give one of them"),
        ({"method__name": "local-sgd"}, 0, "was trained whole: no units were dealt out"),
        ({"method__name": "joint"}, 0, "is a sum of subnets, and no subnet predicts alone"),
    ],
)
def test_a_subnet_that_does_not_predict_alone_is_refused(comm, shared_tmp, settings, number, words):
    path = shared_tmp / "network.h5"
    saved(comm, small_run(**settings), path)
    with pytest.raises(ConfigError, match=words), NetworkFile(path, number).open():
        pass
