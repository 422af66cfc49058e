"""A network for sparse rows. A row has few of very many features, and any number of very many
labels.

The layers are those of arXiv 1910.02120 for Amazon-670k.
"""

from torch import nn
from torch.nn import functional

from istmpi.network.linear import LabelBlocks

NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": None}


class XC(nn.Module):
    """A sum of the vectors of a row's features, weighted by their values, then hidden layers and a
    layer over labels.

    ``features``: columns of a row. ``outputs``: number of labels. ``hidden``: widths of the hidden
    layers; the first is the length of the vectors. ``norm``: normalisation of hidden layers before
    the ReLU: batch, layer or none. ``dropout``: fraction of the hidden units that a step drops.
    ``label_block``: labels whose logits are in memory at a time in training; 0: all.
    """

    DEALT = ("hidden",)

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: tuple[int, ...] = (256,),
        norm: str = "none",
        dropout: float = 0.0,
        label_block: int = 2**16,
    ):
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm = {norm!r} must be {', '.join(NORMS)}")
        if not hidden:
            raise ValueError("hidden = [] needs at least one number")
        if label_block < 0:
            raise ValueError(f"label_block = {label_block} must be at least 0")
        first, *others = hidden
        self.bag = nn.EmbeddingBag(features, first, mode="sum")
        # A bag has no bias of its own.
        self.bias = nn.Parameter(self.bag.weight.new_zeros(first))
        self.hidden = nn.ModuleList(
            nn.Linear(before, width) for before, width in zip(hidden, others)
        )
        norm_class = NORMS[norm] or nn.Identity
        self.norms = nn.ModuleList(norm_class(width) for width in hidden)
        self.dropout = nn.Dropout(dropout)
        self.output = LabelBlocks(hidden[-1], outputs, label_block)

    def forward(self, columns, offsets, values):
        """Return logits ``[b, outputs]`` of rows in the form of `torch.nn.EmbeddingBag`.

        Row i starts at ``offsets[i]`` in ``columns``, the numbers of features, and in their
        ``values``.
        """
        x = self.bag(columns, offsets, values) + self.bias
        for number, norm in enumerate(self.norms):
            # The first hidden layer is the bag.
            if number:
                x = self.hidden[number - 1](x)
            x = self.dropout(functional.relu(norm(x)))
        return self.output(x)
