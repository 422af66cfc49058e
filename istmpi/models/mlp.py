"""A multilayer perceptron of any depth and widths.

The paper's form (arXiv 1910.02120, section 4) is the default: Linear without bias, batch
normalisation, ReLU; and a normalisation without scale and shift on the logits.
"""

from collections import OrderedDict

from torch import nn

from istmpi.names import ACTIVATIONS
from istmpi.network.linear import Linear
from istmpi.network.norms import BatchNorm


class MLP(nn.Sequential):
    DEALT = ("hidden",)

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: tuple[int, ...] = (512,),
        norm: str = "batch",
        activation: str = "relu",
        dropout: float = 0.0,
        bias: bool = False,
        output_norm: bool = True,
    ):
        stages: OrderedDict[str, nn.Module] = OrderedDict()
        before = features
        for number, width in enumerate(hidden, 1):
            layers: OrderedDict[str, nn.Module] = OrderedDict()
            layers["linear"] = Linear(before, width, bias=bias)
            if norm == "batch":
                layers["norm"] = BatchNorm(width, affine=True)
            elif norm != "none":
                layers["norm"] = nn.LayerNorm(width)
            layers["activation"] = getattr(nn, ACTIVATIONS[activation])()
            if dropout:
                layers["dropout"] = nn.Dropout(dropout)
            stages[f"hidden{number}"] = nn.Sequential(layers)
            before = width
        last: OrderedDict[str, nn.Module] = OrderedDict()
        last["linear"] = Linear(before, outputs, bias=bias)
        # In the paper the logits are normalised, too.
        if output_norm:
            last["norm"] = BatchNorm(outputs, affine=False)
        stages["labels"] = nn.Sequential(last)
        super().__init__(stages)
