"""Counts the FLOPs and the memory of one rank of a run. Sizes are expectations over deals if blocks
are dealt."""

from dataclasses import dataclass
from math import prod

from istmpi.cost.holdings import Part
from istmpi.engine.axes import count_bytes
from istmpi.engine.lengths import Number
from istmpi.network.architecture import Architecture
from istmpi.optim.spec import OptimizerSpec

Amount = Number | float
"""A number that may depend on `Operator.lookups`, a measured mean."""

NORMALISATION_FLOPS = 20
"""FLOPs for each unit and example: 8 forward, about 12 backward."""
FORWARD_NORMALISATION_FLOPS = 8
KEPT_OUTPUTS = 2
"""The tensors kept for the backward pass of a product: its output and the activation."""
PROCESS = 310_000_000
"""Bytes of Python, torch 2.13 for the CPU and MPICH 5.0, measured."""


@dataclass(frozen=True)
class Flops:
    """The FLOPs of one local step of one rank; multiply-add = 2."""

    products: Number
    """Matrix products, forward and for the needed gradients, as PyTorch counts them."""
    first_input_gradient: Number
    """The gradient of the network's input, which only the paper counts."""
    normalisation: Number
    optimizer: Amount
    product_count: Number
    lookups: Amount = 0
    """Additions of embedding rows in bags, and of their gradients. PyTorch does not count them."""


@dataclass(frozen=True)
class Memory:
    """Bytes in one rank's memory, without the examples."""

    owned: Number
    """Rows of the rank that owns most, with their optimizer state."""
    network: Number
    gradients: Amount
    optimizer: Number
    buffers: Number
    """Bytes that a transfer packs and receives."""
    activations: Number
    copies: Amount
    """Copies of parameters in addition to the trained network."""
    evaluation: Amount = 0
    """Values in the evaluation of a whole graph, when memory has no gradients and activations."""
    process: Number = PROCESS

    @property
    def total(self) -> Amount:
        """The peak of bytes. Training, an evaluation and a transfer follow each other, so only the
        largest counts."""
        at_a_time = max(self.gradients + self.activations, self.evaluation, self.buffers)
        return self.process + self.owned + self.network + self.optimizer + at_a_time + self.copies


@dataclass(frozen=True)
class PartCost:
    """The cost of one rank of a part."""

    part: Part
    elements: Number
    """The parameters' elements of the network that the rank trains."""
    flops: Flops
    memory: Memory
    touched: Amount
    """Bytes that a step reads from memory or writes to it outside the matrix products."""


@dataclass(frozen=True)
class Step:
    """A local step, as far as it is the same on all ranks."""

    examples: Number
    """Examples of a batch, times the nodes of an example that is a graph."""
    optimizer: OptimizerSpec
    others: Number
    """The forward passes of a batch beside that of the step itself, as the mean over a round's
    steps."""
    sparse: bool
    """True if a step changes only the embedding rows that it reads."""


@dataclass(frozen=True)
class Kept:
    """The memory of a rank that does not depend on its local steps; fields are those of
    `Memory`."""

    owned: Number
    buffers: Number
    copies: Number
    evaluation: Number


@dataclass
class Work:
    """The sums over the operators of a network in a local step, in FLOPs and values."""

    products: Number = 0
    first_input_gradient: Number = 0
    product_count: Number = 0
    outputs: Number = 0
    """Outputs that are kept for the backward pass."""
    added_up: Amount = 0
    """Values of rows that look-ups add up."""
    untouched: Amount = 0
    """Values of embeddings that a step neither reads nor changes."""
    ungraded: Number = 0
    """Values whose gradients are never in memory at a time."""


def count_part(part: Part, architecture: Architecture, step: Step, kept: Kept) -> PartCost:
    """Return the cost of one rank of ``part``."""
    work = count_work(part, architecture, step)
    elements = sum(parameter.size(part.lengths) for parameter in architecture.parameters.values())
    weights = count_bytes(architecture.parameters, part.lengths)
    itemsize = max(parameter.itemsize for parameter in architecture.parameters.values())
    slots = len(step.optimizer.slots)
    activations = KEPT_OUTPUTS * work.outputs * itemsize
    normalised = sum(prod(axes.shape(part.lengths)) for axes in architecture.normalised)
    normalisation = NORMALISATION_FLOPS + FORWARD_NORMALISATION_FLOPS * step.others
    flops = Flops(
        products=work.products,
        first_input_gradient=work.first_input_gradient,
        normalisation=normalisation * normalised * step.examples,
        optimizer=step.optimizer.flops * (elements - work.untouched),
        product_count=work.product_count,
        lookups=2 * (2 + step.others) * work.added_up,
    )
    memory = Memory(
        owned=kept.owned,
        network=weights,
        gradients=weights - (work.untouched + work.ungraded) * itemsize,
        optimizer=slots * weights,
        buffers=kept.buffers,
        activations=activations,
        copies=kept.copies,
        evaluation=kept.evaluation,
    )
    # A step reads and writes each weight and its optimizer state, and reads its gradient.
    touched: Amount = (3 + 2 * slots + step.others) * (weights - work.untouched * itemsize)
    # It writes and reads activations forward, and their gradients backward.
    touched += (4 + step.others) * activations
    touched += (2 + step.others) * work.added_up * itemsize
    return PartCost(part=part, elements=elements, flops=flops, memory=memory, touched=touched)


def count_work(part: Part, architecture: Architecture, step: Step) -> Work:
    """Add up the work of all operators in a local step of one rank of ``part``."""
    work = Work()
    for operator in architecture.operators:
        work.outputs += operator.kept(part.lengths, step.examples)
        work.added_up += operator.added_up(part.lengths, step.examples)
        if operator.lookups and operator.parameter and step.sparse:
            # A batch reads at most as many rows as it has look-ups.
            rows, *columns = architecture.parameters[operator.parameter].pattern.shape(part.lengths)
            work.untouched += max(rows - step.examples * operator.lookups, 0) * prod(columns)
        if operator.kind == "LabelBlocks" and step.sparse and not step.optimizer.slots:
            # Its step is taken block by block.
            work.ungraded += architecture.parameters[operator.parameter].size(part.lengths)
        forward, backward = operator.flops(part.lengths, step.examples)
        if forward:  # otherwise it looks up
            work.products += (1 + step.others) * forward + backward
            work.first_input_gradient += forward * operator.of_input
            work.product_count += (1 + operator.gradients + step.others) * operator.calls
    return work
