"""Networks of one's own in training: against a naive oracle, against the built-in mlp, in all uses of the result."""

import networks
import numpy as np
import pytest
import torch
from batches import examples_of
from networks_oracle import ORACLES, train
from own_runs import BOTH, CONVOLUTIONAL, DEEP, FILE, RESNET, own_trained
from small import own_run, trained, whole
from torch.nn import functional

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.comm import Communicator
from istmpi.config.methods import METHODS
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError, DataError
from istmpi.evaluation.sample import draw_calibration_rows
from istmpi.models.resnet import ResNet
from istmpi.training.loop import Training


def plain(training, weights, moments):
    """The user's class itself, in evaluation, with the full network's weights and moments; by 1/P where it sums."""
    ranks, model = training.communicator.size, training.run.model
    network = networks.Convolutional((1, 8, 8), 10, **model.arguments).double()
    network.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()}, strict=False)
    network.norm.running_mean, network.norm.running_var = moments
    with torch.no_grad():
        for layer in (network.second, network.dense, network.last):
            layer.weight /= ranks
    return network.eval()


# ---- training


ATTENTION = {
    "model__name": f"{FILE}:Rows",
    **{f"model__{name}": value for name, value in {"heads": 7, "head_dim": 2, "embed": 6, "depth": 1}.items()},
    "model__hidden": 9,
    "method__partition": ["heads", "hidden"],
    "train__rounds": 2,
}


@pytest.mark.parametrize(
    "name, settings, lengths",
    [
        ("convolutional", CONVOLUTIONAL | {"optimizer__momentum": 0.5}, {"channels1": 7, "channels2": 5, "hidden": 6}),
        ("resnet", RESNET, {"inner1": 5, "inner2": 7}),
        ("resnet by blocks", DEEP | {"optimizer__momentum": 0.5}, {"blocks2": 4}),
        ("resnet by both", BOTH, {"blocks2": 4, "inner2": 5}),
        ("resnet by both", BOTH | {"method__share_every": 2, "train__rounds": 5}, {"blocks2": 4, "inner2": 5}),
        ("attention", ATTENTION | {"train__rounds": 4}, {"heads": 7, "hidden": 9}),
        ("exits", RESNET | {"model__exits": [1], "train__exit_weights": [0.3, 1]}, {"inner1": 5, "inner2": 7}),
    ],
)
def test_it_trains_as_the_oracle_does(comm, name, settings, lengths):
    """Narrow modules, cut out of the full network by hand and averaged over their holders."""
    run = own_run(**settings)
    training = Training(run, comm)
    initial = {name: torch.from_numpy(values.copy()) for name, values in whole(training).items() if "/" not in name}
    progress = list(training.rounds())
    expected, losses = train(ORACLES[name], lengths, run, initial, comm.size)
    found = whole(training)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values.numpy(), rtol=0, atol=1e-10, err_msg=name)
    np.testing.assert_allclose([one.loss for one in progress], losses, rtol=1e-6)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("method", METHODS)
def test_an_mlp_written_by_hand_trains_to_the_same_numbers(comm, method):
    """The names of its layers are the built-in one's, so are its initial values."""
    settings = {"method__name": method, "train__rounds": 2, "optimizer__momentum": 0.5}
    settings |= {"train__batch": 100} if method == "fedavg" else {}  # whose rounds are passes over the data
    expected, theirs = trained(comm, **settings)
    training, mine = own_trained(comm, model__name=f"{FILE}:Plain", **settings)
    assert_near(training, mine, expected, theirs)


def assert_near(training, mine, expected, theirs):
    """Two runs have the same weights, losses and scores but for rounding."""
    training.method.publish()
    expected.method.publish()
    found, other = whole(training), whole(expected)
    assert found.keys() == other.keys()
    for name in found:
        np.testing.assert_allclose(found[name], other[name], rtol=0, atol=1e-10, err_msg=name)
    np.testing.assert_allclose([one.loss for one in mine], [one.loss for one in theirs], rtol=1e-6)
    assert mine[-1].score.loss == pytest.approx(theirs[-1].score.loss, rel=1e-9)
    assert mine[-1].score.score == theirs[-1].score.score


@pytest.mark.ranks(only=[1, 3])
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_without_batch_normalisation_it_is_scaled_as_the_mlp_is(comm, norm):
    bias = {"model__bias": True, "model__norm": norm, "model__output_norm": False}
    expected, theirs = trained(comm, **bias)
    training, mine = own_trained(comm, model__name=f"{FILE}:Plain", **bias)
    assert_near(training, mine, expected, theirs)
    assert dict(training.store.scale) == {"hidden1": 1 / comm.size, "hidden2": 1 / comm.size}


def test_a_group_can_be_left_out_of_the_deal(comm):
    training, _ = own_trained(comm, **CONVOLUTIONAL, method__partition=["channels1"])
    assert dict(training.store.scale) == {"channels1": 1 / comm.size}
    if comm.size > 1:
        assert training.method.subnet._lengths["channels1"] < 7
    with pytest.raises(ConfigError, match="chanels1 is not a unit group of this model; did you mean channels1"):
        Training(own_run(**CONVOLUTIONAL, method__partition=["chanels1"]), comm)


# ---- the full network


