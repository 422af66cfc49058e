"""A graph convolutional network (Kipf and Welling 2017, arXiv 1609.02907), wide as in GIST (arXiv 2102.10424)."""

from torch import nn
from torch.nn import functional

from istmpi.models.aggregation import Bias, Edges, dropped, multiplied, norm_of


class GCN(nn.Module):
    """Layers of a product with weights and a convolution over neighbours; the last one makes the logits.

    ``features``: numbers of a node. ``outputs``: classes. ``hidden``: widths of the hidden layers. ``norm``:
    normalisation of hidden layers before the ReLU: layer or none. ``dropout``: fraction of a layer's input that a
    step drops. ``aggregate_first``: sum the first layer's features over neighbours before its product; cheaper with
    fewer features than units.
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
        self.products = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in zip(widths, widths[1:]))
        self.biases = nn.ModuleList(Bias(width) for width in widths[1:])
        self.norms = nn.ModuleList(norm_of(norm, width) for width in hidden)
        self.dropout = nn.Dropout(dropout)
        self.aggregate_first = aggregate_first

    def forward(self, x, offsets, columns):
        """Logits ``[n, outputs]`` of nodes with features ``x``; i hears from ``columns[offsets[i]:offsets[i + 1]]``."""
        edges, h = Edges(offsets, columns), x
        for number, product in enumerate(self.products):
            if number == 0 and self.aggregate_first:
                h = product(edges.convolved(self.dropout(h)))
            else:
                h = multiplied(product, dropped(h, self.dropout) if number == 0 else self.dropout(h))
                h = edges.convolved(h, spare=True)
            h = self.biases[number](h)
            if number < len(self.norms):
                h = functional.relu_(self.norms[number](h))
        return h
