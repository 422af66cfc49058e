"""What a network computes for an example: the matrix products and convolutions of one forward pass, by module.

Counted by torch's own counter (`torch.utils.flop_counter`) on the meta device, where nothing is computed. A look-up in
a table (Embedding, EmbeddingBag) counts nothing there, nor here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from istmpi.models.own import OwnNetwork

EXAMPLES = 2
"""In the counted pass: one alone is too few for batch statistics."""


@dataclass(frozen=True)
class Operator:
    """The products of one module in a forward pass."""

    module: str
    """Its name in the network; empty for the network's own ``forward``."""
    kind: str
    """The name of its class."""
    flops: int
    """For one example; a multiply-add is two."""
    weighted: bool
    """It has parameters of its own; else it multiplies what others have made, as attention does."""


def operators(network: OwnNetwork, lengths: dict[str, int] | None = None) -> list[Operator]:
    """The products of a network, or of it with other lengths, in the order of its modules."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        built = network.build(lengths).eval()
    with FlopCounterMode(display=False) as counter:
        network.forward(built, network.examples(EXAMPLES, torch.get_default_dtype(), "meta"))
    counts = {name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()}
    top = type(built).__name__
    own = dict(counts)
    for name, count in counts.items():
        if above := _nearest_above(name, counts):
            own[above] -= count
    found = []
    for name, module in built.named_modules():
        if flops := own.get(f"{top}.{name}" if name else top, 0):
            weighted = any(True for _ in module.parameters(recurse=False))
            found.append(Operator(name, type(module).__name__, flops // EXAMPLES, weighted))
    return found


def _nearest_above(name: str, counts: dict[str, int]) -> str:
    """The innermost counted module that a module lies in: one that only lists others is never called."""
    while name:
        name = name.rpartition(".")[0]
        if name in counts:
            return name
    return ""
