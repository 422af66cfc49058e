"""A subnet that is a network of its own computes what its rank computes in training."""

import json

import numpy as np
import pytest
import torch
from own_runs import BOTH, RESNET
from small import own_run, small_run

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.cli.main import istmpi
from istmpi.data.prepare import prepare
from istmpi.deploy.export import export
from istmpi.deploy.extraction import extract
from istmpi.deploy.network import CalibratedNetwork
from istmpi.errors import ConfigError
from istmpi.evaluation.sample import calibration_rows
from istmpi.models.norms import calibrate, moments_of
from istmpi.training.loop import Training

DECODER = {
    "model__name": "transformer",
    "model__layers": 4,
    "model__embed": 6,
    "model__heads": [4, 5, 4],
    "model__head_dim": 2,
    "model__hidden": [7, 5, 6],
    "data__length": 8,
    "optimizer__name": "adam",
    "optimizer__lr": 0.01,
    "method__optimizer_state": "carry",
}
WIDTHS = ["heads1", "heads2", "heads3", "hidden1", "hidden2", "hidden3"]
NETWORKS = {
    "mlp": {"model__norm": "none", "model__bias": True},
    "mlp, a group dealt": {"model__norm": "layer", "method__partition": ["hidden1"]},
    "mlp, normalised over the batch": {
        "model__norm": "batch",
        "optimizer__momentum": 0.5,
        "method__shares": [1, 2, 1, 1],
    },
    "channels": RESNET,
    "heads and units": DECODER | {"method__partition": WIDTHS},
}


def settled(comm, folder, name):
    """The settings of a run; text is made of the numbers from 0."""
    settings = NETWORKS[name] | {"train__rounds": 2}
    if "method__shares" in settings:
        settings["method__shares"] = settings["method__shares"][: comm.size]
    if settings.get("model__name") == "transformer":
        text = folder / "text.txt"
        if comm.rank == 0:
            text.write_text("\n".join(" ".join(map(str, range(start, start + 50))) for start in range(40)))
            prepare("text", text, folder / "text.h5")
        comm.barrier()
        settings["data__source"] = str(folder / "text.h5")
    return (own_run if "model__name" in settings else small_run)(**settings)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_computes_what_the_subnet_computes_in_training(comm, shared_tmp, name):
    run = settled(comm, shared_tmp, name)
    training = Training(run, comm)
    next(training.rounds())
    path, mine = shared_tmp / "network.h5", shared_tmp / f"{comm.rank}.h5"
    commit(path, *training.state(calibrated=True), "direct", comm)
    words, _ = extract(path, mine, comm.rank)
    for group, units in training.method.holders(0).held(comm.rank).items():
        assert f", {group} {len(units)} of {training.architecture.lengths[group]}" in words

    training.method.build(0)
    training.method.shards.fetch(0, training.method.subnet.tensors)
    network, data = training.method.subnet.network.eval(), training.dataset
    layers = training.architecture.batch_norm_layers(network)
    sample = data.train.batch(calibration_rows(run, len(data.train), 1024))
    calibrate(network, layers, sample.to("cpu", torch.float64).inputs, moments_of)
    inputs = data.test.batch(np.arange(10)).to("cpu", torch.float64).inputs
    with torch.no_grad(), open_checkpoint(mine) as checkpoint:
        torch.testing.assert_close(
            CalibratedNetwork(checkpoint).module(*inputs), network(*inputs), rtol=1e-12, atol=1e-12
        )
    comm.barrier()


@pytest.mark.ranks(only=[2])
def test_text_goes_on_from_a_prompt_by_the_network_and_by_a_subnet(comm, shared_tmp):
    """The same seed gives the same text, which is that of the tokens."""
    training = Training(settled(comm, shared_tmp, "heads and units"), comm)
    next(training.rounds())
    path, half = shared_tmp / "network.h5", shared_tmp / "half.h5"
    commit(path, *training.state(calibrated=True), "direct", comm)
    prompt, out = shared_tmp / "prompt.txt", shared_tmp / "out.txt"

    def said(file, *options):
        command = ["predict", file, prompt, "--tokens", 30, "--out", out, "--force", *options]
        istmpi([str(word) for word in command], standalone_mode=False)
        return out.read_bytes().decode()

    if comm.rank == 0:
        prompt.write_text("1 2 3 4 5 6 7 8 9 10", encoding="utf-8")
        extract(path, half, 0)
        for file in (path, half):
            text = said(file, "--seed", 1)
            assert text == said(file, "--seed", 1) != said(file, "--seed", 2)
            found = json.loads(said(file, "--seed", 1, "--json"))
            assert (found["prompt_tokens"], found["text"] + "\n") == (20, text)
            assert bytes(found["tokens"]).decode("utf-8", "replace") == found["text"]
        program = torch.export.load(export(half, "torch").beside).module()
        tokens = torch.arange(16).view(2, 8)
        with torch.no_grad(), open_checkpoint(half) as checkpoint:
            torch.testing.assert_close(program(tokens), CalibratedNetwork(checkpoint).module(tokens))
        with pytest.raises(ConfigError, match="--label does not go with .*, a network for next-token"):
            said(path, "--label", 1)
    comm.barrier()


@pytest.mark.ranks(only=[2])
def test_blocks_are_refused(comm, shared_tmp):
    training = Training(own_run(**BOTH | {"train__rounds": 1}), comm)
    list(training.rounds())
    path = shared_tmp / "network.h5"
    commit(path, *training.state(calibrated=True), "direct", comm)
    if comm.rank == 0:
        with pytest.raises(ConfigError, match="deals out whole blocks; only units can be extracted"):
            extract(path, shared_tmp / "half.h5", 0)
    comm.barrier()
