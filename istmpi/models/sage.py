"""GraphSAGE with the mean over neighbours (Hamilton et al. 2017, arXiv 1706.02216), wide as in GIST (2102.10424)."""

from torch import nn
from torch.nn import functional

from istmpi.models.aggregation import Edges, dropped, multiplied, norm_of


class SAGE(nn.Module):
    """Layers of a product with a node's numbers and a product with the mean of its neighbours'; the last makes logits.

    Both are one product with concatenated inputs, so both deal out the same units. ``features``: numbers of a node.
    ``outputs``: classes. ``hidden``: widths of the hidden layers. ``norm``: normalisation of hidden layers before
    the ReLU: layer or none. ``dropout``: fraction of a layer's input that a step drops. ``aggregate_first``:
    average the first layer's features over neighbours before its product; cheaper with fewer features than units.
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
