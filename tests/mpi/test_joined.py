"""Runs of networks whose units lie beside others on an axis: bytes, resuming, all uses of the result."""

from pathlib import Path

import numpy as np
import pytest
import torch
from batches import examples_of, plain
from resuming import save, stop_at
from small import assert_same_bits, own_run, whole
from torch.nn import functional

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.cost import round_bytes
from istmpi.data.batches import Batches, place
from istmpi.data.sources import open_dataset
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError
from istmpi.training.loop import Training
from tests.networks import joined_nets

FILE = Path(joined_nets.__file__)
ADAM = {
    "optimizer__name": "adam",
    "method__optimizer_state": "carry",
    "optimizer__lr": 0.001,
}
CASES = {
    "plain": {},
    "adam carried": ADAM,
    "a part redealt": {"method__redeal": 0.3},
    "some widths": {"method__partition": ["wide"], "method__share_every": 2},
    "in fewer bits": {"method__wire": "int8", **ADAM},
    "outer momentum": {"method__outer_momentum": 0.5},
    "shares": {"method__shares": [2.0, 1.0, 1.0]},
    "early": {"method__delay": 1},
}
"""Settings with which elements that all ranks have travel in other ways."""


def run_of(name, case="plain", **more):
    dtype = "float32" if "wire" in str(CASES[case]) else "float64"
    widths = {"Nerf": {"hidden": 13, "wide": 11}, "OwnWeights": {"units": 13, "wide": 11}}[name]
    settings = {f"model__{width}": length for width, length in widths.items()} | CASES[case]
    return own_run(model__name=f"{FILE}:{name}", model__dtype=dtype, method__name="ist", **settings, **more)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("name", ["Nerf", "OwnWeights"])
@pytest.mark.parametrize("case", CASES)
def test_predicted_bytes_are_the_counted_bytes(comm, name, case):
    training = Training(run_of(name, case), comm)
    for number in range(3):
        before = comm.traffic.bytes
        training.method.run(number)
        counted = comm.allgather(comm.traffic.bytes - before)
        assert counted == round_bytes(training.run, training.architecture, comm.size, number), f"round {number}"


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("plain", "early")])
def test_a_run_that_was_stopped_between_rounds_or_inside_one_goes_on_bit_for_bit(comm, shared_tmp, case):
    run = run_of("Nerf", case, train__rounds=5, evaluate__every=2)
    complete = Training(run, comm)
    list(complete.rounds())
    expected = whole(complete)
    half = Training(run.override({"train.rounds": 3}), comm)
    list(half.rounds())
    stopped = Training(run, comm)
    stop_at(stopped, 2, 1)
    list(stopped.rounds())
    assert stopped.stop.reason
    for number, before in enumerate((half, stopped)):
        again = Training(run, comm)
        again.resume(save(before, shared_tmp / f"{number}.h5"))
        list(again.rounds())
        assert_same_bits(whole(again), expected)


def scaled(name, weights, ranks):
    """The class itself with the full network's weights: those of units have the share of a rank as their factor."""
    features = open_dataset("digits").features
    if name == "Nerf":
        network = joined_nets.Nerf(features, 10, hidden=13, wide=11)
        weights["second.weight"][:, :13] /= ranks
        weights["last.weight"] /= ranks
    else:
        network = joined_nets.OwnWeights(features, 10, units=13, wide=11)
        weights["second"][:, features:] /= ranks
        weights["last"] /= ranks
    network.double().load_state_dict({key: torch.from_numpy(each) for key, each in weights.items()}, strict=False)
    return network.eval()


@pytest.mark.ranks(only=[1, 3])
@pytest.mark.parametrize("name", ["Nerf", "OwnWeights"])
def test_every_use_of_a_network_agrees_with_the_plain_class(comm, shared_tmp, name):
    training = Training(run_of(name, evaluate__every=4), comm)
    progress = list(training.rounds())
    network = scaled(name, {key: values.copy() for key, values in whole(training).items()}, comm.size)
    if name == "Nerf":
        network.norm.running_mean, network.norm.running_var = training.evaluator.network.moments["norm"]
    x, y = map(torch.from_numpy, examples_of(training.dataset.test, np.arange(len(training.dataset.test))))
    with torch.no_grad():
        logits = network(x.double())
    loss = float(functional.cross_entropy(logits, y))
    assert progress[-1].score.loss == pytest.approx(loss, rel=1e-9)
    path, source = shared_tmp / "network.h5", training.run.model.name
    commit(path, *training.state(calibrated=True), "direct", comm)
    assert evaluate(path, comm, model=source).score.loss == pytest.approx(loss, rel=1e-9)
    with open_checkpoint(path) as checkpoint:
        raw = examples_of(open_dataset("digits").normalised_by(None).test, np.arange(len(x)))[0]
        expected = logits / checkpoint.header.temperature
        outputs = CalibratedNetwork(checkpoint, model=source)(raw.copy())
        np.testing.assert_allclose(outputs, expected.numpy(), rtol=1e-9, atol=1e-9)
    if comm.rank == 0:
        done = export(path, "torch", model=source)
        exported = scaled(name, {key: values.copy() for key, values in whole_of(network).items()}, 1)
        exported.load_state_dict(torch.load(done.path, weights_only=True)["state_dict"])
        with torch.no_grad():
            torch.testing.assert_close(exported(x.double()), logits)
        program = torch.export.load(done.beside).module()
        outputs = program(torch.from_numpy(raw).double())
        torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    comm.barrier()


def whole_of(network):
    return {key: parameter.detach().numpy() for key, parameter in network.named_parameters()}


@pytest.mark.ranks(only=[1])
@pytest.mark.parametrize("name", ["Nerf", "OwnWeights"])
def test_one_rank_computes_what_pytorch_does_bit_for_bit(comm, name):
    """One rank takes the steps that a loop over the plain class takes."""
    training = Training(run_of(name), comm)
    run, data = training.run, training.dataset.train
    network = scaled(name, {key: values.copy() for key, values in whole(training).items()}, 1).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=run.optimizer.lr)
    rows = place(run.data.placement, data.labels(), 0, 1, run.train.seed)
    batches = Batches(data, rows, run.train.batch, run.train.seed, 0)
    list(training.rounds())
    for step in range(run.train.rounds * run.method.local_steps):
        x, y = map(torch.from_numpy, plain(batches.at(step)))
        optimizer.zero_grad()
        functional.cross_entropy(network(x.double()), y).backward()
        optimizer.step()
    assert_same_bits(whole_of(network), whole(training))


@pytest.mark.ranks(only=[3])
def test_a_delay_is_refused_where_all_ranks_have_a_part_of_a_dealt_weight(comm):
    message = r"method.delay does not go with last \(wide \+ units 10\), which is dealt out in part"
    with pytest.raises(ConfigError, match=message):
        Training(run_of("OwnWeights", method__delay=1, method__partition=["wide"]), comm)
