"""The operations of a forward pass as PyTorch computes them: products with their sizes, and normalisations."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import or_
from typing import Any

import torch
from torch import nn

from istmpi.engine.axes import Pattern
from istmpi.models.operators import Operator
from istmpi.models.scaling import modules_noted, storage_of, tensors_in
from istmpi.models.trials import Watching

NORMALISATIONS = {
    "native_batch_norm",
    "_native_batch_norm_legit",
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
}

ADDITIONS = {"add", "add_", "sub", "sub_", "rsub", "lerp", "lerp_", "addcmul", "addcmul_", "addmm", "baddbmm"}
"""Operations that add their first tensor and the result of the others."""


@dataclass(frozen=True)
class Record:
    module: str
    kind: str
    parameter: str
    normalises: bool
    sizes: tuple[int, ...]
    """Rows, inner and columns for all examples; a normalisation's numbers."""
    axis: int | None = None
    gradients: int = 0
    of_input: bool = False

    @property
    def what(self) -> tuple[object, ...]:
        """The facts that agree in networks that differ in their widths."""
        return self.module, self.kind, self.parameter, self.normalises, len(self.sizes)

    def operator(self, shape: Pattern, examples: int) -> Operator:
        facts = self.module, self.kind, self.parameter, self.axis, self.gradients, self.of_input
        return Operator(shape, *facts, examples=examples)


@dataclass(frozen=True)
class _Product:
    """Two factors, the second one the weight if there is one, and its dimension that makes the columns."""

    x: torch.Tensor
    weight: torch.Tensor
    dimension: int
    rows: int
    inner: int
    columns: int


