"""Sums over units that a forward pass takes, whatever operation takes them, and their factors in the full network.

`Watch` follows a forward pass operation by operation: it knows the module that each is called in and the parameters
that its operands are made of. `sums_of` runs a network at a few lengths; the length that an operation sums over grows
with a width exactly if it sums over that width's units. `Scaled` multiplies those sums in the full network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, log, log2, prod
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from istmpi.errors import ConfigError
from istmpi.models.architecture import built
from istmpi.models.leaves import Elsewhere
from istmpi.models.table import Use
from istmpi.models.trials import few, hooked, one_thread, seeded
from istmpi.models.user import UserNetwork

EXAMPLES = 2

OUTPUT = -1
"""In place of an operand's number: the operation's output is multiplied."""
SHIFT = -2
"""The logarithm of the factor is added to the output."""
MATRIX = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "_grouped_mm": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""The operand of each product of matrices whose last axis is summed over."""
KEEPING = {"mul", "mul_", "div", "div_", "clone", "_to_copy", "where", "masked_fill", "native_dropout", "copy_"}
"""Operations behind which weights that add up to 1 along an axis are still such weights, of something else."""


@dataclass(frozen=True)
class Sum:
    """A sum that an operation takes."""

    operand: int
    """The operand to multiply, or `OUTPUT`, or `SHIFT`."""
    inner: int
    """The length that it sums over."""
    axes: tuple[int, ...] = ()
    """The number of axes, and those that are summed over, where the same operation may sum over others."""
    power: float = 1.0
    """The power of the factor: a half for the root of a sum of squares."""


