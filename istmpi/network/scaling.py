"""Multiplies sums over units by factors in the calls of the network's code: an operand of the call,
or its result.

`istmpi.inspection.uses` finds the sums. Most are products with a parameter that has no other use. Such
a parameter is multiplied itself. Other calls are recognised by module, function, parameters and
lengths, before autograd sees them.
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
} | {
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

    def placed(self, module: str, parameter: str) -> Call:
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


def call_of(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> Call | None:
    """Return the sum that a function computes; None if neither an operand nor the result can be
    multiplied."""
    args = [*args, *(named[key] for key in ("input", "other", "mat2", "weight") if key in named)]
    if not args:
        return None
    if name in PRODUCTS:
        operand = PRODUCTS[name]
        pair = args[operand : operand + 2]
        of_tensors = len(pair) == 2 and all(isinstance(value, torch.Tensor) for value in pair)
        return Call(name, operand, inner=pair[0].shape[-1], operands=pair) if of_tensors else None
    if name in CONVOLUTIONS:
        return Call(
            name, 0, inner=args[1].shape[0 if "transpose" in name else 1], operands=args[:2]
        )
    if name == "bilinear":
        return Call(name, 0, inner=prod(args[2].shape[1:]), operands=args[:3])
    if name == "einsum" and isinstance(args[0], str):
        return Call(name, 1, detail=args[0], operands=args[1:])
    if name == "_weight_norm":
        dim = args[2] if len(args) > 2 else named.get("dim", 0)
        return Call(
            name, OUTPUT, -0.5, inner=args[0].numel() // args[0].shape[dim], operands=args[:2]
        )
    if name == "cosine_similarity":
        return Call(name, OUTPUT, 0.0, operands=args[:2])
    if name in SUMS and isinstance(args[0], torch.Tensor):
        axes = named.get("dim", args[1] if len(args) > 1 else None)
        return Call(name, OUTPUT, 1.0, *_reduced(args[0], axes))
    if name == "cumsum" and isinstance(args[0], torch.Tensor):
        return Call(
            name, OUTPUT, 1.0, *_reduced(args[0], named.get("dim", args[1] if len(args) > 1 else 0))
        )
    if name in NORMS:
        order, axes = (
            named.get("p", named.get("ord", args[1] if len(args) > 1 else 2)),
            named.get("dim"),
        )
        return _of_norm(
            name,
            args[:1],
            2 if order in (None, "fro") else order,
            1,
            axes if len(args) < 3 else args[2],
        )
    if name in DISTANCES:
        order = named.get("p", args[DISTANCES[name]] if len(args) > DISTANCES[name] else 2)
        sign, axes = (
            (-1, named.get("dim", args[2] if len(args) > 2 else 1))
            if name == "normalize"
            else (1, -1)
        )
        return _of_norm(name, args[:2] if sign == 1 else args[:1], order, sign, axes)
    return None


def _of_norm(name: str, operands: Sequence[Any], order: Any, sign: int, axes: Any) -> Call | None:
    if not isinstance(order, int | float) or order in (0, inf, -inf):
        return None
    return replace(
        Call(name, OUTPUT, sign / order, *_reduced(operands[0], axes)), operands=operands
    )


def _reduced(x: torch.Tensor, axes: Any) -> tuple[str, str, str, int, Sequence[Any]]:
    places, length = reduced(x, axes)
    return f"{x.ndim}: {places}", "", "", length, (x,)


def reduced(x: torch.Tensor, axes: Any) -> tuple[list[int], int]:
    """The axes that a sum adds up, by default all, and the product of their lengths."""
    chosen = [axes] if isinstance(axes, int) else [*axes] if axes else [*range(x.ndim)]
    places = sorted(axis % x.ndim for axis in chosen) if x.ndim else []
    return places, prod(x.shape[place] for place in places)


class Provenance:
    """Tracks known tensors (computed from parameters and buffers alone) and the parameters that
    they come from."""

    def __init__(self) -> None:
        # The keys are storages. The tensors are kept, so that no other tensor takes their memory.
        self._known: dict[int, tuple[torch.Tensor, str]] = {}

    def begin(self, network: nn.Module) -> None:
        here = [
            entry for entry in network.named_parameters() if not isinstance(entry[1], Elsewhere)
        ]
        self._known = {storage_of(tensor): (tensor, "") for _, tensor in network.named_buffers()}
        self._known |= {storage_of(tensor): (tensor, name) for name, tensor in here}

    def clear(self) -> None:
        self._known.clear()

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return storage_of(tensor) in self._known

    def parameters(self, operands: Sequence[Any]) -> str:
        """Return the names of the parameters from which known operands are computed, joined by
        commas."""
        entries = [self._known.get(storage_of(tensor)) for tensor in tensors_in(operands)]
        return ",".join(dict.fromkeys(entry[1] for entry in entries if entry and entry[1]))

    def follow(self, name: str, used: Sequence[Any], made: Sequence[torch.Tensor]) -> None:
        """Note an operation: the tensors ``made`` become known if all tensors ``used`` are,
        otherwise unknown."""
        used = [] if shape_alone(name) else list(tensors_in(used))
        all_known = all(tensor in self for tensor in used)
        parameters = self.parameters(used) if all_known else ""
        for tensor in made:
            if all_known:
                self._known.setdefault(storage_of(tensor), (tensor, parameters))
            else:
                self._known.pop(storage_of(tensor), None)


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
        call = call_of(name, args, kwargs)
        operands: Sequence[Any] = ()
        if call:
            operands = call.operands
            call = call.placed(self._modules[-1], self._known.parameters(operands))
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
                return outputs + log(factor)
            return outputs * factor**call.power
        scaled = multiply_along(operands[0], factor, call.axis)
        if call.operand >= len(args):
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


def input_multiplied(
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
    factor_of = {id(network.get_parameter(name)): factor for name, factor in factors.items()}
    products: dict[int, torch.Tensor] = {}
    changed = []
    try:
        for module in list(network.modules()) if factor_of else ():
            before = dict(module._parameters)
            keys = [key for key, parameter in before.items() if id(parameter) in factor_of]
            if keys:
                changed.append((module, keys, before))
            for key in keys:
                parameter = module._parameters.pop(key)
                factor = factor_of[id(parameter)]
                factor = factor.to(parameter) if getattr(factor, "ndim", 0) else factor
                product = products.setdefault(id(parameter), parameter * factor)
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


def storage_of(tensor: torch.Tensor) -> int:
    """Return a number that is the same for all tensors of one storage."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)
