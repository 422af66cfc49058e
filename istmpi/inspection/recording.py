"""Records the operations of a forward pass as PyTorch computes them: products, normalisations and
sums."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from math import inf, prod
from operator import or_
from typing import Any

import torch
from torch import nn

from istmpi.network.scaling import (
    Call,
    Calls,
    Provenance,
    reduced,
    shape_alone,
    storage_of,
    tensors_in,
)
from istmpi.network.trials import Watching

NORMALISATIONS = {
    "native_batch_norm",
    "_native_batch_norm_legit",
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
}
ADDITIONS = {
    "add",
    "add_",
    "sub",
    "sub_",
    "rsub",
    "lerp",
    "lerp_",
    "addcmul",
    "addcmul_",
    "addmm",
    "baddbmm",
}
"""Operations that add something to their first tensor."""
MATRIX = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "vdot": 0,
    "_grouped_mm": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addmv": 1,
}
"""The argument number of a product's first factor, over whose last axis the product sums."""
VECTORS = {"mv", "dot", "vdot", "addmv"}
KEEPING = {
    "mul",
    "mul_",
    "div",
    "div_",
    "clone",
    "_to_copy",
    "where",
    "masked_fill",
    "native_dropout",
    "copy_",
}
"""Operations whose result still counts as weights if their operand is the weights of a softmax."""
MOVING = {"clone", "_to_copy", "cat", "stack", "copy_"}


@dataclass(frozen=True)
class Record:
    """A product or a normalisation."""

    module: str
    kind: str
    parameter: str
    sizes: tuple[int, ...] = field(compare=False)
    """Rows, inner length and columns of a product, or a normalisation's number of values, for all
    examples together."""
    axis: int | None = field(default=None, compare=False)
    gradients: int = field(default=0, compare=False)
    of_input: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Sum:
    module: str
    operation: str
    parameter: str
    call: Call | None
    """The call in the network's code, if the sum's factor can be applied there; otherwise None."""
    turn: int = field(compare=False)
    """The number of ``call`` among all calls."""
    inner: int = field(compare=False)
    """The number of values that each result adds up."""
    fan: int = field(compare=False)
    """The number of inputs that sets the initial values, if it is not ``inner``; otherwise 0."""
    weighted_by: frozenset[int] = field(compare=False)
    """The softmaxes that made this sum's weights, by their numbers in `Recorder.sums`."""


