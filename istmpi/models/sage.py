"""GraphSAGE with the mean over neighbours (Hamilton et al. 2017, arXiv 1706.02216), wide as in GIST (2102.10424)."""

from torch import nn
from torch.nn import functional

from istmpi.models.aggregation import Edges, dropped, multiplied, norm_of


class SAGE(nn.Module):
    """Layers of a product with a node's own numbers and one with the mean of its neighbours'; the last makes logits.

    That is one product with both beside each other: the same units of both are dealt out. ``features``: of a node.
    ``outputs``: the classes. ``hidden``: the width of each hidden layer. ``norm``: normalisation of hidden layers,
    before their ReLU: layer or none. ``dropout``: share of what goes into a layer that a step leaves out.
    ``aggregate_first``: whether the first layer takes the mean of features, not of products with them, which is cheaper
    where there are fewer of them than units.
    """

    DEALT = ("hidden",)

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: tuple[int, ...] = (256, 256),
        norm: str = "layer",
        dropout: float = 0.0,
        aggregate_first: bool = False,
    ):
        super().__init__()
        widths = [features, *hidden, outputs]
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, widths[1:]))
        self.heard = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in zip(widths, widths[1:]))
        self.norms = nn.ModuleList(norm_of(norm, width) for width in hidden)
        self.dropout = nn.Dropout(dropout)
        self.aggregate_first = aggregate_first

    def forward(self, x, offsets, columns):
        edges, h = Edges(offsets, columns), x
        for number, (to_self, to_others) in enumerate(zip(self.own, self.heard)):
            if number == 0 and not self.aggregate_first:
                h = dropped(h, self.dropout)
                h = edges.mean(multiplied(to_others, h)).add_(multiplied(to_self, h))
            else:
                h = self.dropout(h)
                h = (to_others(edges.mean(h)) if number == 0 else edges.mean(to_others(h))).add_(to_self(h))
            if number < len(self.norms):
                h = functional.relu_(self.norms[number](h))
        return h
