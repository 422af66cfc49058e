"""Networks for graphs: GCN (Kipf and Welling 2017, arXiv 1609.02907) and GraphSAGE with the mean
over neighbours (Hamilton et al. 2017, 1706.02216), as in GIST (2102.10424), and GAT (Veličković et
al. 2018, 1710.10903).
"""

from itertools import pairwise

from torch import nn
from torch.nn import functional

from istmpi.models.aggregation import Bias, Edges, drop, make_norm, multiply


class GCN(nn.Module):
    """Layers of a product with weights and a convolution over neighbours; the last layer makes the
    logits.

    ``features``: numbers of a node. ``outputs``: classes. ``hidden``: widths of the hidden layers.
    ``norm``: normalisation of hidden layers before the ReLU: layer or none. ``dropout``: fraction
    of a layer's input that a step drops. ``aggregate_first``: sum the first layer's features over
    neighbours before its product; cheaper with fewer features than units.
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
        self.products = nn.ModuleList(
            nn.Linear(width, units, bias=False) for width, units in pairwise(widths)
        )
        self.biases = nn.ModuleList(Bias(width) for width in widths[1:])
        self.norms = nn.ModuleList(make_norm(norm, width) for width in hidden)
        self.dropout = nn.Dropout(dropout)
        self.aggregate_first = aggregate_first

    def forward(self, x, offsets, columns):
        """Return logits ``[n, outputs]``. Node i has the neighbours ``columns[offsets[i]:offsets[i
        + 1]]``."""
        edges = Edges(offsets, columns)
        h = x
        for number, product in enumerate(self.products):
            if number == 0 and self.aggregate_first:
                h = product(edges.convolve(self.dropout(h)))
            else:
                # Only features may be few enough for a sparse product.
                h = drop(h, self.dropout) if number == 0 else self.dropout(h)
                # Two steps, so that the layer's input is freed before the convolution.
                h = multiply(product, h)
                h = edges.convolve(h, spare=True)
            h = self.biases[number](h)
            if number < len(self.norms):
                h = functional.relu_(self.norms[number](h))
        return h


class SAGE(nn.Module):
    """Layers that multiply a node's numbers and its neighbours' mean by weights, and add the
    products.

    Both products of a layer have the same units. The last layer makes the logits. ``features``:
    numbers of a node. ``outputs``: classes. ``hidden``: widths of the hidden layers. ``norm``:
    normalisation of hidden layers before the ReLU: layer or none. ``dropout``: fraction of a
    layer's input that a step drops. ``aggregate_first``: average the first layer's features over
    neighbours before its product; cheaper with fewer features than units.
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
        self.own = nn.ModuleList(nn.Linear(width, units) for width, units in pairwise(widths))
        # No second bias, for both products are added.
        self.heard = nn.ModuleList(
            nn.Linear(width, units, bias=False) for width, units in pairwise(widths)
        )
        self.norms = nn.ModuleList(make_norm(norm, width) for width in hidden)
        self.dropout = nn.Dropout(dropout)
        self.aggregate_first = aggregate_first

    def forward(self, x, offsets, columns):
        edges = Edges(offsets, columns)
        h = x
        for number, (to_self, to_others) in enumerate(zip(self.own, self.heard)):
            if number:
                h = self.dropout(h)
                h = edges.mean(to_others(h)).add_(to_self(h))
            elif self.aggregate_first:
                h = self.dropout(h)
                h = to_others(edges.mean(h)).add_(to_self(h))
            else:
                h = drop(h, self.dropout)
                h = edges.mean(multiply(to_others, h)).add_(multiply(to_self, h))
            if number < len(self.norms):
                h = functional.relu_(self.norms[number](h))
        return h


class Attention(nn.Module):
    """Attention heads. Each makes ``units`` numbers of a node: a weighted mean over the node and
    its neighbours.

    The weights are the softmax of a leaky ReLU of two scores, one for each end of an edge.
    """

    def __init__(self, width: int, heads: int, units: int):
        super().__init__()
        self.product = nn.Linear(width, heads * units, bias=False)
        # A convolution in groups over one position: a head's two scores see its own units alone.
        self.scores = nn.Conv1d(heads * units, 2 * heads, 1, groups=heads, bias=False)
        self.units = units

    def forward(self, h, edges):
        values = self.product(h)
        scores = self.scores(values[:, :, None]).view(len(values), -1, 2).unbind(dim=2)
        return edges.attend(values.view(len(values), -1, self.units), *scores).flatten(1)


class GAT(nn.Module):
    """Layers of attention over neighbours, then a convolution over neighbours that makes the
    logits.

    Memory grows with edges times units, in a step and in an evaluation of the whole graph.
    ``features``: numbers of a node. ``outputs``: classes. ``heads``: heads of each layer.
    ``units``: units of each head. ``norm``: normalisation of a layer's units before the ELU: layer
    or none. ``dropout``: fraction of a layer's input that a step drops.
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
        self.layers = nn.ModuleList(
            Attention(width, count, units) for width, count in zip(widths, heads)
        )
        self.norms = nn.ModuleList(make_norm(norm, width) for width in widths[1:])
        self.last = nn.Linear(widths[-1], outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, offsets, columns):
        edges = Edges(offsets, columns)
        h = x
        for layer, norm in zip(self.layers, self.norms):
            h = functional.elu_(norm(layer(self.dropout(h), edges)))
        # The logits may be overwritten: no gradient needs the product's result.
        return edges.convolve(self.last(self.dropout(h)), spare=True)