class Recorder(Watching):
    """Records a network's products, normalisations and sums within its context ``following``."""

    def __init__(self, network: nn.Module, training: bool):
        super().__init__()
        self.training = training
        self.products: list[Record] = []
        """The products and normalisations, in order."""
        self.sums: list[Sum] = []
        """The sums and softmaxes, in order."""
        self.joins: set[tuple[int, int]] = set()
        """Pairs of products, by their numbers, whose outputs are added. The second is computed from
        the first."""
        self.kept_apart: set[str] = set()
        """Parameters that are also used outside sums, so that no factor can multiply them."""
        self.readers: dict[int, set[str]] = {}
        """The modules in which each storage is read, by the storage's number."""
        self.network, self._parameters = network, dict(network.named_parameters())
        self._known, self._modules = Provenance(), [""]
        self._calls = Calls(network, self._modules)
        self._alive: list[torch.Tensor] = []
        """The results of operations, kept so that no other tensor takes their memory and is
        mistaken for them."""
        # These are keyed by storage. A set of products is an integer with a bit for each.
        self._made_by: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        self._weights: dict[int, frozenset[int]] = {}
        self._inputs_behind: dict[int, int] = {}
        self._constant = 0
        self._classes = {name: type(module).__name__ for name, module in network.named_modules()}
        kinds = nn.RNNBase, nn.RNNCellBase
        self._recurrent = {
            name for name, module in network.named_modules() if isinstance(module, kinds)
        }

    @property
    def records(self) -> Sequence[Any]:
        """`products` in training, otherwise `sums`. Networks that differ only in widths have equal
        records."""
        return self.products if self.training else self.sums

    @contextmanager
    def following(self) -> Iterator[None]:
        self._known.begin(self.network)
        with _unfused(self.network), self._calls.entered(), self:
            yield
        self._known.clear()
        self._alive.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        outputs, name = func(*args, **kwargs), func.overloadpacket.__name__
        made = list(tensors_in(outputs))
        used = [] if shape_alone(name) else list(tensors_in([*args, *kwargs.values()]))
        for tensor in used:
            self.readers.setdefault(storage_of(tensor), set()).add(self._modules[-1])
        self._note_products(name, args, made, used)
        self._note_sum(name, args, made, used)
        self._known.follow(name, used, made)
        self._alive += made
        return outputs

    def _note_products(
        self,
        name: str,
        args: tuple[Any, ...],
        made: Sequence[torch.Tensor],
        used: Sequence[torch.Tensor],
    ) -> None:
        makers = [self._made_by.get(storage_of(tensor), 0) for tensor in used]
        before = behind = _union(self._behind.get(storage_of(tensor), 0) for tensor in used)
        layers = 0
        for x, weight, dimension, *sizes in _products(name, args, made, self._known):
            number, inner = len(self.products), sizes[1]
            needed = sum(tensor.requires_grad for tensor in (x, weight)) if inner else 0
            facts: tuple[Any, ...] = "", tuple(sizes), None, needed
            if weight in self._known:
                parameter = self._known.parameters([weight]).partition(",")[0]
                of_input = bool(inner) and not x.requires_grad and x not in self._known
                facts = (
                    parameter,
                    tuple(sizes),
                    self._axis(weight, dimension, parameter),
                    needed,
                    of_input,
                )
                layers |= 1 << number
                self._inputs_behind[number] = before
                if not inner and x in self._known:
                    self._constant |= 1 << number
                behind |= 1 << number
            self.products.append(Record(*self._module, *facts))
        if name in ADDITIONS and len(makers) > 1:
            self._add(makers[0], layers or _union(makers[1:]))
        for tensor in made:
            storage = storage_of(tensor)
            self._made_by[storage] = layers or self._made_by.get(storage, 0) | _union(makers)
            self._behind[storage] = self._behind.get(storage, 0) | behind
        if name in NORMALISATIONS:
            self.products.append(Record(*self._module, "", (made[0].numel(),)))

    @property
    def _module(self) -> tuple[str, str]:
        return self._modules[-1], self._classes[self._modules[-1]]

    def _add(self, left: int, right: int) -> None:
        """Note which products an addition joins. ``left``, ``right``: bit masks of the products
        that made the summands.

        Recurrences are left out, and so are embeddings of positions that several layers add.
        """
        for first, second in ((left, right), (right, left)):
            makers = {self.products[number].parameter for number in _bits(second)}
            for later in _bits(second):
                module = self.products[later].module
                within = module if module in self._recurrent else None
                for number in _bits(first & self._inputs_behind[later] & ~self._constant):
                    if (
                        self.products[number].parameter not in makers
                        and self.products[number].module != within
                    ):
                        self.joins.add((number, later))

    def _axis(self, view: torch.Tensor, dimension: int, name: str) -> int | None:
        """Return the axis of the parameter ``name`` that is the axis ``dimension`` of its ``view``,
        or None."""
        parameter = self._parameters.get(name)
        if parameter is None or view.numel() != parameter.numel():
            return None
        steps = [prod(parameter.shape[axis + 1 :]) for axis in range(parameter.ndim)]
        largest = max((step for step in steps if step <= view.stride(dimension)), default=None)
        axes = [axis for axis, step in enumerate(steps) if step == largest]
        # An axis of length 1 has the same step as the next axis.
        return next(
            (axis for axis in axes if parameter.shape[axis] == view.shape[dimension]),
            *axes[:1] or [None],
        )

    def _note_sum(
        self,
        name: str,
        args: tuple[Any, ...],
        made: Sequence[torch.Tensor],
        used: Sequence[torch.Tensor],
    ) -> None:
        facts: tuple[Any, ...] | None = None
        weights = frozenset().union(*(self._weights.get(storage_of(tensor), ()) for tensor in used))
        fresh = made and used and storage_of(made[0]) != storage_of(used[0])
        if name == "_softmax":
            facts, weights = (
                ("", args[0].shape[args[1]], 0, frozenset()),
                frozenset({len(self.sums)}),
            )
        elif any(tensor.layout != torch.strided for tensor in used):
            weights = frozenset()  # sums over the neighbours of a node
        elif taken := _sum_of(name, args):
            # The initial values of a bilinear product depend on its first input alone, as in
            # PyTorch.
            fan = args[0].shape[-1] if name == "_trilinear" else 0
            facts, weights = (self._known.parameters(taken[0]), taken[1], fan, weights), frozenset()
        elif fresh:
            if name not in MOVING:
                self.kept_apart.update(self._known.parameters(used).split(","))
            if name not in KEEPING:
                weights = frozenset()
        if facts:
            parameter, *others = facts
            self.sums.append(
                Sum(
                    self._modules[-1],
                    name,
                    parameter,
                    self._calls.current,
                    self._calls.turn,
                    *others,
                )
            )
        self._weights.update((storage_of(tensor), weights) for tensor in made)


