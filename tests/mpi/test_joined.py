"""Networks whose units lie beside others on an axis, in training and in all uses of the result."""

import pytest
import torch
from small import own_run, whole
from uses import check_uses, read_all

from istmpi.data.sources import open_dataset
from istmpi.training.loop import Training
from tests.networks import joined_nets

WIDTHS = {
    "Nerf": {"model__hidden": 13, "model__wide": 11},
    "OwnWeights": {"model__units": 13, "model__wide": 11},
}


def run_of(name, **more):
    settings = {"model__name": f"{joined_nets.__file__}:{name}", "model__dtype": "float64", "method__name": "ist"}
    return own_run(**settings, **WIDTHS[name], **more)


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
    x, _ = read_all(training.dataset.test)
    with torch.no_grad():
        logits = network(x.double())
    plain = scaled(name, {key: values.copy() for key, values in whole_of(network).items()}, 1)
    check_uses(comm, shared_tmp / "network.h5", training, progress[-1].score, logits, plain)


def whole_of(network):
    return {key: parameter.detach().numpy() for key, parameter in network.named_parameters()}
