"""The messages in which ranks add up the outputs of a round's batches (`istmpi.methods.joint`).
Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from istmpi.engine.axes import Parameter, Pattern

NAME = "outputs"
GROWTH = 5
"""The quotient of the steps whose sums have been sent after a message and before it."""


def split_steps(local_steps: int) -> Iterator[range]:
    """Yield the local steps whose sums travel in one message.

    A step waits for its own sum. The first one waits for nothing else, and a later message has four
    times as many steps as all messages before it: a link with long delays carries few messages, and
    the last of them arrive during earlier steps.
    """
    first = 0
    while first < local_steps:
        stop = min(max(GROWTH * first, 1), local_steps)
        yield range(first, stop)
        first = stop


@dataclass(frozen=True)
class StepOutputs:
    """The outputs of a local step's batch on one rank: a matrix ``[rows, values]``."""

    rows: int
    values: int
    dtype: str

    def of_steps(self, steps: range) -> dict[str, Parameter]:
        """Return the outputs of several steps as one tensor, by its name."""
        rows = len(steps) * self.rows
        name = f"{NAME} of steps {steps.start} to {steps.stop - 1}"
        return {name: Parameter(Pattern.parse(f"{rows} {self.values}"), self.dtype)}
