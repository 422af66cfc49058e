"""Sums over units that a forward pass takes, whatever operation takes them.

A network is followed at a few lengths. The length that an operation sums over grows with a width exactly if it sums
over that width's units. Weights that a softmax along the same axis made turn a sum into a mean.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, log2, prod
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from istmpi.errors import ConfigError
from istmpi.models.architecture import built
from istmpi.models.scaling import Call, Provenance, call_of, modules_noted, reduced, storage_of, tensors_in
from istmpi.models.table import Use
from istmpi.models.trials import Watching, few, one_thread, seeded
from istmpi.models.user import UserNetwork

EXAMPLES = 2
MATRIX = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "vdot": 0, "_grouped_mm": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
"""The operand of each product whose last axis is summed over."""
LINEAR = {"convolution", "_trilinear"}
"""Other operations whose result is multiplied with any operand."""
KEEPING = {"mul", "mul_", "div", "div_", "clone", "_to_copy", "where", "masked_fill", "native_dropout", "copy_"}
"""Operations behind which weights still add up to 1 along an axis."""
MOVING = {"clone", "_to_copy", "cat", "stack", "copy_"}
"""Operations that leave values as they are."""


@dataclass(frozen=True)
class Seen:
    module: str
    operation: str
    parameter: str
    call: Call | None
    """The call in the network's code, if its factor could be applied there."""
    turn: int = field(compare=False)
    """The number of that call."""
    inner: int = field(compare=False)
    """The length that it sums over."""
    fan: int = field(compare=False)
    """The number of inputs of an output, if that is not the length."""
    weighted_by: frozenset[int] = field(default=frozenset(), compare=False)
    """The softmaxes that made its weights, by their numbers."""


