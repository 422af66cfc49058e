"""A network for a graph, evaluated for all nodes at once, with the units of each layer spread over
the ranks.

Between two products a unit needs no other unit, except in a normalisation over a node's units,
which adds up two sums over the ranks. A product gathers all units of some nodes at a time. The last
product adds up the ranks' contributions.
"""

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from istmpi.comm import Communicator
from istmpi.cost.whole_graph import GATHERED
from istmpi.engine.store import ParameterStore
from istmpi.models.aggregation import Bias
from istmpi.models.architecture import Architecture
from istmpi.models.leaves import Leaf, leaves_of


def spread_units(
    network: nn.Module,
    architecture: Architecture,
    store: ParameterStore,
    communicator: Communicator,
    sharded: Collection[str],
) -> None:
    """Make each layer of a network compute only this rank's units, with this rank's rows of
    ``sharded`` weights.

    The last product has its whole weight on each rank. ``network`` must be built without factors
    (scale). Passes of the network are then collective.
    """
    units = {
        group: store.owners.rows(architecture.lengths[group], store.rank)
        for group in architecture.groups
    }
    for path, leaf in leaves_of(network, architecture.leaves).items():
        factor = architecture.factor(
            architecture.sums.get(path, ()), architecture.lengths, store.full_scale
        )
        before = architecture.parameters[leaf.names["weight"]].pattern.axes[1].factors[0].name
        if sharded.isdisjoint(leaf.names.values()):
            if before in units:
                leaf.replace(_contribution(leaf, units[before], factor, communicator))
        else:
            product = partial(
                leaf.whole, {key: store.tensors[name] for key, name in leaf.names.items()}
            )
            if before in units:
                length = architecture.lengths[before]
                widths = [
                    len(store.owners.rows(length, rank)) for rank in range(store.owners.ranks)
                ]
                product = _of_gathered(
                    product, len(store.tensors[leaf.names["weight"]]), widths, factor, communicator
                )
            leaf.replace(product)
    groups = {str(number): group for number, group in enumerate(architecture.groups)}
    for path, module in network.named_modules():
        if group := groups.get(path.rpartition(".")[2]):
            if isinstance(module, nn.LayerNorm):
                module.forward = _normalised(module.eps, architecture.lengths[group], communicator)
            elif isinstance(module, Bias):
                module.forward = _added(module, units[group])


def _of_gathered(
    product: Callable[[torch.Tensor], torch.Tensor],
    outputs: int,
    widths: list[int],
    factor: float,
    communicator: Communicator,
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return ``product`` of inputs that are gathered from the ranks and scaled. ``widths``: inputs
    of each rank."""

    def forward(h: torch.Tensor) -> torch.Tensor:
        made = h.new_empty(len(h), outputs)
        step = max(GATHERED // sum(widths), 1)
        for start in range(0, len(h), step):
            part = h[start : start + step].contiguous()
            counts = [len(part) * width for width in widths]
            flat = torch.from_numpy(communicator.allgatherv(part.view(-1).numpy(), counts))
            parts = [
                block.view(len(part), width) for block, width in zip(flat.split(counts), widths)
            ]
            made[start : start + step] = product(torch.cat(parts, dim=1).mul_(factor))
        return made

    return forward


def _contribution(
    leaf: Leaf, units: range, factor: float, communicator: Communicator
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a product with a whole weight that adds up the scaled contributions of each rank's
    ``units``."""

    def forward(h: torch.Tensor) -> torch.Tensor:
        parameters = leaf.module._parameters
        outputs = functional.linear(h, parameters["weight"][:, units.start : units.stop]).mul_(
            factor
        )
        outputs = torch.from_numpy(communicator.allreduce_sum(outputs.numpy()))
        return outputs if parameters.get("bias") is None else outputs + parameters["bias"]

    return forward


def _normalised(
    epsilon: float, count: int, communicator: Communicator
) -> Callable[[torch.Tensor], torch.Tensor]:
    def mean(sums: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(communicator.allreduce_sum(sums.numpy())).view(-1, 1) / count

    def forward(h: torch.Tensor) -> torch.Tensor:
        h.sub_(mean(h.sum(dim=1)))
        return h.mul_((mean(torch.einsum("nu,nu->n", h, h)) + epsilon).rsqrt_())

    return forward


def _added(module: Bias, units: range) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda h: h.add_(module.bias[units.start : units.stop])
