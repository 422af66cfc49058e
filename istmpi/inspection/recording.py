"""Records the operations of a forward pass as PyTorch computes them: products, normalisations and
sums."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import or_
from typing import Any

import torch

# PyTorch 2.7 does not import it by itself.
import torch.backends.opt_einsum
from torch import nn

from istmpi.inspection.operations import (
    ADDITIONS,
    KEEPING,
    MOVING,
    NORMALISATIONS,
    Product,
    Summands,
    find_products,
    find_sum,
)
from istmpi.network.scaling import (
    Call,
    Calls,
    Provenance,
    identify_storage,
    shape_alone,
    tensors_in,
)
from istmpi.network.trials import Watching


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
        self.network = network
        self._parameters = dict(network.named_parameters())
        self._known = Provenance()
        self._modules = [""]
        self._calls = Calls(network, self._modules)
        self._alive: list[torch.Tensor] = []
        """The results of operations, kept so that no other tensor takes their memory and is
        mistaken for them."""
        # The next three are keyed by storage. A set of products is an integer with a bit for each:
        # a union of sets is then one operation, also for networks of thousands of products.
        self._made_by: dict[int, int] = {}
        """The products whose sum each storage is."""
        self._behind: dict[int, int] = {}
        """The products from which each storage is computed."""
        self._weights: dict[int, frozenset[int]] = {}
        """The softmaxes from which each storage has its weights."""
        self._inputs_behind: dict[int, int] = {}
        """The products from which each product's input is computed."""
        self._constant = 0
        """The products that read parameters alone."""
        self._classes = {name: type(module) for name, module in network.named_modules()}

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
        # A record outlives its pass, and must not keep the memory of activations.
        self._known.clear()
        self._alive.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        made = list(tensors_in(outputs))
        # An operation such as ones_like reads no values, so its result is a constant.
        used: list[torch.Tensor] = []
        if not shape_alone(name):
            used = list(tensors_in([*args, *kwargs.values()]))
        for tensor in used:
            self.readers.setdefault(identify_storage(tensor), set()).add(self._modules[-1])
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
        makers = [self._made_by.get(identify_storage(tensor), 0) for tensor in used]
        before = behind = _union(self._behind.get(identify_storage(tensor), 0) for tensor in used)
        layers = 0
        for product in find_products(name, args, made, self._known):
            number = len(self.products)
            if product.weight in self._known:
                layers |= 1 << number
                behind |= 1 << number
                self._inputs_behind[number] = before
                # An embedding of positions reads numbers that no input changes.
                if not product.inner and product.x in self._known:
                    self._constant |= 1 << number
            self.products.append(self._record(product))
        # Additions show which layers write to one residual stream.
        if name in ADDITIONS and len(makers) > 1:
            self._add(makers[0], layers or _union(makers[1:]))
        for tensor in made:
            storage = identify_storage(tensor)
            self._made_by[storage] = layers or self._made_by.get(storage, 0) | _union(makers)
            self._behind[storage] = self._behind.get(storage, 0) | behind
        if name in NORMALISATIONS:
            module = self._modules[-1]
            sizes = (made[0].numel(),)
            kind = self._classes[module].__name__
            self.products.append(Record(module, kind, parameter="", sizes=sizes))

    def _record(self, product: Product) -> Record:
        x = product.x
        weight = product.weight
        module = self._modules[-1]
        parameter = ""
        axis = None
        of_input = False
        gradients = 0
        if product.inner:
            gradients = x.requires_grad + weight.requires_grad
        if weight in self._known:
            parameter, _, _ = self._known.parameters([weight]).partition(",")
            axis = self._axis(weight, product.dimension, parameter)
            of_input = bool(product.inner) and not x.requires_grad and x not in self._known
        return Record(
            module=module,
            kind=self._classes[module].__name__,
            parameter=parameter,
            sizes=(product.rows, product.inner, product.columns),
            axis=axis,
            gradients=gradients,
            of_input=of_input,
        )

    def _add(self, left: int, right: int) -> None:
        """Note which products an addition joins. ``left``, ``right``: bit masks of the products
        that made the summands.

        Recurrences are left out, and so are embeddings of positions that several layers add.
        """
        for first, second in ((left, right), (right, left)):
            makers = {self.products[number].parameter for number in _bits(second)}
            for later in _bits(second):
                module = self.products[later].module
                # A recurrent layer adds outputs of its own products in every step.
                is_recurrent = issubclass(self._classes[module], nn.RNNBase | nn.RNNCellBase)
                within = module if is_recurrent else None
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
        # Only a view of the whole weight has the weight's axes.
        if parameter is None or view.numel() != parameter.numel():
            return None
        steps = [prod(parameter.shape[axis + 1 :]) for axis in range(parameter.ndim)]
        # A view keeps the steps of its parameter, also if it is transposed or divided.
        largest = max((step for step in steps if step <= view.stride(dimension)), default=None)
        axes = [axis for axis, step in enumerate(steps) if step == largest]
        # An axis of length 1 has the same step as the next axis.
        for axis in axes:
            if parameter.shape[axis] == view.shape[dimension]:
                return axis
        return axes[0] if axes else None

    def _note_sum(
        self,
        name: str,
        args: tuple[Any, ...],
        made: Sequence[torch.Tensor],
        used: Sequence[torch.Tensor],
    ) -> None:
        weights: frozenset[int] = frozenset()
        for tensor in used:
            weights |= self._weights.get(identify_storage(tensor), frozenset())
        # Tensors that are not strided belong to sums over the neighbours of a node.
        is_strided = all(tensor.layout == torch.strided for tensor in used)
        summands = find_sum(name, args) if is_strided else None
        if name == "_softmax":
            softmax = len(self.sums)
            self._append_sum(name, Summands((), args[0].shape[args[1]]))
            weights = frozenset({softmax})
        elif not is_strided:
            weights = frozenset()
        elif summands:
            # The initial values of a bilinear product depend on its first input alone, as in
            # PyTorch.
            fan = args[0].shape[-1] if name == "_trilinear" else 0
            self._append_sum(name, summands, fan, weights)
            weights = frozenset()
        # A view of an operand is still the operand.
        elif made and used and identify_storage(made[0]) != identify_storage(used[0]):
            if name not in MOVING:
                self.kept_apart.update(self._known.parameters(used).split(","))
            if name not in KEEPING:
                weights = frozenset()
        self._weights.update((identify_storage(tensor), weights) for tensor in made)

    def _append_sum(
        self,
        name: str,
        summands: Summands,
        fan: int = 0,
        weighted_by: frozenset[int] = frozenset(),
    ) -> None:
        self.sums.append(
            Sum(
                module=self._modules[-1],
                operation=name,
                parameter=self._known.parameters(summands.operands),
                call=self._calls.current,
                turn=self._calls.turn,
                inner=summands.inner,
                fan=fan,
                weighted_by=weighted_by,
            )
        )


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
    # Any, because torch's annotations call these switches properties; they are bool.
    backends: Any = torch.backends
    mkldnn = backends.mkldnn.enabled
    cudnn = backends.cudnn.enabled
    fast_attention = backends.mha.get_fastpath_enabled()
    # With opt_einsum the lengths choose the order, so few units would show other sums than many.
    reordered = backends.opt_einsum.enabled
    if any(isinstance(module, nn.RNNBase) for module in network.modules()):
        backends.mkldnn.enabled = False
        backends.cudnn.enabled = False
    backends.mha.set_fastpath_enabled(False)
    backends.opt_einsum.enabled = False
    try:
        yield
    finally:
        backends.mkldnn.enabled = mkldnn
        backends.cudnn.enabled = cudnn
        backends.mha.set_fastpath_enabled(fast_attention)
        backends.opt_einsum.enabled = reordered