def sum_of(name: str, args: Sequence[Any]) -> Sum | None:
    """The sum that an operation of PyTorch takes over an axis of its operands; None if it takes none."""
    if name in MATRIX:
        operand = MATRIX[name]
        return Sum(operand, args[operand].shape[-1], (args[operand].ndim,))
    if name == "convolution":
        return Sum(0, args[1].shape[0 if args[6] else 1])
    if name == "_trilinear":
        shape = [1] * (args[0].ndim + len(args[3]))
        for factor, expanded in zip(args[:3], args[3:6]):
            sizes = iter(factor.shape)
            for axis in range(len(shape)):
                if axis not in expanded:
                    shape[axis] = max(shape[axis], next(sizes))
        return Sum(0, prod(shape[axis] for axis in args[6]))
    if name.startswith("_scaled_dot_product"):
        return Sum(0, args[0].shape[-1])
    if name in ("sum", "nansum", "logsumexp"):
        return Sum(SHIFT if name == "logsumexp" else OUTPUT, *_reduced(args[0], args[1] if len(args) > 1 else None))
    if name in ("linalg_vector_norm", "norm"):
        order = args[1] if len(args) > 1 and args[1] is not None else 2
        if order in (0, inf, -inf):
            return None
        inner, axes = _reduced(args[0], args[2] if len(args) > 2 else None)
        return Sum(OUTPUT, inner, axes, 1 / float(order))
    if name in ("_cdist_forward", "_euclidean_dist"):
        order = 2.0 if name == "_euclidean_dist" else args[2]
        return Sum(OUTPUT, args[0].shape[-1], (), 1 / order) if 0 < order < inf else None
    if name == "_weight_norm_interface":
        return Sum(OUTPUT, args[0].numel() // args[0].shape[args[2] if len(args) > 2 else 0], (), -0.5)
    return None


def _reduced(x: torch.Tensor, axes: Any) -> tuple[int, tuple[int, ...]]:
    chosen = [axes] if isinstance(axes, int) else [*axes] if axes else [*range(x.ndim)]
    places = tuple(sorted(axis % max(x.ndim, 1) for axis in chosen)) if x.ndim else ()
    return prod(x.shape[place] for place in places), (x.ndim, *places)


class Watch(TorchDispatchMode):
    """Follows a network's forward pass while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._modules = [""]
        # Tensors that no example has gone into, by their storage, with the parameter that they are made of. They are
        # kept, or others might take their place in memory and be mistaken for them.
        self._known: dict[int, tuple[torch.Tensor, str]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @contextmanager
    def following(self, network: nn.Module) -> Iterator[None]:
        """Enter it for one forward pass of a network."""

        def entered(name: str) -> Callable[..., None]:
            return lambda *_: self._modules.append(name)

        handles = []
        for name, module in network.named_modules():
            if name:
                handles.append(module.register_forward_pre_hook(entered(name)))
                handles.append(module.register_forward_hook(lambda *_: self._modules.pop() and None, always_call=True))
        self._known = {_storage(tensor): (tensor, "") for _, tensor in network.named_buffers()}
        here = (entry for entry in network.named_parameters() if not isinstance(entry[1], Elsewhere))
        self._known |= {_storage(tensor): (tensor, name) for name, tensor in here}
        with hooked(handles), _unfused(network), self:
            yield
        self._known.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        outputs = self.call(func, name, args, kwargs)
        used = [] if name.endswith("_like") or name.startswith("new_") else [*args, *kwargs.values()]  # values count
        known = [self._known.get(_storage(tensor)) for tensor in _tensors(used)]
        for tensor in _tensors(outputs):
            if all(known):
                self._known.setdefault(_storage(tensor), (tensor, self.parameters(used)))
            else:
                self._known.pop(_storage(tensor), None)
        return outputs

    def parameters(self, operands: Sequence[Any]) -> str:
        """The names of the parameters that operands are made of, without any example, joined by commas."""
        entries = [self._known.get(_storage(tensor)) for tensor in _tensors(operands)]
        return ",".join(dict.fromkeys(entry[1] for entry in entries if entry and entry[1]))

    def call(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the outputs of an operation."""
        raise NotImplementedError


@dataclass(frozen=True)
class Seen:
    """A sum of a forward pass."""

    module: str
    operation: str
    parameter: str
    axes: tuple[int, ...]
    power: float
    inner: int = field(compare=False)
    weighted_by: frozenset[int] = field(default=frozenset(), compare=False)
    """The softmaxes that made its weights, by their numbers among all that was seen."""

    @property
    def place(self) -> tuple[str, str, str, tuple[int, ...]]:
        """The facts by which a use is found again."""
        return self.module, self.operation, self.parameter, self.axes


class SumRecorder(Watch):
    """Keeps the sums of a forward pass in their order, softmaxes among them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []
        self.kept_apart: set[str] = set()
        """Parameters that go into other operations than sums as well: a factor of them would not be one of a sum."""
        self._weights: dict[int, tuple[torch.Tensor, frozenset[int]]] = {}

    def call(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        outputs = func(*args, **kwargs)
        made, used = list(_tensors(outputs)), list(_tensors([*args, *kwargs.values()]))
        weights = frozenset().union(*(self._weights.get(_storage(tensor), (None, ()))[1] for tensor in used))
        if name == "_softmax":
            self._note(name, "", Sum(OUTPUT, args[0].shape[args[1]]), frozenset())
            weights = frozenset({len(self.seen) - 1})
        elif any(tensor.layout != torch.strided for tensor in used):
            weights = frozenset()  # sums over the neighbours of a node
        elif taken := sum_of(name, args):
            self._note(name, self.parameters(_operands(name, args)), taken, weights)
            weights = frozenset()
        else:
            fresh = made and used and _storage(made[0]) != _storage(used[0])
            if fresh and name not in ("clone", "_to_copy", "cat", "stack"):
                self.kept_apart.update(self.parameters(used).split(","))
            if fresh and name not in KEEPING:
                weights = frozenset()
        for tensor in made:
            if weights:
                self._weights[_storage(tensor)] = tensor, weights
            else:
                self._weights.pop(_storage(tensor), None)
        return outputs

    def fan_in(self, parameter: str) -> int:
        """The length that the first product with a parameter sums over; 0 if there is none."""
        products = (seen for seen in self.seen if seen.parameter == parameter and seen.power == 1)
        return next((seen.inner for seen in products), 0)

    def _note(self, name: str, parameter: str, taken: Sum, weights: frozenset[int]) -> None:
        self.seen.append(Seen(self._modules[-1], name, parameter, taken.axes, taken.power, taken.inner, weights))


class Scaled(Watch):
    """Multiplies the sums of a forward pass by their factors.

    ``factors``: that of each use, and the length that it sums over here. Other sums that cannot be told from it by
    module, operation, parameters and axes sum over another length.
    """

    def __init__(self, factors: Mapping[Use, tuple[float, int]]):
        super().__init__()
        self._factors = {(*use.place, inner): factor for use, (factor, inner) in factors.items()}

    def call(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        strided = all(tensor.layout == torch.strided for tensor in _tensors(args))
        taken = sum_of(name, args) if strided else None
        if taken is None:
            return func(*args, **kwargs)
        place = self._modules[-1], name, self.parameters(_operands(name, args)), taken.axes
        factor = self._factors.get((*place, taken.inner), 1.0)
        if factor == 1:
            return func(*args, **kwargs)
        if taken.operand >= 0:
            scaled = args[taken.operand] * factor**taken.power
            return func(*args[: taken.operand], scaled, *args[taken.operand + 1 :], **kwargs)
        outputs = func(*args, **kwargs)
        if taken.operand == SHIFT:
            return outputs + log(factor)
        if isinstance(outputs, tuple):  # a normalised weight, and its norms
            return outputs[0] * factor**taken.power, outputs[1] / factor**taken.power
        return outputs * factor**taken.power


def _operands(name: str, args: Sequence[Any]) -> Sequence[Any]:
    """The operands of a sum, without the bias that is added to it."""
    if name == "convolution":
        return args[:2]
    return args[1:3] if MATRIX.get(name) == 1 else args


def sums_of(
    network: UserNetwork, lengths: Mapping[str, int], full: Sequence[Seen], layers: Collection[str]
) -> tuple[tuple[Use, ...], dict[str, tuple[str, ...]]]:
    """The sums over units of a network's widths, outside of the ``layers`` that take one in a call of their own.

    ``lengths``: the full length of each width. ``full``: the sums of the full network. Returns as well, for each width
    whose sums cannot be told, the reason, and the sums that have no factor, each with its widths.
    """
    with one_thread():
        tried = [members for at in (few(lengths), lengths) if (members := _members(network, at, full))]
    if not tried:
        return (), {"a forward pass, which does something else at other widths,": tuple(lengths)}
    base, doubled = next((each for each in tried if None not in each[1].values()), tried[-1])
    unscaled = {
        f"a forward pass, which does something else at twice of {name},": (name,)
        for name, records in doubled.items()
        if records is None
    }
    declared = getattr(network.kind, "SUMS", {})
    groups: list[tuple[str, ...]] = []
    uses: dict[tuple[object, ...], Use] = {}
    for number, seen in enumerate(full):
        ratios = {name: records[number].inner / base[number].inner for name, records in doubled.items() if records}
        factors = [name for name, ratio in ratios.items() for _ in range(round(log2(ratio)))]
        groups.append(tuple(dict.fromkeys(factors)))
        averaged = {name for softmax in seen.weighted_by for name in groups[softmax]}
        keys = (seen.module, *seen.parameter.split(","))
        if seen.operation == "_softmax" or seen.module in layers or "mean" in map(declared.get, keys):
            continue
        literal, rest = divmod(seen.inner, prod(lengths[name] for name in factors))
        inner = " ".join([str(literal)] * (literal != 1 or not factors) + factors)
        names = tuple(name for name in groups[-1] if name not in averaged)
        use = Use(*seen.place, seen.power, inner if " " not in inner else f"({inner})", names)
        odd = rest or any(ratio != 2 ** round(log2(ratio)) for ratio in ratios.values())
        if odd or uses.setdefault((*seen.place, seen.inner), use) != use:
            other = uses.get((*seen.place, seen.inner), use)
            unscaled[f"{seen.operation} in {seen.module or 'its forward'}"] = tuple({*other.groups, *names})
    return tuple(use for use in uses.values() if use.groups), unscaled


def _members(
    network: UserNetwork, lengths: Mapping[str, int], full: Sequence[Seen]
) -> tuple[Sequence[Seen], dict[str, Sequence[Seen] | None]] | None:
    """The sums at these lengths, and with each width doubled: None where they are others than those of ``full``."""

    def seen(lengths: Mapping[str, int]) -> Sequence[Seen] | None:
        try:
            module = built(network, lengths).eval()
            recorder, examples = SumRecorder(), network.examples(EXAMPLES, torch.get_default_dtype())
            with seeded(), recorder.following(module):
                network.forward(module, *examples)
        except ConfigError:
            return None
        return recorder.seen if recorder.seen == full else None

    base = seen(lengths)
    if base is None:
        return None
    return base, {name: seen({**lengths, name: 2 * length}) for name, length in lengths.items()}


@contextmanager
def _unfused(network: nn.Module) -> Iterator[None]:
    """Layers are computed operation by operation, so that their sums can be seen."""
    fused, cudnn, fast = torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled, torch.backends.mha
    was_fast = fast.get_fastpath_enabled()
    if any(isinstance(module, nn.RNNBase) for module in network.modules()):
        torch.backends.mkldnn.enabled = torch.backends.cudnn.enabled = False
    fast.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled = fused, cudnn
        fast.set_fastpath_enabled(was_fast)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)