class SumRecorder(Watching):
    """Keeps the sums of a network's forward pass, softmaxes among them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []
        self.kept_apart: set[str] = set()
        """Parameters that go into other operations as well, and cannot be multiplied themselves."""
        self._modules = [""]
        self._known = Provenance()
        self._calls = _Calls(self._modules)
        self._weights: dict[int, tuple[torch.Tensor, frozenset[int]]] = {}
        self.readers: dict[int, set[str]] = {}
        """The modules in which each storage is read."""

    @contextmanager
    def following(self, network: nn.Module) -> Iterator[None]:
        self._known.begin(network)
        self._calls.provenance.begin(network)
        with modules_noted(network, self._modules), _unfused(network), self._calls, self:
            yield
        self._known.clear()
        self._calls.provenance.clear()
        self._weights.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        outputs, name = func(*args, **kwargs), func.overloadpacket.__name__
        made, used = list(tensors_in(outputs)), list(tensors_in([*args, *kwargs.values()]))
        for tensor in used:
            self.readers.setdefault(storage_of(tensor), set()).add(self._modules[-1])
        entries = (self._weights.get(storage_of(tensor)) for tensor in used)
        weights = frozenset().union(*(entry[1] for entry in entries if entry))
        fresh = made and used and storage_of(made[0]) != storage_of(used[0])
        if name == "_softmax":
            self._note(name, "", args[0].shape[args[1]], frozenset())
            weights = frozenset({len(self.seen) - 1})
        elif any(tensor.layout != torch.strided for tensor in used):
            weights = frozenset()  # sums over the neighbours of a node
        elif taken := _sum_of(name, args):
            operands, inner = taken
            # A product of two inputs starts as PyTorch's own does, by the first of them.
            fan = args[0].shape[-1] if name == "_trilinear" else 0
            self._note(name, self._known.parameters(operands), inner, weights, fan)
            weights = frozenset()
        elif fresh:
            if name not in MOVING:
                self.kept_apart.update(self._known.parameters(used).split(","))
            if name not in KEEPING:
                weights = frozenset()
        self._known.follow(name, used, made)
        for tensor in made:
            if weights:
                self._weights[storage_of(tensor)] = tensor, weights
            else:
                self._weights.pop(storage_of(tensor), None)
        return outputs

    def _note(self, name: str, parameter: str, inner: int, weights: frozenset[int], fan: int = 0) -> None:
        call, turn = self._calls.current, self._calls.turn
        self.seen.append(Seen(self._modules[-1], name, parameter, call, turn, inner, fan, weights))


class _Calls(TorchFunctionMode):
    def __init__(self, modules: list[str]):
        super().__init__()
        self.current: Call | None = None
        self.turn = 0
        self.provenance = Provenance()
        self._modules = modules

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        self.current, self.turn = None, self.turn + 1
        if call := call_of(name, args, kwargs):
            self.current = call.placed(self._modules[-1], self.provenance.parameters(call.operands))
        outputs = func(*args, **kwargs)
        self.current = None
        self.provenance.follow(name, [*args, *kwargs.values()], list(tensors_in(outputs)))
        return outputs


def _sum_of(name: str, args: Sequence[Any]) -> tuple[Sequence[Any], int] | None:
    """The operands of the sum that an operation takes, and its length; None if none."""
    if name in MATRIX:
        operand = MATRIX[name]
        return args[operand : operand + 2], args[operand].shape[-1]
    if name == "convolution":
        return args[:2], args[1].shape[0] // args[8] if args[6] else args[1].shape[1]
    if name == "_trilinear":
        shape = [1] * (args[0].ndim + len(args[3]))
        for factor, expanded in zip(args[:3], args[3:6]):
            sizes = iter(factor.shape)
            for axis in range(len(shape)):
                if axis not in expanded:
                    shape[axis] = max(shape[axis], next(sizes))
        return args[:3], prod(shape[axis] for axis in args[6])
    if name.startswith("_scaled_dot_product"):
        return args[:2], args[0].shape[-1]
    if name in ("sum", "nansum", "logsumexp"):
        return args[:1], reduced(args[0], args[1] if len(args) > 1 else None)[1]
    if name in ("linalg_vector_norm", "norm"):
        order = args[1] if len(args) > 1 and args[1] is not None else 2
        return None if order in (0, inf, -inf) else (args[:1], reduced(args[0], args[2] if len(args) > 2 else None)[1])
    if name in ("_cdist_forward", "_euclidean_dist", "prod"):
        return args[:2], reduced(args[0], args[1] if len(args) > 1 else None)[1] if name == "prod" else args[0].shape[
            -1
        ]
    if name == "_weight_norm_interface":
        return args[:2], args[0].numel() // args[0].shape[args[2] if len(args) > 2 else 0]
    return None


@dataclass(frozen=True)
class Sums:
    uses: tuple[Use, ...] = ()
    folded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unscaled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fans: Mapping[str, int] = field(default_factory=dict)
    """The inputs that a product with a parameter adds up, means left out."""


def sums_of(network: UserNetwork, lengths: Mapping[str, int], full: SumRecorder, layers: Collection[str]) -> Sums:
    """The sums over units of a network's widths; ``layers``: modules that take a sum in a call of their own."""
    members = None
    with one_thread():
        for at in (few(lengths), lengths):  # a constructor may not take few units, or twice as many of them
            members = _members(network, at, full.seen, at == lengths) or members
            if members and None not in members[1].values():
                break
    if members is None:
        unscaled = {"a forward pass, which differs at other widths,": tuple(lengths)} if lengths else {}
        return Sums(unscaled=unscaled, layers=dict.fromkeys(layers, (*lengths,)), fans=_fans(full.seen, {}, lengths))
    base, doubled = members
    unscaled = {
        f"a forward pass, which differs when {name} doubles,": (name,)
        for name, records in doubled.items()
        if records is None
    }
    groups, averaged, odd = _groups(network, full.seen, base, doubled)
    for number, (seen, names) in enumerate(zip(full.seen, groups)):
        if number in odd or (names and seen.operation == "prod"):
            unscaled[_place(seen)] = tuple(dict.fromkeys(names))
    folded = _folded(full, groups, layers)
    calls: dict[int, tuple[Call, list[str]]] = {}
    for number, seen in enumerate(full.seen):
        if number in odd or seen.operation in ("_softmax", "prod") or seen.module in layers:
            continue
        if not folded.keys().isdisjoint(seen.parameter.split(",")):
            continue
        if seen.call is not None:
            calls.setdefault(seen.turn, (seen.call, []))[1].extend(groups[number])
        elif groups[number]:
            unscaled[_place(seen)] = tuple(dict.fromkeys(groups[number]))
    uses: dict[tuple[object, ...], Use] = {}
    for number, (seen, of_base) in enumerate(zip(full.seen, base)):
        if seen.turn not in calls or seen.call is None or not seen.call.power:
            continue
        call, names = calls.pop(seen.turn)
        grown = {
            name: records[number].call.inner / of_base.call.inner
            for name, records in doubled.items()
            if records and of_base.call.inner
        }
        inner = _axis(call.inner, _powers(grown), lengths)
        use = Use(*call.place, inner, tuple(sorted(names)))
        before = uses.setdefault((*call.place, call.inner), use)
        if before.groups != use.groups:  # a call that cannot be told from another one needs its factor
            unscaled[_place(seen)] = tuple(dict.fromkeys((*before.groups, *use.groups)))
    of_layers: dict[str, tuple[str, ...]] = dict.fromkeys(layers, ())
    for seen, names in zip(full.seen, groups):
        if seen.module in layers:
            of_layers[seen.module] += names
    scaled = tuple(use for use in uses.values() if use.groups)
    return Sums(scaled, folded, unscaled, of_layers, _fans(full.seen, averaged, lengths))


