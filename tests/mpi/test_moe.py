"""A mixture of experts, dealt out: against a naive oracle, and in every use of the network that was trained."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from holders import train_plainly
from own_runs import own_trained
from resuming import save
from small import assert_trains, own_run
from torch.nn import functional

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.cli.main import istmpi
from istmpi.data.prepare import prepare
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.models.moe import MoE
from istmpi.training.loop import Training

NETWORK = {"layers": 2, "embed": 8, "heads": [2, 2], "head_dim": 4, "hidden": 12, "experts": [6, 5], "top": 3}
EXPERTS = {"experts1": 6, "experts2": 5}

pytestmark = pytest.mark.ranks(only=[4])
"""With three of six experts to a token, a rank of four holds fewer than a token takes."""


@pytest.fixture
def text(comm, shared_tmp):
    if comm.rank == 0:
        words = "\n".join(" ".join(map(str, range(start, start + 50))) for start in range(40))
        (shared_tmp / "text.txt").write_text(words)
        prepare("text", shared_tmp / "text.txt", shared_tmp / "text.h5")
    comm.barrier()
    return str(shared_tmp / "text.h5")


def settings(text, **changed):
    model = {f"model__{name}": value for name, value in NETWORK.items()}
    common = {"data__source": text, "data__length": 12, "train__rounds": 2, "train__batch": 4, "optimizer__lr": 0.3}
    return {"model__name": "moe", **model, **common, **changed}


def trained_by_hand(run, data, weights, ranks):
    """The weights after all rounds, each rank's experts cut out by hand, and the mean loss of each round."""
    axes = {}
    for name, values in weights.items():
        place = name.split(".")
        if place[2:3] == ["feed_forward"]:
            axes[name] = (f"experts{int(place[1]) + 1}", *[None] * (values.ndim - 1))

    def compute_loss(own, stream, step, factor):
        batch = stream.at(step)
        counts = [len(own[f"layers.{number}.feed_forward.gate"]) for number in (0, 1)]
        network = MoE(data.shape, data.outputs, **NETWORK | {"experts": counts}).double()
        logits = torch.func.functional_call(network, own, batch.inputs[0])
        return functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

    return train_plainly(run, EXPERTS, axes, data.train, weights, ranks, compute_loss)


def test_it_trains_as_the_oracle_does(comm, text):
    training = Training(own_run(**settings(text)), comm)
    assert training.method.spec.groups(training.run, training.architecture) == tuple(EXPERTS)
    data = training.dataset
    oracle = partial(trained_by_hand, training.run, data, ranks=comm.size)
    progress, expected = assert_trains(training, oracle, 1e-9)
    network = MoE(data.shape, data.outputs, **NETWORK).double().eval()
    network.load_state_dict(expected, strict=False)
    network.outputs.weight = network.embedding.weight
    test = data.test.batch(np.arange(len(data.test)))
    with torch.no_grad():
        loss = float(functional.cross_entropy(network(test.inputs[0]).flatten(0, 1), test.targets.flatten()))
    assert progress[-1].score.loss == pytest.approx(loss, abs=1e-9)


def test_what_was_trained_is_exported_and_goes_on_with_a_text(comm, shared_tmp, text):
    training, progress = own_trained(comm, **settings(text, model__dtype="float32"))
    assert progress[-1].loss < progress[0].loss
    network = shared_tmp / "network.h5"
    save(training, network, calibrated=True)
    if comm.rank == 0:
        program = torch.export.load(export(network, "torch").beside).module()
        tokens = torch.arange(24).view(2, 12)
        with torch.no_grad(), open_checkpoint(network) as opened:
            torch.testing.assert_close(program(tokens), CalibratedNetwork(opened).module(tokens), rtol=1e-4, atol=1e-4)
        prompt, out = shared_tmp / "prompt.txt", shared_tmp / "out.txt"
        prompt.write_text("1 2 3 4 5 6 7 8 9 10", encoding="utf-8")
        command = ["predict", network, prompt, "--tokens", 30, "--out", out, "--json"]
        istmpi([str(word) for word in command], standalone_mode=False)
        assert len(json.loads(out.read_text(encoding="utf-8"))["tokens"]) == 30
