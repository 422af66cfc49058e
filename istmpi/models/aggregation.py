"""Sums over the neighbours of a graph's nodes, as sparse products with the matrix of its edges.

Results are changed in place where no gradient needs their old values.
"""

from __future__ import annotations

from copy import copy
from warnings import catch_warnings, simplefilter

import torch
from torch import nn
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

FEW = 0.1
"""The largest share of non-zero features at which a training step multiplies only these
features."""

SLOPE = 0.2
"""The slope of the leaky ReLU of attention below 0, as in the paper on GAT."""


class Edges:
    """The edges of a batch of nodes. Node i has the neighbours ``columns[offsets[i] : offsets[i +
    1]]``, ascending."""

    def __init__(self, offsets: torch.Tensor, columns: torch.Tensor):
        self.degrees = offsets.diff()
        self._nodes = len(self.degrees)
        rows = torch.repeat_interleave(
            torch.arange(self._nodes, device=offsets.device), self.degrees
        )
        self._places = torch.stack([rows, columns])

    def total(self, h: torch.Tensor) -> torch.Tensor:
        """Sum ``h`` ``[n, width]`` over each node's neighbours. Under autocast, the sum is in
        float32."""
        if torch.is_autocast_enabled(h.device.type):
            with torch.autocast(h.device.type, enabled=False):
                return self.total(h.float())
        ones = h.new_ones(self._places.shape[1])
        matrix = torch.sparse_coo_tensor(
            self._places,
            ones,
            (self._nodes, self._nodes),
            is_coalesced=True,
            check_invariants=False,
        )
        # torch.sparse.mm would first fill a result with zeros.
        return torch.sparse.addmm(h.new_zeros(1), matrix, h, beta=0)

    def mean(self, h: torch.Tensor) -> torch.Tensor:
        """Return the mean of ``h`` ``[n, width]`` over each node's neighbours; 0 without any."""
        return self.total(h).div_(self.degrees.clamp(min=1).to(h.dtype)[:, None])

    def convolve(self, h: torch.Tensor, spare: bool = False) -> torch.Tensor:
        """Return ``D^-1/2 (A + I) D^-1/2 h``, the convolution of Kipf and Welling. ``spare``: ``h``
        is overwritten."""
        # Each node is also its own neighbour.
        root = (self.degrees + 1).to(h.dtype).rsqrt()[:, None]
        h = h.mul_(root) if spare else h * root
        return self.total(h).add_(h).mul_(root)

    def attend(
        self, values: torch.Tensor, to_self: torch.Tensor, to_others: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted mean of ``values`` ``[n, heads, units]`` over each node i and its
        neighbours.

        Weights: softmax over these nodes j of ``leaky_relu(to_self[i] + to_others[j])``, both
        scores ``[n, heads]``.
        """
        rows, columns = self._places
        heads = to_self.shape[1]
        own_scores = functional.leaky_relu(to_self + to_others, SLOPE)
        scores = functional.leaky_relu(to_self[rows] + to_others[columns], SLOPE)
        # Without the largest score, an exponential may be infinite.
        index = rows[:, None].expand(-1, heads)
        largest = own_scores.detach().scatter_reduce(0, index, scores.detach(), "amax")
        own_weights = (own_scores - largest).exp()
        weights = (scores - largest[rows]).exp()
        total = own_weights.index_add(0, rows, weights)
        summed = (own_weights[:, :, None] * values).index_add(
            0, rows, weights[:, :, None] * values[columns]
        )
        return summed / total[:, :, None]


class Bias(nn.Module):
    """Adds a learnt number to each unit, in place; zero at first."""

    def __init__(self, units: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(units))

    def forward(self, h):
        return h.add_(self.bias)


NORMS = ("layer", "none")


def make_norm(name: str, units: int) -> nn.Module:
    """Return a layer normalisation without parameters, or the identity. Raises ValueError unless
    ``name`` is in `NORMS`."""
    if name not in NORMS:
        raise ValueError(f"norm = {name!r} must be {' or '.join(NORMS)}")
    if name == "layer":
        return nn.LayerNorm(units, elementwise_affine=False)
    return nn.Identity()


class Bags:
    """Features ``[n, features]`` with few non-zero values. Only these are stored, ordered by rows
    and by columns."""

    def __init__(self, features: torch.Tensor):
        rows, columns = features.nonzero().unbind(1)
        count, width = features.shape
        self._shape = features.shape
        self._values = features[rows, columns]
        self._order = columns.argsort(stable=True)
        self._by_rows = (_starts(rows, count), columns)
        self._by_columns = (_starts(columns, width), rows[self._order])

    def drop(self, dropout: nn.Dropout) -> Bags:
        bags = copy(self)
        bags._values = dropout(self._values)
        return bags

    @property
    def matrix(self) -> torch.Tensor:
        return torch.sparse_csr_tensor(
            *self._by_rows, self._values, self._shape, check_invariants=False
        )

    @property
    def transposed(self) -> torch.Tensor:
        return torch.sparse_csr_tensor(
            *self._by_columns, self._values[self._order], self._shape[::-1], check_invariants=False
        )


def _starts(numbers: torch.Tensor, count: int) -> torch.Tensor:
    """Return where each of ``count`` numbers starts in sorted ``numbers``, and their end."""
    return functional.pad(torch.bincount(numbers, minlength=count).cumsum(0), (1, 0))


with catch_warnings():
    # torch warns once per process: that its sparse rows are in beta, and that it checks no sparse
    # matrix, which a product on a GPU makes of one that was to be unchecked.
    simplefilter("ignore")
    torch.zeros(1, 1).to_sparse_csr()
    torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), (1, 1))


class _Product(torch.autograd.Function):
    """``bags @ weight.T``. `Bags` are sorted by rows and by columns already; torch would sort again
    in each step."""

    @staticmethod
    def forward(context, weight, bags):
        context.bags = bags
        return bags.matrix @ weight.t()

    @staticmethod
    def backward(context, gradient):
        return (context.bags.transposed @ gradient).t(), None


_BAGS = WeakTensorKeyDictionary()
"""The version of each tensor of features, and its `Bags`, or None if the tensor is not sparse
enough."""


def drop(features: torch.Tensor, dropout: nn.Dropout) -> torch.Tensor | Bags:
    """Apply ``dropout``. In training, float32 or float64 ``features`` with few non-zero values
    become `Bags`."""
    if not dropout.training:
        return dropout(features)
    version, bags = _BAGS.get(features, (None, None))
    # Features that were changed in place are read again.
    if version != features._version:
        bags = None
        # Other types lack sparse products on some devices.
        if features.dtype in (torch.float32, torch.float64):
            if torch.count_nonzero(features) <= FEW * features.numel():
                bags = Bags(features)
        _BAGS[features] = (features._version, bags)
    if bags is None:
        return dropout(features)
    return bags.drop(dropout)


def multiply(product: nn.Linear, h: torch.Tensor | Bags) -> torch.Tensor:
    """Apply a layer to features ``[n, features]``, or to the non-zero ones in `Bags`."""
    if not isinstance(h, Bags):
        return product(h)
    # Sparse products have no bfloat16.
    with torch.autocast(product.weight.device.type, enabled=False):
        total = _Product.apply(product.weight, h)
    if product.bias is None:
        return total
    return total.add_(product.bias)