def _fans(seen: Sequence[Seen], averaged: Mapping[int, Collection[str]], lengths: Mapping[str, int]) -> dict[str, int]:
    """The inputs that the first product with each parameter adds up."""
    fans: dict[str, int] = {}
    for number, product in enumerate(seen):
        if product.parameter and product.operation in (*MATRIX, *LINEAR):
            mean = prod(lengths[name] for name in averaged.get(number, ()))
            fans.setdefault(product.parameter, max((product.fan or product.inner) // mean, 1))
    return fans


def _groups(
    network: UserNetwork, full: Sequence[Seen], base: Sequence[Seen], doubled: Mapping[str, Sequence[Seen] | None]
) -> tuple[list[tuple[str, ...]], dict[int, set[str]], set[int]]:
    """The widths whose units each sum adds up, as often as they are factors of its length; means left out.

    Returns as well the widths over which each takes a mean, and sums over something else than a product of widths.
    """
    declared = getattr(network.kind, "SUMS", {})
    groups: list[tuple[str, ...]] = []
    odd, averaged = set(), {}
    for number, seen in enumerate(full):
        ratios = {name: records[number].inner / base[number].inner for name, records in doubled.items() if records}
        names = _powers(ratios)
        means = {name for softmax in seen.weighted_by for name in groups[softmax]} & {*names}
        means |= {name for name in names if declared.get(name) == "mean"} if seen.operation != "_softmax" else set()
        if "mean" in map(declared.get, (seen.module, *seen.parameter.split(","))):
            means = {*names}
        averaged[number] = means
        groups.append(tuple(name for name in names if name not in means))
        if groups[-1] and any(ratio != 2 ** round(log2(ratio)) for ratio in ratios.values()):
            odd.add(number)
    return groups, averaged, odd


def _powers(ratios: Mapping[str, float]) -> list[str]:
    """The widths that a length has as factors, from its growth where each is doubled."""
    return [name for name, ratio in ratios.items() for _ in range(round(log2(ratio)))]


def _axis(length: int, names: Sequence[str], lengths: Mapping[str, int]) -> str:
    literal = length // prod(lengths[name] for name in names)
    factors = [str(literal)] * (literal != 1 or not names) + [*names]
    return factors[0] if len(factors) == 1 else f"({' '.join(factors)})"


def _folded(full: SumRecorder, groups: Sequence[Sequence[str]], layers: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The parameters in sums over units of the same widths alone, outside of layers."""
    folded: dict[str, tuple[str, ...]] = {}
    spoilt = set(full.kept_apart)
    for seen, names in zip(full.seen, groups):
        parameters = seen.parameter.split(",")
        if seen.module in layers or not (seen.operation in MATRIX or seen.operation in LINEAR):
            spoilt.update(parameters)
        spoilt.update(name for name in parameters if folded.setdefault(name, tuple(names)) != tuple(names))
    folded = {name: names for name, names in folded.items() if names and name and name not in spoilt}
    for seen in full.seen:  # of two factors of a product one is multiplied
        for other in [name for name in seen.parameter.split(",") if name in folded][1:]:
            del folded[other]
    return folded


def _place(seen: Seen) -> str:
    return f"{seen.operation} of {seen.module or 'its forward'}"


def _members(
    network: UserNetwork, lengths: Mapping[str, int], full: Sequence[Seen], are_full: bool
) -> tuple[Sequence[Seen], dict[str, Sequence[Seen] | None]] | None:
    """The sums at these lengths, and with each width doubled: None where they differ from ``full``."""

    def seen(lengths: Mapping[str, int]) -> Sequence[Seen] | None:
        try:
            module = built(network, lengths).eval()
            recorder, examples = SumRecorder(), network.examples(EXAMPLES, torch.get_default_dtype())
            with seeded(), recorder.following(module):
                network.forward(module, *examples)
        except ConfigError:
            return None
        return recorder.seen if recorder.seen == full else None

    base = full if are_full else seen(lengths)
    if base is None:
        return None
    return base, {name: seen({**lengths, name: 2 * length}) for name, length in lengths.items()}


@contextmanager
def _unfused(network: nn.Module) -> Iterator[None]:
    """Layers are computed operation by operation."""
    backends = torch.backends
    before = backends.mkldnn.enabled, backends.cudnn.enabled, backends.mha.get_fastpath_enabled()
    if any(isinstance(module, nn.RNNBase) for module in network.modules()):
        backends.mkldnn.enabled = backends.cudnn.enabled = False
    backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        backends.mkldnn.enabled, backends.cudnn.enabled = before[:2]
        backends.mha.set_fastpath_enabled(before[2])