class Recorder(Watching):
    """Sees every operation on a network's tensors while it is entered."""

    def __init__(self, network: nn.Module, *inputs: torch.Tensor):
        super().__init__()
        self.records: list[Record] = []
        self.joins: set[tuple[int, int]] = set()
        """Products, by their records' numbers, whose outputs are added, and the second follows from the first."""
        self._parameters = dict(network.named_parameters())
        self._parameter_of = {storage_of(parameter): name for name, parameter in self._parameters.items()}
        self._of_examples = {storage_of(x) for x in inputs}
        self._alive: list[torch.Tensor] = [*inputs]
        # Sets of records as the bits of a number.
        self._made_by: dict[int, int] = {}
        self._behind: dict[int, int] = {}
        self._inputs_behind: dict[int, int] = {}
        self._constant = 0
        self._modules = [""]
        self._kinds = {name: type(module).__name__ for name, module in network.named_modules()}
        kinds = nn.RNNBase, nn.RNNCellBase
        self._recurrent = {name for name, module in network.named_modules() if isinstance(module, kinds)}

    @contextmanager
    def following(self, network: nn.Module) -> Iterator[None]:
        with modules_noted(network, self._modules):
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        made, used = list(tensors_in(outputs)), list(tensors_in([*args, *(kwargs or {}).values()]))
        if name.endswith("_like") or name.startswith("new_"):
            used = []  # their values do not count
        makers = [self._made_by.get(storage_of(tensor), 0) for tensor in used]
        before = behind = _union(self._behind.get(storage_of(tensor), 0) for tensor in used)
        layers = 0
        for product in self._products(name, args, made):
            number = len(self.records)
            self.records.append(self._record(product))
            if self._is_weight(product.weight):
                layers |= 1 << number
                self._inputs_behind[number] = before
                if not product.inner and self._is_weight(product.x):
                    self._constant |= 1 << number
                behind |= 1 << number
        if name in ADDITIONS and len(makers) > 1:
            self._add(makers[0], layers or _union(makers[1:]))
        for tensor in made:
            storage = storage_of(tensor)
            self._made_by[storage] = layers or self._made_by.get(storage, 0) | _union(makers)
            self._behind[storage] = self._behind.get(storage, 0) | behind
        if name in NORMALISATIONS:
            self.records.append(Record(*self._module, "", True, (made[0].numel(),)))
        self._alive += made
        of_examples = any(storage_of(tensor) in self._of_examples for tensor in used)
        parameter = next(filter(None, (self._parameter_of.get(storage_of(tensor)) for tensor in used)), "")
        for tensor in made:
            if of_examples:
                self._of_examples.add(storage_of(tensor))
            elif parameter:
                self._parameter_of.setdefault(storage_of(tensor), parameter)
        return outputs

    @property
    def _module(self) -> tuple[str, str]:
        return self._modules[-1], self._kinds[self._modules[-1]]

    def _products(self, name: str, args: tuple[Any, ...], made: list[torch.Tensor]) -> Iterator[_Product]:
        if any(tensor.layout != torch.strided for tensor in tensors_in([*args])):
            return  # sums over the neighbours of a node are counted in tables that are written down
        if name in ("mm", "bmm", "addmm", "baddbmm", "_grouped_mm"):
            a, b = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
            matrices, (rows, inner), columns = prod(a.shape[:-2]), a.shape[-2:], b.shape[-1]
            if self._is_weight(a) and not self._is_weight(b):
                yield _Product(b, a, a.ndim - 2, matrices * columns, inner, rows)
            else:
                yield _Product(a, b, b.ndim - 1, matrices * rows, inner, columns)
        elif name == "convolution":
            x, weight, transposed = args[0], args[1], args[6]
            kernel = prod(weight.shape[2:])
            if transposed:
                positions = len(x) * prod(x.shape[2:])
                yield _Product(x, weight, 1, positions, weight.shape[0], weight.shape[1] * kernel)
            else:
                positions = len(x) * prod(made[0].shape[2:])
                yield _Product(x, weight, 0, positions, weight.shape[1] * kernel, weight.shape[0])
        elif name == "_scaled_dot_product_flash_attention_for_cpu":
            # The scores are never all in memory: their product counts as one that makes as much as it reads.
            query, key, value = args[:3]
            rows, keys = prod(query.shape[:-1]), key.shape[-2]
            yield _Product(query, key, 0, rows, keys, query.shape[-1])
            yield _Product(query, value, 0, rows, keys, value.shape[-1])
        elif name in ("embedding", "_embedding_bag"):
            table, columns = args[0], args[0].shape[1]
            yield _Product(args[1], table, 1, made[0].numel() // columns, 0, columns)

    def _record(self, product: _Product) -> Record:
        needed = sum(tensor.requires_grad for tensor in (product.x, product.weight)) if product.inner else 0
        sizes = product.rows, product.inner, product.columns
        if not self._is_weight(product.weight):
            return Record(*self._module, "", False, sizes, None, needed)
        name = self._parameter_of.get(storage_of(product.weight), "")
        of_input = bool(product.inner) and not product.x.requires_grad and not self._is_weight(product.x)
        return Record(*self._module, name, False, sizes, self._axis(product, name), needed, of_input)

    def _add(self, left: int, right: int) -> None:
        """Note which layers the addition of two summands joins, each given as the set of layers that made it.

        Recurrences, and tables of places that several layers add, are left out.
        """
        for first, second in ((left, right), (right, left)):
            makers = {self.records[number].parameter for number in _bits(second)}
            for later in _bits(second):
                module = self.records[later].module
                within = module if module in self._recurrent else None
                for number in _bits(first & self._inputs_behind[later] & ~self._constant):
                    if self.records[number].parameter not in makers and self.records[number].module != within:
                        self.joins.add((number, later))

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        return storage_of(tensor) not in self._of_examples

    def _axis(self, product: _Product, name: str) -> int | None:
        parameter = self._parameters.get(name)
        view, dimension = product.weight, product.dimension
        if parameter is None or view.numel() != parameter.numel():
            return None
        steps = [prod(parameter.shape[axis + 1 :]) for axis in range(parameter.ndim)]
        largest = max((step for step in steps if step <= view.stride(dimension)), default=None)
        axes = [axis for axis, step in enumerate(steps) if step == largest]
        # Axes of one position have the step of the next one.
        return next((axis for axis in axes if parameter.shape[axis] == view.shape[dimension]), *axes[:1] or [None])


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _bits(numbers: int) -> Iterator[int]:
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers ^= lowest
