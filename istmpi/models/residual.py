"""Blocks of a network that can be dealt out whole (ResIST, arXiv 2107.00961): found by doubling their number, proved.

An integer of the constructor that counts the modules of a list has the residual blocks among them as its units. A block
is residual where its input comes out as it went in when some of its layers, its *ends*, make nothing: what they make is
what it adds. The network must then compute the same whether the ends of a block are silent or the block is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.models.blocks import ResidualBlock
from istmpi.models.leaves import without_values
from istmpi.models.proof import EXAMPLES, alike, random_values
from istmpi.models.user import UserNetwork, Width

UNITS = 4
"""Of each width in the network that is tried, where the constructor takes so few."""


class Absent(nn.Module):
    """In place of a block that a rank does not hold: the identity."""

    def forward(self, x: Any, *others: Any, **named: Any) -> Any:
        """The block's first argument, as it came."""
        return x


def put(network: nn.Module, path: str, module: nn.Module) -> None:
    """Let a network have another module in this place."""
    holder, _, key = path.rpartition(".")
    network.get_submodule(holder)._modules[key] = module


def residual_blocks(
    network: UserNetwork, width: Width, lengths: Mapping[str, int]
) -> tuple[tuple[ResidualBlock, ...], str]:
    """The residual blocks that an integer of the constructor counts, or what is wrong.

    ``lengths``: of the widths that can be dealt out, which are tried at few units.
    """
    before, after = (_lists(network, {width.name: times * width.length}) for times in (1, 2))
    grown = [path for path in before if after.get(path, 0) > before[path]]
    if len(grown) != 1:
        return (), "it decides which parameters there are, and counts no list of modules"
    path, small = grown[0], {name: min(UNITS, length) for name, length in lengths.items()}
    for tried in (small, {}):
        try:
            built = network.build(tried).double().eval()
            x = network.examples(EXAMPLES, torch.float64)
            for name, values in random_values(built, torch.Generator().manual_seed(0)).items():
                built.get_parameter(name).data = values
            found = tuple(_residual(network, built, x, [f"{path}.{number}" for number in range(before[path])]))
        except ConfigError:
            continue
        return found, "" if found else f"it counts the modules of {path}, none of which adds something to its input"
    return (), f"it counts the modules of {path}, and the network cannot be run"


def _lists(network: UserNetwork, lengths: Mapping[str, int]) -> dict[str, int]:
    with without_values():
        built = network.build(lengths)
    kinds = nn.Sequential, nn.ModuleList
    return {path: len(module) for path, module in built.named_modules() if isinstance(module, kinds)}


def _residual(
    network: UserNetwork, built: nn.Module, x: Sequence[torch.Tensor], paths: Sequence[str]
) -> Iterator[ResidualBlock]:
    """Those modules of a network that are residual blocks."""
    calls = _calls(network, built, x, paths)
    for path in paths:
        block = built.get_submodule(path)
        if len(calls[path]) != 1 or _shares_parameters(built, path):
            continue
        inputs, named, made = calls[path][0]
        if not inputs or not isinstance(made, torch.Tensor) or made.shape != inputs[0].shape:
            continue
        ends = _ends(block, inputs, named)
        if ends:
            with _silent(block.get_submodule(end) for end in ends):
                silent = network.forward(built, *x)
            put(built, path, Absent())
            try:
                without = network.forward(built, *x)
            finally:
                put(built, path, block)
            if alike(without, silent):
                yield ResidualBlock(path, tuple(f"{path}.{end}".rstrip(".") for end in ends))


def _calls(
    network: UserNetwork, built: nn.Module, x: Sequence[torch.Tensor], paths: Sequence[str]
) -> dict[str, list[Any]]:
    """Of each module what it was called with, and what it made, in a forward pass."""
    calls: dict[str, list[Any]] = {path: [] for path in paths}

    def note(path: str, inputs: Any, named: Any) -> None:
        copied = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        calls[path].append([copied, named, None])

    def made(path: str, output: Any) -> None:
        calls[path][-1][2] = output

    handles = []
    for path in paths:
        module = built.get_submodule(path)
        handles += [
            module.register_forward_pre_hook(
                lambda _, inputs, named, path=path: note(path, inputs, named), with_kwargs=True
            ),
            module.register_forward_hook(lambda _, __, output, path=path: made(path, output)),
        ]
    try:
        network.forward(built, *x)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _shares_parameters(built: nn.Module, path: str) -> bool:
    """Whether a module's parameters are others', too; or it has none."""
    own = {id(parameter) for parameter in built.get_submodule(path).parameters()}
    others = (
        parameter
        for name, parameter in built.named_parameters(remove_duplicate=False)
        if not name.startswith(f"{path}.")
    )
    return not own or any(id(parameter) in own for parameter in others)


def _ends(block: nn.Module, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[str, ...]:
    """As few layers of a block as must be silent, the last ones, for its input to come out; none where that cannot be.

    By their names in the block: the empty one is the block itself.
    """
    called: list[str] = []
    layers = {name: layer for name, layer in block.named_modules() if layer._parameters and not any(layer.children())}

    def note(name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and name not in called and _is_homogeneous(layer, inputs, output):
            called.append(name)

    hooks = [
        layer.register_forward_hook(lambda layer, inputs, output, name=name: note(name, layer, inputs, output))
        for name, layer in layers.items()
    ]
    with torch.no_grad():
        block(*_copied(inputs), **named)
    for hook in hooks:
        hook.remove()
    ends = list(dict.fromkeys(called))

    def is_identity(silent: Sequence[str]) -> bool:
        with _silent(layers[name] for name in silent), torch.no_grad():
            return alike(block(*_copied(inputs), **named), inputs[0])

    if not is_identity(ends):
        return ()
    for name in list(ends):
        fewer = [one for one in ends if one != name]
        if is_identity(fewer):
            ends = fewer
    return tuple(ends)


def _is_homogeneous(layer: nn.Module, inputs: Sequence[Any], output: torch.Tensor) -> bool:
    """Whether a layer makes twice as much with twice its parameters."""
    values = dict(layer._parameters)
    try:
        for name, parameter in values.items():
            layer._parameters[name] = parameter if parameter is None else 2 * parameter
        return alike(type(layer).forward(layer, *_copied(inputs)), 2 * output)
    except Exception:  # of somebody else's layer, which was called in another way
        return False
    finally:
        layer._parameters.update(values)


def _copied(inputs: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]


@contextmanager
def _silent(layers: Iterator[nn.Module]) -> Iterator[None]:
    """These layers make nothing."""
    hooks = [layer.register_forward_hook(lambda _, __, output: torch.zeros_like(output)) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