@pytest.mark.ranks(only=[1, 3])
def test_every_use_of_a_network_agrees_with_the_plain_module(comm, shared_tmp):
    training, progress = own_trained(comm, **CONVOLUTIONAL)
    weights, moments = whole(training), training.evaluator.network.moments["norm"]
    train, test = training.dataset.train, training.dataset.test

    rows = draw_calibration_rows(training.run, len(train), training.evaluator.sampled)
    sample = torch.from_numpy(examples_of(train, rows)[0]).double()
    first = functional.conv2d(
        sample.view(-1, 1, 8, 8),
        torch.from_numpy(weights["first.weight"]),
        torch.from_numpy(weights["first.bias"]),
        padding=1,
    )
    torch.testing.assert_close(moments[0], first.mean((0, 2, 3)))
    torch.testing.assert_close(moments[1], first.var((0, 2, 3), correction=0))

    x, y = map(torch.from_numpy, examples_of(test, np.arange(len(test))))
    with torch.no_grad():
        outputs = plain(training, weights, moments)(x.double().view(-1, 1, 8, 8))
    loss = float(functional.cross_entropy(outputs, y))
    assert progress[-1].score.loss == pytest.approx(loss, rel=1e-9)
    assert progress[-1].score.score == float((outputs.argmax(1) == y).double().mean())
    assert progress[-1].score.examples == len(test)

    path, name = shared_tmp / "network.h5", training.run.model.name
    commit(path, *training.state(calibrated=True), "direct", comm)
    assert evaluate(path, comm, model=name).score.loss == pytest.approx(loss, rel=1e-9)
    alone = Communicator(comm.mpi.Split(comm.rank))
    assert evaluate(path, alone, model=name).score.loss == pytest.approx(loss, rel=1e-9)
    assert evaluate(path, comm, model=name, calibrate=True).score.loss == pytest.approx(loss, rel=1e-9)
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.errors()) == []
        logits, outputs = outputs, outputs / checkpoint.header.temperature
        test_data = open_dataset("digits").normalised_by(None).test
        raw = examples_of(test_data, np.arange(len(test_data)))[0]
        found = CalibratedNetwork(checkpoint, model=name)(raw.copy())
        np.testing.assert_allclose(found, outputs.numpy(), rtol=1e-9, atol=1e-9)
        anew = CalibratedNetwork(checkpoint, "digits", name)(raw.copy())
        np.testing.assert_allclose(anew, outputs.numpy(), rtol=1e-9, atol=1e-9)
    if comm.rank == 0:
        done = export(path, "torch", model=name)
        network = networks.Convolutional((1, 8, 8), 10, **training.run.model.arguments).double()
        network.load_state_dict(exported(done.path))
        with torch.no_grad():
            torch.testing.assert_close(network.eval()(x.double().view(-1, 1, 8, 8)), logits)
        program = torch.export.load(done.beside).module()
        torch.testing.assert_close(program(torch.from_numpy(raw).double().view(-1, 1, 8, 8)), outputs)
    with pytest.raises(DataError, match="without its code. Give the code: --model"):
        evaluate(path, comm)
    with pytest.raises(ConfigError, match="has the weights of .*:Convolutional. .*: unknown setting model.channels"):
        evaluate(path, comm, model=f"{FILE}:Joined")
    comm.barrier()


def exported(path):
    """The state of a file for PyTorch; tests/unit/test_export_own.py has the other forms."""
    return torch.load(path, weights_only=True)["state_dict"]


@pytest.mark.ranks(only=[1, 3])
def test_a_network_that_ships_is_used_without_naming_its_code(comm, shared_tmp):
    """Dealt out in its channels, and with several ranks in its blocks, too."""
    path, settings = shared_tmp / "network.h5", RESNET if comm.size == 1 else BOTH
    training, progress = own_trained(comm, **settings)
    commit(path, *training.state(calibrated=True), "direct", comm)
    assert evaluate(path, comm).score.loss == pytest.approx(progress[-1].score.loss, rel=1e-9)
    with pytest.raises(ConfigError, match="is built in; leave --model out"):
        evaluate(path, comm, model="istmpi.models.resnet:ResNet")
    again = Training(training.run, comm)
    assert again.resume(path) == []
    if comm.rank == 0:
        done = export(path, "torch")
        x = np.random.default_rng(0).normal(8, 4, (3, 64)).astype(np.float32)
        with open_checkpoint(path) as checkpoint, torch.no_grad():
            network = ResNet((1, 8, 8), 10, **training.run.model.arguments).double().eval()
            network.load_state_dict(exported(done.path))
            mean, std, _ = checkpoint.normalisation
            normalised = torch.from_numpy((x - mean) / std).double().view(3, 1, 8, 8)
            logits = CalibratedNetwork(checkpoint)(x) * checkpoint.header.temperature
            torch.testing.assert_close(network(normalised), torch.from_numpy(logits))
    comm.barrier()


@pytest.mark.ranks(min=2)
def test_a_rank_with_one_example_trains_on_batches_of_it(comm, shared_tmp):
    """Batch statistics need two rows in a batch, not two examples."""
    examples = 1 if comm.rank == comm.size - 1 else 30
    x, y = np.random.default_rng(comm.rank).normal(size=(30, 64)).astype(np.float32), np.arange(30) % 3
    arrays = {"x_train": x[:examples], "y_train": y[:examples], "x_test": x, "y_test": y}
    np.savez(shared_tmp / f"site-{comm.rank}.npz", **arrays)
    site = shared_tmp / f"site-{comm.rank}.h5"
    prepare("arrays", site.with_suffix(".npz"), site, classes="0,1,2")
    comm.barrier()
    settings = {"model__name": f"{FILE}:Shaken", "data__source": str(shared_tmp / "site-{rank}.h5")}
    _, progress = own_trained(comm, train__rounds=2, train__batch=4, **settings)
    assert np.isfinite(progress[-1].score.loss) and progress[-1].score.examples == 30 * comm.size
    comm.barrier()
