"""The whole network of a program's job, as a state dict."""

import numpy as np
import torch

from istmpi.deploy.layers import collect_state
from istmpi.deploy.program import whole_state
from istmpi.errors import ConfigError
from istmpi.evaluation.full import Moments
from istmpi.training.loop import Training


def collect_state_dict(training: Training) -> dict[str, torch.Tensor] | None:
    """Return the whole network on rank 0, as a state dict for its class; None on the other ranks.
    Collective. Raises ConfigError if the class cannot express the weights."""
    communicator = training.communicator
    training.method.publish()
    values: dict[str, np.ndarray] = {}
    for name in training.architecture.parameters:
        whole = training.store.whole(name, communicator)  # every rank sends its rows
        if communicator.rank == 0:
            values[name] = whole.numpy()
    moments: Moments = {}
    if training.calibrated:
        moments = training.evaluator.network.collect_moments()
    with communicator.agreed():
        if communicator.rank:
            return None
        state = collect_state(values, training.store.full_scale, moments, training.architecture)
        if state.problem:
            raise ConfigError(f"{training.architecture.name}: {state.problem}.")
        return whole_state(state)
