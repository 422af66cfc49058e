"""Operators: every product of a network's forward pass, as a matrix product of named lengths. Pure, without torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from istmpi.engine.axes import Pattern

Number = int | Fraction

AGGREGATION = "Aggregation"
"""The kind of a graph's sums over the neighbours of a node."""
EPSILON = 1e-5


@dataclass(frozen=True)
class Operator:
    """A product of a forward pass: for an example ``rows x inner`` times ``inner x columns``; a look-up has the inner
    length 0.
    """

    shape: Pattern
    """Rows, inner, columns: ``256 (9 channels1) channels2``."""
    module: str
    """The name of the module that it is called in; empty for the network's own ``forward``."""
    kind: str
    parameter: str = ""
    """The weight that it multiplies by; empty if there is none."""
    axis: int | None = None
    """The axis of that weight whose positions are the columns."""
    gradients: int = 2
    """Products of the same size in the backward pass: one for each factor that needs a gradient."""
    of_input: bool = False
    """A factor is the network's input, whose gradient nobody needs."""
    calls: int = 1
    examples: int = 1
    """The power of the number of examples that it grows with, 0 or 1."""
    lookups: float = 0
    """The rows of a table that a bag adds up; the others that a node hears from."""
    block: int = 0
    """Columns that are in memory at a time; 0 for all."""

    def multiply_adds(self, lengths: Mapping[str, Number], examples: Number = 1) -> Number:
        """Multiply-adds of a forward pass; the backward pass has ``gradients`` times as many."""
        return prod(self.shape.shape(lengths)) * self.calls * examples**self.examples

    def flops(self, lengths: Mapping[str, Number], examples: Number = 1) -> tuple[Number, Number]:
        forward = 2 * self.multiply_adds(lengths, examples)
        return forward, self.gradients * forward

    def added_up(self, lengths: Mapping[str, Number], examples: Number = 1) -> Number:
        return self.outputs(lengths, examples) * self.lookups

    def kept(self, lengths: Mapping[str, Number], examples: Number = 1) -> Number:
        """The part of its `outputs` that is in memory at a time."""
        columns = self.shape.shape(lengths)[2]
        return self.outputs(lengths, examples) * Fraction(min(self.block or columns, columns), columns or 1)

    def outputs(self, lengths: Mapping[str, Number], examples: Number = 1) -> Number:
        rows, _, columns = self.shape.shape(lengths)
        return rows * columns * self.calls * examples**self.examples


def flops(operators: Iterable[Operator], lengths: Mapping[str, Number]) -> Number:
    return sum(sum(operator.flops(lengths)) for operator in operators)
