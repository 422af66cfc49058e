"""A GPU trains and evaluates as the CPU does."""

import pytest
import torch
from small import checkpoint_state, small_run, trained, whole

from istmpi.devices import HOST, with_room
from istmpi.training.loop import Training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
CONVNET = {
    "model__name": "examples/convnet.py:ConvNet",
    "model__channels": [8, 8],
    "model__dropout": 0.0,
    "model__hidden": 24,
}


@pytest.mark.parametrize("redeal", [1.0, 0.0])
def test_scores_and_weights_are_those_of_the_cpu(comm, redeal):
    """The network has batch normalisations; without redealing, subnets are scored side by side."""
    ends = {}
    for device in ("cpu", "cuda"):
        settings = {"train__device": device, "method__redeal": redeal}
        training, progress = trained(comm, **CONVNET, **settings, evaluate__form="merged" if redeal else "blocks")
        ends[device] = progress[-1].score, whole(training), training.evaluator.network
    (score, weights, _), (on_gpu, same, network) = ends["cpu"], ends["cuda"]
    assert network.device.type == "cuda" and {each.device.type for each in network.module.parameters()} == {"cuda"}
    assert on_gpu.loss == pytest.approx(score.loss, abs=1e-8)
    for name, values in weights.items():
        assert same[name] == pytest.approx(values, abs=1e-8), name


def test_a_checkpoint_of_a_gpu_has_moments_in_host_memory(comm):
    training, _ = trained(comm, **CONVNET, train__device="cuda")
    assert {values.device.type for pair in training.evaluator.network.moments.values() for values in pair} == {"cpu"}
    checkpoint_state(training, calibrated=True)


def test_a_network_larger_than_the_gpu_is_evaluated_on_the_host(comm):
    device = Training(small_run(**CONVNET, train__device="cuda"), comm).device
    assert with_room(device, 1) == device and with_room(device, 1e15) == HOST
