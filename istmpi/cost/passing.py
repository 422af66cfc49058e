"""The memory that a pass of an evaluation takes."""

from math import prod

from istmpi.config import Run
from istmpi.cost.calibration import calibration_examples
from istmpi.cost.counts import Amount
from istmpi.cost.whole_graph import whole_graph_bytes
from istmpi.engine.lengths import Number
from istmpi.network.architecture import Architecture
from istmpi.network.table import Operator

MOST_LOGITS = 2**26
"""The largest number of logits of a pass over several windows or sparse rows."""


def windows_together(batch: int, logits: int) -> int:
    return max(min(batch, MOST_LOGITS // logits), 1)


def pass_bytes(
    run: Run, architecture: Architecture, ranks: int, gathers: bool = False, at_once: int = 0
) -> Amount:
    """Return the least bytes of a pass: examples or graph, and what its widest product needs.

    ``gathers``: True if the outputs of layers are gathered, because each rank has some of their
    rows. ``at_once``: the examples of a single pass, if an evaluation has but one.
    """
    if architecture.nodes[1]:
        return whole_graph_bytes(architecture, ranks)
    products = architecture.operators
    # The outputs of a product, before and after a normalisation.
    widest = 2 * max(_count_outputs(architecture, product) for product in products)
    if gathers:
        widest = max(widest, *(_count_gathering(architecture, product) for product in products))
    batch = run.evaluate.batch
    code = architecture.code
    if code.tokens or code.sparse:
        batch = windows_together(batch, code.numbers)
    sampled = 0
    if architecture.batch_norms:
        sampled = calibration_examples(run, architecture, ranks)
    examples = max(batch, -(-sampled // ranks), at_once)
    # An example whose rows are looked up has their numbers, in place of its shape's values.
    inputs = sum(operator.lookups for operator in architecture.operators)
    numbers = (inputs or prod(architecture.example_shape)) + widest
    return examples * numbers * architecture.itemsize


def _count_outputs(architecture: Architecture, product: Operator) -> Number:
    """Return the outputs of a call of a product, for an example."""
    return product.outputs(architecture.lengths) // product.calls


def _count_gathering(architecture: Architecture, product: Operator) -> Number:
    """Return the numbers of a product for an example, if ranks compute its rows and gather them.

    These are its outputs as they arrive and in the layer's order, and the input of a linear layer,
    also times the factors of sums.
    """
    outputs = 2 * _count_outputs(architecture, product)
    if product.kind != "Linear" or product.of_input:
        return outputs
    rows, inner, _ = product.shape.shape(architecture.lengths)
    return outputs + 2 * rows * inner
