"""The memory that the evaluation of a whole graph takes."""

from collections import Counter

from istmpi.network.architecture import Architecture
from istmpi.network.table import AGGREGATION

GATHERED = 2**24
"""The most values of nodes that are gathered at a time, if units are spread over ranks."""


def unitwise(architecture: Architecture) -> bool:
    """Return True if `istmpi.evaluation.spread_units` can spread a graph network's units over the
    ranks."""
    return any(operator.kind == AGGREGATION for operator in architecture.operators)


def whole_graph_bytes(architecture: Architecture, ranks: int) -> int:
    """A rank's bytes in a forward pass over a whole graph: the input and all products of the widest
    layer.

    Units are spread over the ranks if possible. Returns 0 for networks that take no graph.
    """
    # nodes: of an example, and of a whole graph; 0 if the network takes none.
    nodes = architecture.nodes[1]
    if not nodes:
        return 0
    products = [operator.parameter for operator in architecture.operators if operator.parameter]
    made = Counter(architecture.parameters[name].pattern.axes[0] for name in products)
    widest = max(
        operator.outputs(architecture.lengths) // operator.calls
        for operator in architecture.operators
    )
    gathered = 2 * min(GATHERED, nodes * widest) * (ranks > 1)
    copies = 1 + max(made.values())
    if not unitwise(architecture):
        return architecture.itemsize * nodes * copies * widest
    return architecture.itemsize * (-(-nodes * copies * widest // ranks) + gathered)
