"""Finds blocks of a network that can be dealt out whole (ResIST, arXiv 2107.00961), by doubling and
a test.

A block is residual if it returns its input when some of its layers, its *ends*, return zero. The
network must compute the same with such silent ends as without the block.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.network.absent import Absent, copied, put
from istmpi.network.leaves import build_shapes
from istmpi.network.running import run_examples
from istmpi.network.table import ResidualBlock
from istmpi.network.trials import alike, few, hooked, random_values
from istmpi.network.user import UserNetwork, Width

EXAMPLES = 3


@dataclass(frozen=True)
class _Call:
    """A call of a block, with copies of its tensors: later layers may write into them."""

    inputs: Any
    named: Any
    returned: Any


def find_residual_blocks(
    network: UserNetwork, width: Width, lengths: Mapping[str, int], full: nn.Module
) -> tuple[tuple[ResidualBlock, ...], str]:
    """Return the residual blocks that ``width`` counts, and the problem if there are none. May
    overwrite ``full``."""
    before = _list_lengths(network, {width.name: width.length})
    doubled = _list_lengths(network, {width.name: 2 * width.length})
    grown = [path for path in before if doubled.get(path, 0) > before[path]]
    if len(grown) != 1:
        return (), "it changes which parameters exist, but does not count a list of modules"
    path = grown[0]
    paths = [f"{path}.{number}" for number in range(before[path])]
    # A network of few units is tried first: it is fast.
    for tried in (few(lengths), {}):
        try:
            built = network.build(tried) if tried else full
            for name, values in random_values(built, torch.Generator().manual_seed(0)).items():
                built.get_parameter(name).data = values
            x, _ = run_examples(network, built, EXAMPLES, partial(network.forward, built.eval()))
            blocks = tuple(_residual(network, built, x, paths))
        except ConfigError:
            continue
        if not blocks:
            return (), f"it counts the modules of {path}, which are not residual"
        return blocks, ""
    return (), f"it counts the modules of {path}, but the network cannot run"


def _list_lengths(network: UserNetwork, lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the number of modules in each list of a network."""
    modules = build_shapes(lambda: network.build(lengths)).named_modules()
    return {
        path: len(module)
        for path, module in modules
        if isinstance(module, (nn.Sequential, nn.ModuleList))
    }


def _residual(
    network: UserNetwork, built: nn.Module, x: Sequence[torch.Tensor], paths: Sequence[str]
) -> Iterator[ResidualBlock]:
    calls = _calls(network, built, x, paths)
    blocks = {path: built.get_submodule(path) for path in paths}
    try:
        for path, block in blocks.items():
            # A block that is called twice, or whose weights others use, cannot be left out alone.
            if len(calls[path]) != 1 or _shares_parameters(built, path):
                continue
            call = calls[path][0]
            made = _first(call.returned)
            if not isinstance(made, torch.Tensor) or not call.inputs:
                continue
            if made.shape != call.inputs[0].shape:
                continue
            residual = _block(network, built, x, path, call)
            if residual:
                yield residual
            # Passes for later blocks need not compute this block again.
            put(built, path, Absent(block, made=call.returned))
    finally:
        for path, block in blocks.items():
            put(built, path, block)


def _block(
    network: UserNetwork, built: nn.Module, x: Sequence[torch.Tensor], path: str, call: _Call
) -> ResidualBlock | None:
    """Return a block if the network computes the same without it as with silent ends; it is then
    replaced by its absence."""
    block = built.get_submodule(path)
    ends = _find_ends(block, call.inputs, call.named)
    if not ends:
        return None
    with _multiplied(0, [block.get_submodule(end) for end in ends]):
        silent = network.forward(built, *x)
    outputs = len(call.returned) if isinstance(call.returned, tuple) else 0
    put(built, path, Absent(block, outputs))
    with suppress(ConfigError):  # the network cannot run without this block
        if alike(network.forward(built, *x), silent):
            paths = tuple(f"{path}.{end}".rstrip(".") for end in ends)
            return ResidualBlock(path, paths, outputs)
    return None


def _calls(
    network: UserNetwork, built: nn.Module, x: Sequence[torch.Tensor], paths: Sequence[str]
) -> dict[str, list[_Call]]:
    """Run a network; return the calls of each block."""
    calls: dict[str, list[_Call]] = {path: [] for path in paths}

    def note(path: str, _: nn.Module, inputs: Any, named: Any, output: Any) -> None:
        calls[path].append(_Call(copied(inputs), named, copied(output)))

    handles = []
    for path in paths:
        module = built.get_submodule(path)
        handles.append(module.register_forward_hook(partial(note, path), with_kwargs=True))
    with hooked(handles):
        network.forward(built, *x)
    return calls


def _shares_parameters(built: nn.Module, path: str) -> bool:
    """Return True if a block's parameters are used elsewhere, too, or if it has none."""
    inside = {id(parameter) for parameter in built.get_submodule(path).parameters()}
    if not inside:
        return True
    for name, parameter in built.named_parameters(remove_duplicate=False):
        if id(parameter) in inside and not name.startswith(f"{path}."):
            return True
    return False


def _find_ends(
    block: nn.Module, inputs: Sequence[Any], named: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return few, late layers of a block that make it the identity if they return zero; () if there
    are none."""
    called = _list_homogeneous(block, inputs, named)

    def is_identity(silent: Sequence[str]) -> bool:
        layers = [block.get_submodule(name) for name in silent]
        with _multiplied(0, layers), torch.no_grad():
            return alike(_first(block(*copied(inputs), **named)), inputs[0])

    if not is_identity(called):
        return ()
    # The first layers leave first, so that the last ones stay.
    ends = called
    for name in called:
        fewer = [end for end in ends if end != name]
        if is_identity(fewer):
            ends = fewer
    return tuple(ends)


def _list_homogeneous(
    block: nn.Module, inputs: Sequence[Any], named: Mapping[str, Any]
) -> list[str]:
    """Return the layers whose output is proportional to their parameters, in the order of calls."""
    called: list[str] = []

    def note(name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(layer, nn.MultiheadAttention):
            # Attention reads the weights of its last layer, and never calls it.
            end = f"{name}.out_proj".lstrip(".")
        elif _is_homogeneous(layer, inputs, output):
            end = name
        else:
            return
        if end not in called:
            called.append(end)

    handles = []
    for name, layer in block.named_modules():
        is_layer = bool(layer._parameters) and not any(layer.children())
        if is_layer or isinstance(layer, nn.MultiheadAttention):
            handles.append(layer.register_forward_hook(partial(note, name)))
    with hooked(handles), torch.no_grad():
        block(*copied(inputs), **named)
    return called


def _is_homogeneous(layer: nn.Module, inputs: Sequence[Any], output: torch.Tensor) -> bool:
    """Return True if a layer's output doubles with its parameters."""
    if not isinstance(output, torch.Tensor):
        return False
    try:
        with _multiplied(2, [layer]):
            doubled = type(layer).forward(layer, *copied(inputs))
            return alike(doubled, 2 * output)
    except Exception:  # a user's layer may need other arguments
        return False


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) and output else output


@contextmanager
def _multiplied(factor: int, layers: Sequence[nn.Module]) -> Iterator[None]:
    before = [(layer, dict(layer._parameters)) for layer in layers]
    try:
        for layer, values in before:
            for key, parameter in values.items():
                if parameter is not None:
                    # A product is no nn.Parameter, but a layer's forward takes it as well.
                    layer._parameters[key] = factor * parameter  # type: ignore[assignment]
        yield
    finally:
        for layer, values in before:
            layer._parameters.update(values)
