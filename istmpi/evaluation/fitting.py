"""Factors of the unit groups' contributions to the full network, fitted on training examples by Adam, on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from istmpi.comm import Communicator
from istmpi.data.batch import Batch
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.full import FullNetwork
from istmpi.models.architecture import Architecture, scale_sums
from istmpi.trees import call

if TYPE_CHECKING:
    from istmpi.exits import Outputs

STEPS = 20
RATE = 0.1
"""The first step of a logarithm: it changes a factor by a tenth. Later steps are smaller."""
_DECAYS = 0.9, 0.99


def fitted_scale(
    architecture: Architecture,
    store: ParameterStore,
    communicator: Communicator,
    batch: Batch,
    loss: Callable[[Outputs], torch.Tensor],
) -> dict[str, float]:
    """The factors that minimise the loss over all ranks' batches, starting from the store's. Collective.

    ``loss``: the sum over this rank's batch, as a function of the network's outputs.
    """
    bare = copy(store)
    bare.scale = bare.fitted = {}
    network = FullNetwork(architecture, bare, communicator)
    network.with_weights()
    names = sorted(store.scale)
    logarithms = np.log([store.full_scale[name] for name in names])
    factors = torch.ones(len(names), dtype=torch.float64, requires_grad=True)
    _multiply(network.module, architecture, names, factors)
    best, least = logarithms, np.inf
    mean, square = np.zeros(len(names)), np.zeros(len(names))
    for step in range(1, STEPS + 1):
        factors.data = torch.from_numpy(np.exp(logarithms))
        factors.grad = None
        total = loss(call(network.module, batch.inputs))
        total.backward()
        sums = communicator.allreduce_sum(np.array([total.item(), batch.examples, *(factors.grad * factors.detach())]))
        value, gradient = sums[0] / sums[1], sums[2:] / sums[1]
        if not np.isfinite(gradient).all():
            break
        if value < least:
            best, least = logarithms, value
        mean = _DECAYS[0] * mean + (1 - _DECAYS[0]) * gradient
        square = _DECAYS[1] * square + (1 - _DECAYS[1]) * gradient**2
        corrected = square / (1 - _DECAYS[1] ** step)
        rate = RATE * (1 - (step - 1) / STEPS)
        logarithms = logarithms - rate * mean / (1 - _DECAYS[0] ** step) / (np.sqrt(corrected) + 1e-12)
    network.release()
    best = communicator.broadcast_from_root(best)  # all ranks have the same bits
    return {name: float(value) for name, value in zip(names, np.exp(best))}


def _multiply(network: nn.Module, architecture: Architecture, names: Sequence[str], factors: torch.Tensor) -> None:
    """Let a network multiply its sums by factors that can still change, one for each group of these names."""

    def of(groups: tuple[str, ...], like: torch.Tensor) -> torch.Tensor:
        return torch.stack([factors[names.index(group)] for group in groups]).prod().to(like.dtype)

    def fitted(groups: Iterable[str]) -> tuple[str, ...]:
        return tuple(group for group in groups if group in names)

    for module, groups in architecture.sums.items():
        if chosen := fitted(groups):
            layer = network.get_submodule(module)
            layer.register_forward_pre_hook(lambda _, inputs, chosen=chosen: (inputs[0] * of(chosen, inputs[0]),))
    keys = {key: fitted(use.groups) for key, use in architecture.keys_of_uses(architecture.lengths).items()}
    weights = {name: fitted(groups) for name, groups in architecture.table.folded.items()}
    if any((*keys.values(), *weights.values())):
        like = next(network.parameters())
        scale_sums(
            network,
            lambda: tuple(
                {key: of(groups, like) for key, groups in each.items() if groups} for each in (keys, weights)
            ),
        )
    for group, blocks in architecture.blocks.items():
        for end in (end for block in blocks for end in block.ends if group in names):
            network.get_submodule(end).register_forward_hook(
                lambda _, __, output, group=group: output * of((group,), output)
            )
