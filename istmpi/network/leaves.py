"""Leaves of a network: layers that can compute with a part of their weight's rows.

Only the layer's own call is replaced. Other uses of the weight raise RuntimeError (`Elsewhere`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from istmpi.engine.axes import Parameter
from istmpi.errors import ConfigError
from istmpi.network.linear import LabelBlocks
from istmpi.network.trials import Watching

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TABLES = (nn.Embedding, nn.EmbeddingBag)
BLOCK = 2**22

Values = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Leaf:
    """A layer of a network. ``names`` has the network's names of the layer's ``weight`` and, if
    any, ``bias``."""

    module: nn.Module
    names: Mapping[str, str]

    @property
    def of_inputs(self) -> bool:
        """True if the weight's rows are inputs, whose contributions are added; False if they are
        outputs."""
        return isinstance(self.module, TABLES)

    @property
    def axis(self) -> int:
        """The axis of the outputs along which the rows lie, counted from the end."""
        return -1 - len(getattr(self.module, "kernel_size", ()))

    def outputs(self, rows: range, values: Values, *inputs: Any, **named: Any) -> torch.Tensor:
        """Return the outputs of ``rows`` or, if rows are inputs, their contribution to all
        outputs."""
        if isinstance(self.module, nn.Embedding):
            return _look_up(rows, values["weight"], *inputs, **named)
        if isinstance(self.module, nn.EmbeddingBag):
            return _add_up(self.module, rows, values["weight"], *inputs, **named)
        return self.whole(values, *inputs, **named)

    def whole(self, values: Values, *inputs: Any, **named: Any) -> torch.Tensor:
        """Call the layer's own forward with the parameters ``values``."""
        # A layer's forward takes any tensor for a parameter.
        parameters: dict[str, Any] = self.module._parameters
        kept = dict(parameters)
        parameters.update(values)
        try:
            return type(self.module).forward(self.module, *inputs, **named)
        finally:
            parameters.update(kept)

    def block_by_block(
        self, make: Callable[[str, tuple[int, ...]], torch.Tensor]
    ) -> Callable[..., torch.Tensor]:
        """Return a forward function that gets parameters from ``make(name, shape)``, some rows at a
        time."""
        parameters: dict[str, Any] = self.module._parameters  # placeholders are no parameters
        shapes = {key: tuple(parameters[key].shape) for key in self.names}
        length = shapes["weight"][0]
        step = max(BLOCK // prod(shapes["weight"][1:]), 1)

        def forward(*inputs: Any, **named: Any) -> torch.Tensor:
            parts = []
            for start in range(0, length, step):
                rows = range(start, min(start + step, length))
                values = {
                    key: make(name, (len(rows), *shapes[key][1:]))
                    for key, name in self.names.items()
                }
                parts.append(self.outputs(rows, values, *inputs, **named))
            return self.join(parts)

        return forward

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        if self.of_inputs:
            return sum(parts[1:], start=parts[0])
        return torch.cat(parts, dim=self.axis)

    def replace(self, forward: Callable[..., torch.Tensor]) -> None:
        self.module.forward = forward


def _look_up(rows: range, weight: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    inside = (input >= rows.start) & (input < rows.stop)
    outputs = weight.new_zeros(*input.shape, weight.shape[1])
    outputs[inside] = functional.embedding(input[inside] - rows.start, weight)
    return outputs


def _add_up(
    module: nn.EmbeddingBag,
    rows: range,
    weight: torch.Tensor,
    input: torch.Tensor,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> torch.Tensor:

    def bags(input: torch.Tensor, table: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return functional.embedding_bag(
            input,
            table,
            offsets,
            mode="sum",
            per_sample_weights=weights,
            include_last_offset=module.include_last_offset,
        )

    counted = torch.ones_like(input, dtype=weight.dtype)
    if module.padding_idx is not None:
        counted[input == module.padding_idx] = 0
    inside = (input >= rows.start) & (input < rows.stop)
    weights = counted * inside
    if per_sample_weights is not None:
        weights = weights * per_sample_weights
    total = bags(torch.where(inside, input - rows.start, 0), weight, weights)
    if module.mode == "mean":
        # The mean divides by all entries of a bag, also by those whose rows are elsewhere.
        total = total / bags(torch.zeros_like(input), weight.new_ones(1, 1), counted).clamp(min=1)
    return total


def find_leaves(network: nn.Module, parameters: Mapping[str, Sequence[str]]) -> dict[str, Leaf]:
    leaves = {}
    for path, names in parameters.items():
        module = network.get_submodule(path)
        keys = (key for key in ("weight", "bias") if module._parameters.get(key) is not None)
        leaves[path] = Leaf(module, dict(zip(keys, names, strict=True)))
    return leaves


def list_candidates(network: nn.Module) -> dict[str, tuple[str, ...]]:
    """Return the modules whose class and options let them be leaves, with their parameters'
    names."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    leaves = {}
    for path, module in network.named_modules():
        kind = type(module)
        if kind in CONVOLUTIONS:
            # Rows of a grouped convolution read different inputs.
            usable = module.groups == 1
        elif kind in TABLES:
            # A look-up with max_norm changes rows, and a maximum over a bag needs all rows.
            usable = module.max_norm is None and getattr(module, "mode", "sum") in ("sum", "mean")
        else:
            usable = kind in (nn.Linear, LabelBlocks)
        named = {
            key: names[id(parameter)]
            for key, parameter in module._parameters.items()
            if parameter is not None
        }
        plain = (
            "weight" in named
            and named.keys() <= {"weight", "bias"}
            and "forward" not in vars(module)
        )
        if usable and path and plain:
            leaves[path] = tuple(named[key] for key in ("weight", "bias") if key in named)
    return leaves


class Elsewhere(torch.Tensor):
    """A parameter whose values are not on this rank. Its shape, dtype etc. can be read; its device
    is the CPU.

    Any other use raises RuntimeError and sets ``read``.
    """

    read = False
    name = ""

    _KNOWN = frozenset(
        (
            "shape",
            "size",
            "ndim",
            "dim",
            "numel",
            "nelement",
            "__len__",
            "dtype",
            "element_size",
            "itemsize",
            "nbytes",
            "is_floating_point",
            "is_complex",
            "requires_grad",
            "layout",
            "is_sparse",
            "is_quantized",
            "is_nested",
        )
    )

    @staticmethod
    def in_place_of(parameter: torch.Tensor, name: str) -> Elsewhere:
        placeholder = torch.Tensor._make_subclass(Elsewhere, parameter.detach())
        placeholder.name = name
        return placeholder

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        use = getattr(func, "__name__", "")
        if use == "__get__":
            use = getattr(getattr(func, "__self__", None), "__name__", "")
        if use in cls._KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if use in ("device", "is_cpu", "is_cuda"):
            return {"device": torch.device("cpu"), "is_cpu": True, "is_cuda": False}[use]
        names = []
        for value in [*args, *(kwargs or {}).values()]:
            tensors = value if isinstance(value, list | tuple) else [value]
            for tensor in tensors:
                if isinstance(tensor, Elsewhere):
                    tensor.read = True
                    names.append(tensor.name)
        raise RuntimeError(
            f"{', '.join(names)} is read outside its layer ({use}), which the inspection of this "
            "network did not see; its rows are spread over the ranks."
        )


@contextmanager
def without_values() -> Iterator[None]:
    """Put the trainable parameters, not the buffers, of networks built in this context on the meta
    device."""
    replaced: Any = WeakIdKeyDictionary()

    def register(
        module: nn.Module, key: str, parameter: nn.Parameter | None
    ) -> nn.Parameter | None:
        # Frozen parameters become buffers, which keep their values.
        if parameter is None or parameter.is_meta or not parameter.requires_grad:
            return parameter
        if parameter not in replaced:
            values = torch.empty_strided(
                parameter.shape,
                parameter.stride(),
                dtype=parameter.dtype,
                device=torch.device("meta"),
            )
            replaced[parameter] = nn.Parameter(values, parameter.requires_grad)
        return replaced[parameter]

    # PyTorch's type of the hook has no result, but its documentation does.
    handle = register_module_parameter_registration_hook(register)  # type: ignore[arg-type]
    try:
        # Constructors fill their parameters, which have no memory here.
        with _Unfilled():
            yield
    finally:
        handle.remove()


def build_shapes(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network without values. If the meta device is refused, buffers and frozen parameters
    have values."""
    try:
        with torch.device("meta"), without_values():
            return build()
    except ConfigError:
        # from_pretrained of transformers refuses to read weights onto the meta device.
        with without_values():
            return build()


class _Unfilled(Watching):
    """Skips in-place operations on the meta device. PyTorch would need seconds to import their
    decompositions."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func.overloadpacket.__name__.endswith("_")
            and isinstance(args[0], torch.Tensor)
            and args[0].is_meta
        ):
            return args[0]
        return func(*args, **(kwargs or {}))


def prepare(network: nn.Module, elsewhere: Collection[str]) -> dict[str, nn.Parameter]:
    """Replace the parameters in ``elsewhere`` by `Elsewhere`. Return the others, empty, for the
    caller to fill."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    placeholders: dict[str, Elsewhere] = {}
    empty: dict[str, nn.Parameter] = {}
    for module in list(network.modules()):
        parameters: dict[str, Any] = module._parameters  # a placeholder is no nn.Parameter
        for key, parameter in list(parameters.items()):
            if parameter is None:
                continue
            name = names[id(parameter)]
            if name in elsewhere:
                if name not in placeholders:
                    placeholders[name] = Elsewhere.in_place_of(parameter, name)
                parameters[key] = placeholders[name]
            elif parameter.is_meta:
                if name not in empty:
                    values = torch.empty(0, dtype=parameter.dtype, device="cpu")
                    empty[name] = nn.Parameter(values, requires_grad=False)
                setattr(module, key, empty[name])  # a recurrent layer also has them in a list
            else:
                empty[name] = parameter.requires_grad_(False)
                parameter.data = parameter.data.new_empty(0)
    return empty


def draw_values(
    network: nn.Module,
    leaves: Mapping[str, Sequence[str]],
    parameters: Mapping[str, Parameter],
    lengths: Mapping[str, int],
    dtype: torch.dtype,
) -> None:
    """Give parameters initial values; each call of a leaf draws its own."""
    generator = torch.Generator().manual_seed(0)

    def make(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        low = parameters[name].centre - parameters[name].bound
        high = parameters[name].centre + parameters[name].bound
        return torch.empty(shape, dtype=dtype).uniform_(low, high, generator=generator)

    layers = find_leaves(network, leaves)
    for name, parameter in prepare(network, {*chain.from_iterable(leaves.values())}).items():
        parameter.data = make(name, parameters[name].pattern.shape(lengths))
    for leaf in layers.values():
        leaf.replace(leaf.block_by_block(make))
