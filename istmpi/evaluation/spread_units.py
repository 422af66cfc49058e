"""A network for a graph, evaluated for all nodes at once, with its layers' units over the ranks.

Between two products a unit needs no other unit, except in a normalisation over a node's units,
which adds up two sums over the ranks. A product gathers all units of some nodes at a time. The last
product adds up the ranks' contributions.
"""

from collections.abc import Callable, Set

import torch
from torch import nn
from torch.nn import functional

from istmpi.comm import Communicator
from istmpi.cost.whole_graph import GATHERED
from istmpi.engine.store import ParameterStore
from istmpi.models.aggregation import Bias
from istmpi.network.architecture import Architecture
from istmpi.network.leaves import Leaf, find_leaves

Product = Callable[[torch.Tensor], torch.Tensor]


def spread_units(
    network: nn.Module,
    architecture: Architecture,
    store: ParameterStore,
    communicator: Communicator,
    sharded: Set[str],
) -> None:
    """Make each layer of a network compute only this rank's units.

    It uses this rank's rows of ``sharded`` weights. The last product has its whole weight on each
    rank. ``network`` must be built without factors (scale). Passes of the network are then
    collective.
    """
    lengths = architecture.lengths
    units = {group: store.owners.rows(lengths[group], store.rank) for group in architecture.groups}
    _spread_products(network, architecture, store, communicator, sharded, units)
    # Norms and biases stand in lists, in the order of the layers and of their groups.
    groups = {str(number): group for number, group in enumerate(architecture.groups)}
    for path, module in network.named_modules():
        group = groups.get(path.rpartition(".")[2])
        if group is None:
            continue
        if isinstance(module, nn.LayerNorm):
            _replace(module, _normalise(module.eps, lengths[group], communicator))
        elif isinstance(module, Bias):
            _replace(module, _add_bias(module, units[group]))


def _spread_products(
    network: nn.Module,
    architecture: Architecture,
    store: ParameterStore,
    communicator: Communicator,
    sharded: Set[str],
    units: dict[str, range],
) -> None:
    """Replace the products of a network. ``units``: this rank's units of each group."""
    lengths = architecture.lengths
    for path, leaf in find_leaves(network, architecture.leaves).items():
        factor = architecture.factor(architecture.sums.get(path, ()), lengths, store.full_scale)
        # The group of the units before the layer: columns of its weight.
        before = architecture.parameters[leaf.names["weight"]].pattern.axes[1].factors[0].name
        if not sharded.isdisjoint(leaf.names.values()):
            product = _multiply_rows(leaf, store)
            if before in units:
                outputs = len(store.tensors[leaf.names["weight"]])
                widths = [
                    len(store.owners.rows(lengths[before], rank))
                    for rank in range(store.owners.ranks)
                ]
                product = _gather_inputs(product, outputs, widths, factor, communicator)
            leaf.replace(product)
        elif before in units:
            leaf.replace(_add_up_contributions(leaf, units[before], factor, communicator))


def _replace(module: nn.Module, forward: Product) -> None:
    module.forward = forward


def _multiply_rows(leaf: Leaf, store: ParameterStore) -> Product:
    """Return a product with this rank's rows of a leaf's weight."""
    values = {key: store.tensors[name] for key, name in leaf.names.items()}

    def forward(h: torch.Tensor) -> torch.Tensor:
        return leaf.whole(values, h)

    return forward


def _gather_inputs(
    product: Product, outputs: int, widths: list[int], factor: float, communicator: Communicator
) -> Product:
    """Return ``product`` of inputs that are gathered from the ranks and scaled.

    ``widths``: inputs of each rank.
    """

    def forward(h: torch.Tensor) -> torch.Tensor:
        result = h.new_empty(len(h), outputs)
        # Some nodes at a time, for all units of all nodes may exceed the memory.
        step = max(GATHERED // sum(widths), 1)
        for start in range(0, len(h), step):
            part = h[start : start + step].contiguous()
            counts = [len(part) * width for width in widths]
            flat = torch.from_numpy(communicator.allgatherv(part.view(-1).numpy(), counts))
            blocks = []
            for block, width in zip(flat.split(counts), widths, strict=True):
                blocks.append(block.view(len(part), width))
            result[start : start + step] = product(torch.cat(blocks, dim=1).mul_(factor))
        return result

    return forward


def _add_up_contributions(
    leaf: Leaf, units: range, factor: float, communicator: Communicator
) -> Product:
    """Return a product with a whole weight of each rank's ``units``.

    It adds up the ranks' scaled contributions.
    """

    def forward(h: torch.Tensor) -> torch.Tensor:
        # Read at each pass, because the weight is loaded anew before an evaluation.
        weight = leaf.module.get_parameter("weight")
        outputs = functional.linear(h, weight[:, units.start : units.stop]).mul_(factor)
        outputs = torch.from_numpy(communicator.allreduce_sum(outputs.numpy()))
        if leaf.module._parameters.get("bias") is None:
            return outputs
        return outputs + leaf.module.get_parameter("bias")

    return forward


def _normalise(epsilon: float, count: int, communicator: Communicator) -> Product:
    def mean(sums: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(communicator.allreduce_sum(sums.numpy())).view(-1, 1) / count

    def forward(h: torch.Tensor) -> torch.Tensor:
        # In place: the units of all nodes are the largest tensors of the pass.
        h.sub_(mean(h.sum(dim=1)))
        return h.mul_((mean(torch.einsum("nu,nu->n", h, h)) + epsilon).rsqrt_())

    return forward


def _add_bias(module: Bias, units: range) -> Product:
    return lambda h: h.add_(module.bias[units.start : units.stop])
