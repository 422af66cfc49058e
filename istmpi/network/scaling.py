"""Multiplies sums over units by factors in the calls of the network's code: an operand of the call,
or its result.

`istmpi.inspection.uses` finds the sums. Most are products with a parameter that has no other use.
Such a parameter is multiplied itself. Other calls are recognised by module, function, parameters
and lengths, before autograd sees them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import inf, log, prod
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from istmpi.network.joined import multiply_along
from istmpi.network.leaves import Elsewhere
from istmpi.network.trials import hooked

OUTPUT = -1
"""The number that stands for the result in place of an operand."""
PRODUCTS = {
    "linear": 0,
    "matmul": 0,
    "__matmul__": 0,
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "inner": 0,
    "addmm": 1,
    "baddbmm": 1,
    "scaled_dot_product_attention": 0,
}
"""The index of each function's operand whose last axis is summed over."""
_CONVOLUTION = re.compile(r"conv(?:_transpose)?(\d)d")
CONVOLUTIONS = {
    f"conv{transposed}{axes}d" for transposed in ("", "_transpose") for axes in (1, 2, 3)
}
SUMS = ("sum", "nansum", "logsumexp", "mean")
NORMS = ("norm", "vector_norm", "linalg_vector_norm")
DISTANCES = {"cdist": 2, "pairwise_distance": 2, "normalize": 1}
"""Functions that take a norm over an axis, with the argument number of the norm's order."""


@dataclass(frozen=True)
class Call:
    function: str
    operand: int
    """The operand that is multiplied, or `OUTPUT`."""
    power: float = 1.0
    """A result is multiplied by the sum's factor to this power; logsumexp adds the factor's
    logarithm instead."""
    detail: str = ""
    module: str = ""
    parameter: str = ""
    inner: int = field(default=0, compare=False)
    """The length that is summed over; 0 if it does not matter."""
    operands: Sequence[Any] = field(default=(), compare=False)

    def at(self, module: str, parameter: str) -> Call:
        return replace(self, module=module, parameter=parameter, operands=())

    @property
    def axis(self) -> int | None:
        """The axis of the operand that is summed over, counted from its end; None if it is not
        known."""
        if self.function in PRODUCTS:
            return -1
        convolution = _CONVOLUTION.fullmatch(self.function)
        return -1 - int(convolution[1]) if convolution else None

    @property
    def place(self) -> tuple[str, str, str, str]:
        return self.module, self.function, self.parameter, self.detail


