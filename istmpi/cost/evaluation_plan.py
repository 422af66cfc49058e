"""The plan of an evaluation: where weights lie, and what ranks send."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SummedUnits:
    """The units between the last two linear layers of a network. What a unit contributes to the
    outputs depends on no other unit of its layer."""

    group: str
    """The name of the units' group and of their stage."""
    hidden: str
    """The leaf that computes the units."""
    outputs: str
    """The leaf that sums over the units."""
    is_normalised: bool
    """True if a batch normalisation follows the units' leaf."""


@dataclass(frozen=True)
class EvaluationPlan:
    """The parameters that are sharded in an evaluation, the bytes of all others, and the bytes that
    ranks send."""

    sharded: frozenset[str]
    gathered_bytes: int
    sent: int
    """Bytes that all ranks send; if ranks have their own examples, only the bytes of gathered
    weights."""
    sums: int | None = None
    """The part of these bytes that brings the sums of a score together; None if there are others
    that depend on the examples."""
    by_units: bool = False
    """True for a graph if each layer's units are spread over the ranks."""
    on_one: bool = False
    """True if rank 0 alone gathers the weights, and passes all examples."""
    summed: SummedUnits | None = None
    """The units whose contributions ranks add up, if they pass all examples at once."""
    at_once: int = 0
    """The number of these examples."""

    @property
    def leaves_outputs(self) -> bool:
        """True if rank 0 has the network's outputs for all examples after an evaluation, so that a
        save sends nothing for a classifier's temperature."""
        return self.on_one or self.summed is not None
