"""Small runs of networks of one's own, and of one that ships, for the tests of the engine."""

import networks
from small import own_run

from istmpi.training.loop import Training
from tests.networks import joined_nets

FILE = networks.__file__
CONVOLUTIONAL = {
    "model__name": f"{FILE}:Convolutional",
    "model__channels": [7, 5],
    "model__hidden": 6,
    "train__rounds": 2,
}
SHAKEN = {
    "model__name": f"{FILE}:Shaken",
    "optimizer__name": "adam",
    "optimizer__lr": 0.01,
    "method__optimizer_state": "carry",
    "train__rounds": 4,
}
RESNET = {
    "model__name": "resnet",
    **{f"model__{name}": value for name, value in {"blocks": [1, 2], "channels": [4, 6], "inner": [5, 7]}.items()},
    "train__rounds": 2,
}
DEEP = {
    "model__name": "resnet",
    **{f"model__{name}": value for name, value in {"blocks": [1, 5], "channels": [4, 6], "inner": [3, 5]}.items()},
    "method__partition": ["blocks2"],
    "train__rounds": 2,
}
BOTH = DEEP | {"method__partition": ["blocks2", "inner2"]}
NERF = {"model__name": f"{joined_nets.__file__}:Nerf", "model__hidden": 13, "model__wide": 11}
OWN_WEIGHTS = {"model__name": f"{joined_nets.__file__}:OwnWeights", "model__units": 13, "model__wide": 11}


def own_trained(comm, **settings):
    training = Training(own_run(**settings), comm)
    return training, list(training.rounds())