def read_call(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Call | None:
    """Return the sum that a function computes; None if neither an operand nor the result can be
    multiplied."""
    operands = [*args]
    for key in ("input", "other", "mat2", "weight"):
        if key in named:
            operands.append(named[key])
    if not operands:
        return None
    if name in PRODUCTS:
        return _read_product(name, operands)
    if name in CONVOLUTIONS:
        inputs_axis = 0 if "transpose" in name else 1
        inner = operands[1].shape[inputs_axis]
        return Call(name, operand=0, inner=inner, operands=operands[:2])
    if name == "bilinear":
        inner = prod(operands[2].shape[1:])
        return Call(name, operand=0, inner=inner, operands=operands[:3])
    if name == "einsum" and isinstance(operands[0], str):
        return Call(name, operand=1, detail=operands[0], operands=operands[1:])
    if name == "_weight_norm":
        direction = operands[0]
        axis = _option(operands, 2, named, "dim", 0)
        inner = direction.numel() // direction.shape[axis]
        return Call(name, operand=OUTPUT, power=-0.5, inner=inner, operands=operands[:2])
    if name == "cosine_similarity":
        # Both norms and the product grow with the units, so its quotient needs no factor.
        return Call(name, operand=OUTPUT, power=0.0, operands=operands[:2])
    if name in SUMS and isinstance(operands[0], torch.Tensor):
        return _read_sum(name, operands[0], _option(operands, 1, named, "dim", None))
    if name == "cumsum" and isinstance(operands[0], torch.Tensor):
        return _read_sum(name, operands[0], _option(operands, 1, named, "dim", 0))
    if name in NORMS or name in DISTANCES:
        return _read_norm(name, operands, named)
    return None


def _option(
    operands: Sequence[Any], number: int, named: Mapping[str, Any], name: str, default: Any
) -> Any:
    """Return an argument that a call gives by its name or its number, or its default."""
    if name in named:
        return named[name]
    return operands[number] if len(operands) > number else default


def _read_product(name: str, operands: Sequence[Any]) -> Call | None:
    first = PRODUCTS[name]
    pair = operands[first : first + 2]
    if len(pair) < 2 or not all(isinstance(value, torch.Tensor) for value in pair):
        return None
    return Call(name, operand=first, inner=pair[0].shape[-1], operands=pair)


def _read_sum(name: str, x: torch.Tensor, axes: Any, power: float = 1.0) -> Call:
    places, length = find_summed(x, axes)
    detail = f"{x.ndim}: {places}"
    return Call(name, operand=OUTPUT, power=power, detail=detail, inner=length, operands=(x,))


def _read_norm(name: str, operands: Sequence[Any], named: Mapping[str, Any]) -> Call | None:
    """Return a norm, or a distance, whose result grows with a root of its sum."""
    summed = operands[:1]
    sign = 1
    if name in NORMS:
        order = named.get("p", _option(operands, 1, named, "ord", 2))
        if order in (None, "fro"):
            order = 2
        # A third argument is the axes; named ones count only without it.
        axes = named.get("dim") if len(operands) < 3 else operands[2]
    elif name == "normalize":
        order = _option(operands, DISTANCES[name], named, "p", 2)
        axes = _option(operands, 2, named, "dim", 1)
        # The result is divided by the norm.
        sign = -1
    else:
        order = _option(operands, DISTANCES[name], named, "p", 2)
        axes = -1
        summed = operands[:2]
    # Norms of order 0 and of infinite order add nothing up.
    if not isinstance(order, int | float) or order in (0, inf, -inf):
        return None
    return replace(_read_sum(name, operands[0], axes, sign / order), operands=summed)


def find_summed(x: torch.Tensor, axes: Any) -> tuple[list[int], int]:
    """Return the axes that a sum adds up, by default all, and the product of their lengths."""
    if not x.ndim:
        return [], 1
    if isinstance(axes, int):
        axes = [axes]
    places = sorted(axis % x.ndim for axis in axes or range(x.ndim))
    return places, prod(x.shape[place] for place in places)


class Provenance:
    """Tracks known tensors (computed from parameters and buffers alone) and the parameters that
    they come from."""

    def __init__(self) -> None:
        # The keys are storages. The tensors are kept, so that no other tensor takes their memory.
        self._known: dict[int, tuple[torch.Tensor, str]] = {}

    def begin(self, network: nn.Module) -> None:
        self._known = {identify_storage(tensor): (tensor, "") for tensor in network.buffers()}
        for name, parameter in network.named_parameters():
            if not isinstance(parameter, Elsewhere):
                self._known[identify_storage(parameter)] = (parameter, name)

    def clear(self) -> None:
        self._known.clear()

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return identify_storage(tensor) in self._known

    def parameters(self, operands: Sequence[Any]) -> str:
        """Return the names of the parameters from which known operands are computed, joined by
        commas."""
        parameters: dict[str, None] = {}
        for tensor in tensors_in(operands):
            _, names = self._known.get(identify_storage(tensor), (None, ""))
            if names:
                parameters[names] = None
        return ",".join(parameters)

    def follow(self, name: str, used: Sequence[Any], made: Sequence[torch.Tensor]) -> None:
        """Note an operation: the tensors ``made`` become known if all tensors ``used`` are,
        otherwise unknown."""
        used = [] if shape_alone(name) else list(tensors_in(used))
        all_known = all(tensor in self for tensor in used)
        parameters = self.parameters(used) if all_known else ""
        for tensor in made:
            if all_known:
                self._known.setdefault(identify_storage(tensor), (tensor, parameters))
            else:
                self._known.pop(identify_storage(tensor), None)


class Calls(TorchFunctionMode):
    """Follows the calls of a network's code: the sum that is being taken, and the number of calls
    so far."""

    def __init__(self, network: nn.Module, modules: list[str]):
        super().__init__()
        self.current: Call | None = None
        self.turn = 0
        self._network = network
        self._modules = modules
        self._known = Provenance()

    @contextmanager
    def entered(self) -> Iterator[None]:
        self._known.begin(self._network)
        with modules_noted(self._network, self._modules), self:
            yield
        self._known.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        call = read_call(name, args, kwargs)
        operands: Sequence[Any] = ()
        if call:
            operands = call.operands
            call = call.at(self._modules[-1], self._known.parameters(operands))
        self.current = call
        self.turn += 1
        outputs = self.compute(func, args, kwargs, operands)
        self.current = None
        self._known.follow(name, [*args, *kwargs.values()], list(tensors_in(outputs)))
        return outputs

    def compute(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], operands: Sequence[Any]
    ) -> Any:
        return func(*args, **kwargs)


