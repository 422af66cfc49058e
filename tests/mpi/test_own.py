"""Networks of one's own in training: against a naive oracle, against the built-in mlp, in all uses of the result."""

from importlib.util import find_spec

import networks
import numpy as np
import pytest
import torch
from batches import examples_of
from networks_oracle import ORACLES, train
from own_runs import BOTH, CONVOLUTIONAL, FILE, NERF, OWN_WEIGHTS, RESNET, own_trained
from resuming import save
from small import assert_trained, assert_trains, own_run, trained, whole
from uses import check_uses, read_all

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.data.prepare import prepare
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.evaluation.sample import draw_calibration_rows
from istmpi.training.loop import Training
from tests.networks import dense_nets, joined_nets

PLAIN = {
    "convolutional": (CONVOLUTIONAL, lambda: networks.Convolutional((1, 8, 8), 10, (7, 5), 6), (1, 8, 8)),
    "units beside inputs": (NERF, lambda: joined_nets.Nerf(64, 10, hidden=13, wide=11), (64,)),
    "weights of its own": (OWN_WEIGHTS, lambda: joined_nets.OwnWeights(64, 10, units=13, wide=11), (64,)),
}
"""Settings, the class itself, and the shape of an example."""


def scale_sums(case, network, share):
    """Multiply the weights that sum over dealt units; beside units lie inputs."""
    with torch.no_grad():
        if case == "convolutional":
            for layer in (network.second, network.dense, network.last):
                layer.weight *= share
        elif case == "units beside inputs":
            network.second.weight[:, :13] *= share
            network.last.weight *= share
        else:
            network.second[:, 64:] *= share
            network.last *= share


ATTENTION = {
    "model__name": f"{FILE}:Rows",
    **{f"model__{name}": value for name, value in {"heads": 7, "head_dim": 2, "embed": 6, "depth": 1}.items()},
    "model__hidden": 9,
    "method__partition": ["heads", "hidden"],
    "train__rounds": 2,
}
SELDOM = {"method__share_every": 2, "train__rounds": 3, "optimizer__momentum": 0.5}


@pytest.mark.parametrize(
    "name, settings, lengths",
    [
        ("convolutional", CONVOLUTIONAL | {"optimizer__momentum": 0.5}, {"channels1": 7, "channels2": 5, "hidden": 6}),
        ("resnet by both", BOTH | SELDOM, {"blocks2": 4, "inner2": 5}),
        ("attention", ATTENTION, {"heads": 7, "hidden": 9}),
        ("exits", RESNET | {"model__exits": [1], "train__exit_weights": [0.3, 1]}, {"inner1": 5, "inner2": 7}),
    ],
)
def test_it_trains_as_the_oracle_does(comm, name, settings, lengths):
    """Narrow modules, cut out of the full network by hand and averaged over their holders."""
    training = Training(own_run(**settings), comm)
    assert_trains(training, lambda initial: train(ORACLES[name], lengths, training.run, initial, comm.size))


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize("method", ["ist", "joint"])
def test_an_mlp_written_by_hand_trains_to_the_same_numbers(comm, method):
    """The names of its layers are the built-in one's, so are its initial values."""
    settings = {"method__name": method, "train__rounds": 2, "optimizer__momentum": 0.5}
    expected, theirs = trained(comm, **settings)
    training, mine = own_trained(comm, model__name=f"{FILE}:Plain", **settings)
    training.method.publish()
    expected.method.publish()
    assert whole(training).keys() == whole(expected).keys()
    assert_trained(training, mine, whole(expected), [one.loss for one in theirs])
    assert mine[-1].score.loss == pytest.approx(theirs[-1].score.loss, rel=1e-9)
    assert mine[-1].score.score == theirs[-1].score.score


@pytest.mark.parametrize("method", ["fedavg", "codistillation"])
def test_every_method_trains_every_exit(comm, method):
    network = {"model__name": f"{dense_nets.__file__}:TwoExits", "train__exit_weights": [0.5, 1.0]}
    training = Training(own_run(**network, method__name=method, train__rounds=2, train__batch=100), comm)
    assert training.architecture.table.output_names == ("exit1", "output")
    before = whole(training)
    list(training.rounds())
    after = whole(training)
    assert all(np.abs(after[name] - before[name]).max() > 1e-4 for name in ("early.weight", "last.weight"))


@pytest.mark.ranks(only=[1])
def test_an_export_has_the_outputs_of_every_exit(comm, shared_tmp):
    path = shared_tmp / "network.h5"
    settings = RESNET | {"model__blocks": [1, 1], "model__exits": [1], "model__dtype": "float32"}
    training, _ = own_trained(comm, **settings)
    save(training, path, calibrated=True)
    x = np.random.default_rng(0).normal(8, 4, (5, 64)).astype(np.float32)
    images = x.reshape(-1, 1, 8, 8)
    with open_checkpoint(path) as checkpoint:
        opened = CalibratedNetwork(checkpoint)
        expected = [of.numpy() / checkpoint.header.temperature for of in opened.outputs(opened.batch(x))]
    program = torch.export.load(export(path, "torch").beside).module()
    found = [[of.numpy() for of in program(torch.from_numpy(images))]]
    if all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        import onnxruntime

        session = onnxruntime.InferenceSession(export(path, "onnx").path)
        assert [output.name for output in session.get_outputs()] == ["exit1", "output"]
        found.append(session.run(None, {"input": images}))
    for outputs in found:
        for one, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", PLAIN)
def test_every_use_of_a_network_agrees_with_the_plain_module(comm, shared_tmp, case):
    """With the full network's weights, by 1/P where it sums, and the moments of the calibration sample."""
    settings, make, shape = PLAIN[case]
    training, progress = own_trained(comm, **settings)
    weights = whole(training)
    moments = comm.broadcast_from_root(training.evaluator.network.moments)
    network = make().double().eval()
    network.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()}, strict=False)
    if case == "convolutional":
        sampled = training.evaluator.planned.sampled
        rows = draw_calibration_rows(training.run.train.seed, len(training.dataset.train), sampled)
        sample = torch.from_numpy(examples_of(training.dataset.train, rows)[0]).double()
        first = network.first(sample.view(-1, *shape))
        torch.testing.assert_close(moments["norm"][0], first.mean((0, 2, 3)))
        torch.testing.assert_close(moments["norm"][1], first.var((0, 2, 3), correction=0))
    if "norm" in moments:
        network.norm.running_mean, network.norm.running_var = moments["norm"]
    scale_sums(case, network, 1 / comm.size)
    x, y = read_all(training.dataset.test)
    with torch.no_grad():
        logits = network(x.double().view(-1, *shape))
    assert progress[-1].score.score == float((logits.argmax(1) == y).double().mean())
    check_uses(comm, shared_tmp / "network.h5", training, progress[-1].score, logits, make().double(), shape)


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