def _products(
    name: str, args: tuple[Any, ...], made: Sequence[torch.Tensor], provenance: Provenance
) -> Iterator[tuple[Any, ...]]:
    """Yield (factor, factor, dimension, rows, inner length, columns) for each product of an
    operation.

    The second factor is the weight, if there is one. Its axis ``dimension`` makes the columns.
    """
    if any(tensor.layout != torch.strided for tensor in tensors_in([*args])):
        return  # sums over the neighbours of a node are counted in tables that are written down
    if name in MATRIX and name not in VECTORS:
        a, b = args[MATRIX[name] :][:2]
        matrices, (rows, inner), columns = prod(a.shape[:-2]), a.shape[-2:], b.shape[-1]
        if a in provenance and b not in provenance:
            yield b, a, a.ndim - 2, matrices * columns, inner, rows
        else:
            yield a, b, b.ndim - 1, matrices * rows, inner, columns
    elif name == "convolution":
        x, weight, transposed = args[0], args[1], args[6]
        outputs, inputs = weight.shape[:2]
        kernel, places = (
            prod(weight.shape[2:]),
            len(x) * prod((x if transposed else made[0]).shape[2:]),
        )
        if transposed:
            yield x, weight, 1, places, outputs, inputs * kernel
        else:
            yield x, weight, 0, places, inputs * kernel, outputs
    elif name == "_scaled_dot_product_flash_attention_for_cpu":
        # The scores are never all in memory: their product counts as one that makes as much as it
        # reads.
        query, keys = args[0], args[1].shape[-2]
        for other in args[1:3]:
            yield query, other, 0, prod(query.shape[:-1]), keys, query.shape[-1]
    elif name in ("embedding", "_embedding_bag"):
        columns = args[0].shape[1]
        yield args[1], args[0], 1, made[0].numel() // columns, 0, columns


def _sum_of(name: str, args: Sequence[Any]) -> tuple[Sequence[Any], int] | None:
    """Return the operands and the length of the sum that an operation takes; None if it takes no
    sum."""
    x, axes = args[0] if args else None, args[1] if len(args) > 1 else None
    if name in MATRIX:
        operands = args[MATRIX[name] :][:2]
        return operands, operands[0].shape[-1]
    if name == "convolution":
        return args[:2], axes.shape[0] // args[8] if args[6] else axes.shape[1]
    if name == "_trilinear":
        shape = [1] * (x.ndim + len(args[3]))
        for factor, expanded in zip(args[:3], args[3:6]):
            sizes = iter(factor.shape)
            for axis in range(len(shape)):
                if axis not in expanded:
                    shape[axis] = max(shape[axis], next(sizes))
        return args[:3], prod(shape[axis] for axis in args[6])
    if name.startswith("_scaled_dot_product") or name in ("_cdist_forward", "_euclidean_dist"):
        return args[:2], x.shape[-1]
    if name in ("sum", "nansum", "logsumexp", "prod", "mean", "cumsum"):
        return args[:1], reduced(x, axes)[1]
    if name in ("linalg_vector_norm", "norm") and axes not in (0, inf, -inf):
        return args[:1], reduced(x, args[2] if len(args) > 2 else None)[1]
    if name == "_weight_norm_interface":
        return args[:2], x.numel() // x.shape[args[2] if len(args) > 2 else 0]
    return None


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _bits(numbers: int) -> Iterator[int]:
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers ^= lowest


@contextmanager
def _unfused(network: nn.Module) -> Iterator[None]:
    """Let PyTorch compute layers operation by operation, and the operands of an einsum from left to
    right, in this context."""
    backends = torch.backends
    mkldnn = backends.mkldnn.enabled
    cudnn = backends.cudnn.enabled
    fast_attention = backends.mha.get_fastpath_enabled()
    # With opt_einsum the lengths choose the order, so few units would show other sums than many.
    reordered = backends.opt_einsum.enabled
    if any(isinstance(module, nn.RNNBase) for module in network.modules()):
        backends.mkldnn.enabled = backends.cudnn.enabled = False
    backends.mha.set_fastpath_enabled(False)
    backends.opt_einsum.enabled = False
    try:
        yield
    finally:
        backends.mkldnn.enabled = mkldnn
        backends.cudnn.enabled = cudnn
        backends.mha.set_fastpath_enabled(fast_attention)
        backends.opt_einsum.enabled = reordered