class Scaled(Calls):
    """Multiplies sums by ``factors``. A key has the parts of `Call.place`, then the length that is
    summed over."""

    def __init__(self, network: nn.Module, factors: Mapping[tuple[Any, ...], Any]):
        super().__init__(network, [""])
        self._factors = [(*key, factor) for key, factor in factors.items()]

    def compute(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], operands: Sequence[Any]
    ) -> Any:
        call = self.current
        if call is None:
            return func(*args, **kwargs)
        factor = self._factor(call)
        if isinstance(factor, float) and factor == 1:
            return func(*args, **kwargs)
        if call.operand == OUTPUT:
            outputs = func(*args, **kwargs)
            if call.function == "logsumexp":
                return outputs + log(factor)  # its terms are exponentials
            return outputs * factor**call.power
        scaled = multiply_along(operands[0], factor, call.axis)
        if call.operand >= len(args):  # it was given by its name
            return func(*args, **{**kwargs, "input": scaled})
        changed = [*args]
        if call.function == "einsum" and isinstance(args[1], list | tuple):
            changed[call.operand] = [scaled, *args[1][1:]]
        else:
            changed[call.operand] = scaled
        return func(*changed, **kwargs)

    def _factor(self, call: Call) -> Any:
        for *place, inner, factor in self._factors:
            # In an export some lengths are symbols, so only lengths of the same call may be
            # compared.
            if place == [*call.place] and inner == call.inner:
                return factor
        return 1.0


def multiply_input(
    factor: Callable[[], Any],
    axis: int,
    _: nn.Module,
    inputs: tuple[Any, ...],
    named: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Multiply a layer's input by ``factor()`` along an axis; a forward pre-hook."""
    if inputs:
        return (multiply_along(inputs[0], factor(), axis), *inputs[1:]), named
    return inputs, {**named, "input": multiply_along(named["input"], factor(), axis)}


def multiply_sums(
    network: nn.Module,
    factors: Callable[[], tuple[Mapping[tuple[Any, ...], Any], Mapping[str, Any]]],
) -> None:
    """Make a network scale its sums. ``factors()`` returns factors for calls (`Scaled`) and, by
    name, parameters."""
    plain = network.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        calls, weights = factors()
        with (
            _multiplied(network, weights),
            Scaled(network, calls).entered() if calls else nullcontext(),
        ):
            return plain(*inputs, **named)

    network.forward = forward


@contextmanager
def _multiplied(network: nn.Module, factors: Mapping[str, Any]) -> Iterator[None]:
    """Multiply parameters by factors in this context."""
    products: dict[int, torch.Tensor] = {}
    for name, factor in factors.items():
        parameter = network.get_parameter(name)
        if getattr(factor, "ndim", 0):
            factor = factor.to(parameter)
        products[id(parameter)] = parameter * factor
    changed = []
    try:
        for module in list(network.modules()) if products else ():
            before = dict(module._parameters)
            keys = [key for key, value in before.items() if id(value) in products]
            if keys:
                changed.append((module, keys, before))
            for key in keys:
                product = products[id(module._parameters.pop(key))]
                setattr(module, key, product)  # a recurrent layer also has it in a list
        yield
    finally:
        for module, keys, before in changed:
            for key in keys:
                module.__dict__.pop(key, None)
                setattr(module, key, before[key])
            module._parameters.clear()
            module._parameters.update(before)  # in their order


@contextmanager
def modules_noted(network: nn.Module, modules: list[str]) -> Iterator[None]:
    """Keep the name of the module that is being called as the last item of ``modules``."""

    def entered(name: str) -> Callable[..., None]:
        return lambda *_: modules.append(name)

    handles = []
    for name, module in network.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(entered(name)))
            handles.append(
                module.register_forward_hook(lambda *_: modules.pop() and None, always_call=True)
            )
    with hooked(handles):
        yield


def shape_alone(name: str) -> bool:
    """Return True for an operation that uses only the shapes of its tensors, not their values."""
    return name.endswith("_like") or name.startswith("new_")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if not isinstance(value, Elsewhere):
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def identify_storage(tensor: torch.Tensor) -> int:
    """Return a number that is the same for all tensors of one storage."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata
