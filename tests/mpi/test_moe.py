"""A mixture of experts, dealt out: against a naive oracle, and in every use of the network that was trained."""

import json

import numpy as np
import pytest
import torch
from resuming import save
from small import assert_trained, initial_weights, own_run
from torch.nn import functional

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.cli.main import istmpi
from istmpi.data.batches import Batches, place
from istmpi.data.prepare import prepare
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.engine.partition import Partition
from istmpi.models.moe import MoE
from istmpi.training.loop import Training

NETWORK = {"layers": 2, "embed": 8, "heads": [2, 2], "head_dim": 4, "hidden": 12, "experts": [6, 5], "top": 3}
EXPERTS = {"experts1": 6, "experts2": 5}

pytestmark = pytest.mark.ranks(only=[2, 4])
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
    common = {"data__source": text, "data__length": 12, "train__rounds": 3, "train__batch": 4, "optimizer__lr": 0.3}
    return {"model__name": "moe", **model, **common, **changed}


def trained_by_hand(run, data, weights, ranks):
    """The weights after all rounds, each rank's experts cut out by hand, and the mean loss of each round."""
    rows = [place("shared", data.train.labels(), rank, ranks, run.train.seed) for rank in range(ranks)]
    streams = [Batches(data.train, rows[rank], run.train.batch, run.train.seed, rank) for rank in range(ranks)]
    losses = []
    for round in range(run.train.rounds):
        deal = Partition.draw(EXPERTS, tuple(EXPERTS), ranks, run.train.seed, round)
        sums = {name: torch.zeros_like(values) for name, values in weights.items()}
        count = {name: torch.zeros_like(values) for name, values in weights.items()}
        of_round = []
        for rank in range(ranks):
            held = [torch.as_tensor(deal.units[name][rank]) for name in EXPERTS]
            network = MoE(data.shape, data.outputs, **NETWORK | {"experts": [*map(len, held)]}).double()
            parts = {}
            for name, parameter in network.named_parameters():
                _, number, layer, *rest = [*name.split("."), "", ""]
                parts[name] = held[int(number)] if layer == "feed_forward" and rest else slice(None)
                parameter.data = weights[name][parts[name]].clone()
            optimizer = torch.optim.SGD(network.parameters(), run.optimizer.lr)
            for step in range(run.method.local_steps):
                batch = streams[rank].at(round * run.method.local_steps + step)
                optimizer.zero_grad()
                loss = functional.cross_entropy(network(batch.inputs[0]).flatten(0, 1), batch.targets.flatten())
                loss.backward()
                optimizer.step()
                of_round.append(float(loss.detach()))
            for name, parameter in network.named_parameters():
                sums[name][parts[name]] += parameter.detach()
                count[name][parts[name]] += 1
        weights = {name: values / count[name] for name, values in sums.items()}
        losses.append(np.mean(of_round))
    return weights, losses


def test_it_trains_as_the_oracle_does(comm, text):
    training = Training(own_run(**settings(text)), comm)
    assert training.method.spec.groups(training.run, training.architecture) == tuple(EXPERTS)
    initial = initial_weights(training)
    progress = list(training.rounds())
    expected, losses = trained_by_hand(training.run, training.dataset, initial, comm.size)
    assert_trained(training, progress, expected, losses, 1e-9)
    network = MoE(training.dataset.shape, training.dataset.outputs, **NETWORK).double().eval()
    network.load_state_dict(expected, strict=False)
    network.outputs.weight = network.embedding.weight
    test = training.dataset.test.batch(np.arange(len(training.dataset.test)))
    with torch.no_grad():
        loss = float(functional.cross_entropy(network(test.inputs[0]).flatten(0, 1), test.targets.flatten()))
    assert progress[-1].score.loss == pytest.approx(loss, abs=1e-9)


@pytest.mark.ranks(only=[4])
def test_what_was_trained_is_exported_and_goes_on_with_a_text(comm, shared_tmp, text):
    training = Training(own_run(**settings(text, model__dtype="float32")), comm)
    progress = list(training.rounds())
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
    comm.barrier()
