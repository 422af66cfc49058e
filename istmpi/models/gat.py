"""A graph attention network (Veličković et al. 2018, arXiv 1710.10903), whose heads are dealt out."""

from torch import nn
from torch.nn import functional

from istmpi.models.aggregation import Edges, norm_of


class Attention(nn.Module):
    """Heads that each make ``units`` numbers of a node: a sum over what it hears from and itself, weighted by a softmax
    of a leaky ReLU of what the head's units of both ends score.
    """

    def __init__(self, width: int, heads: int, units: int):
        super().__init__()
        self.product = nn.Linear(width, heads * units, bias=False)
        self.scores = nn.Conv1d(heads * units, 2 * heads, 1, groups=heads, bias=False)
        self.units = units

    def forward(self, h, edges):
        values = self.product(h)
        scores = self.scores(values[:, :, None]).view(len(values), -1, 2).unbind(dim=2)
        return edges.attended(values.view(len(values), -1, self.units), *scores).flatten(1)


class GAT(nn.Module):
    """Layers of attention over neighbours, then a convolution over neighbours that makes the logits.

    ``features``: numbers of a node. ``outputs``: classes. ``heads``: heads of each layer. ``units``: units of each
    head. ``norm``: normalisation of a layer's units before the ELU: layer or none. ``dropout``: fraction of a
    layer's input that a step drops. Memory grows with edges times units, in a step and in an evaluation of the
    whole graph.
    """

    DEALT = ("heads",)

    def __init__(
        self,
        features: int,
        outputs: int,
        heads: tuple[int, ...] = (16,),
        units: int = 8,
        norm: str = "none",
        dropout: float = 0.0,
    ):
        super().__init__()
        widths = [features, *(count * units for count in heads)]
        self.layers = nn.ModuleList(Attention(width, count, units) for width, count in zip(widths, heads))
        self.norms = nn.ModuleList(norm_of(norm, width) for width in widths[1:])
        self.last = nn.Linear(widths[-1], outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, offsets, columns):
        edges, h = Edges(offsets, columns), x
        for layer, norm in zip(self.layers, self.norms):
            h = functional.elu_(norm(layer(self.dropout(h), edges)))
        return edges.convolved(self.last(self.dropout(h)), spare=True)
