"""A network for sparse rows: few of very many features, and any number of very many labels.

It has the form of the paper's extreme classification (arXiv 1910.02120, Amazon-670k): a bag of features, hidden layers,
all labels.
"""

from torch import nn
from torch.nn import functional

from istmpi.models.linear import LabelBlocks

NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": None}


class XC(nn.Module):
    """Each feature has a vector; a row is the sum of its features' vectors, weighted by their values.

    ``features``: columns of a row. ``outputs``: number of labels. ``hidden``: widths of the hidden layers; the
    first is the length of the vectors. ``norm``: normalisation of hidden layers before the ReLU: batch, layer or
    none. ``dropout``: fraction of the hidden units that a step drops. ``label_block``: labels whose logits are in
    memory at a time in training; 0: all.
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
        self.bias = nn.Parameter(self.bag.weight.new_zeros(first))
        self.hidden = nn.ModuleList(nn.Linear(before, width) for before, width in zip(hidden, others))
        made = NORMS[norm]
        self.norms = nn.ModuleList(made(width) if made else nn.Identity() for width in hidden)
        self.dropout = nn.Dropout(dropout)
        self.output = LabelBlocks(hidden[-1], outputs, label_block)

    def forward(self, columns, offsets, values):
        """Logits ``[b, outputs]`` of rows in the form of `torch.nn.EmbeddingBag`.

        Row i has the ``values`` of features ``columns`` from ``offsets[i]`` on.
        """
        x = self.bag(columns, offsets, values) + self.bias
        for number, norm in enumerate(self.norms):
            if number:
                x = self.hidden[number - 1](x)
            x = self.dropout(functional.relu(norm(x)))
        return self.output(x)
