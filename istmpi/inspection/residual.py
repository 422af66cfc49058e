"""Finds blocks of a network that can be dealt out whole (ResIST, arXiv 2107.00961), by doubling and
a test.

A block is residual if it returns its input when some of its layers, its *ends*, return zero. The
network must compute the same with such silent ends as without the block.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.network.absent import Absent, copied, put
from istmpi.network.leaves import shaped
from istmpi.network.running import run_examples
from istmpi.network.table import ResidualBlock
from istmpi.network.trials import alike, few, hooked, random_values
from istmpi.network.user import UserNetwork, Width

EXAMPLES = 3


def residual_blocks(
    network: UserNetwork, width: Width, lengths: Mapping[str, int], full: nn.Module
) -> tuple[tuple[ResidualBlock, ...], str]:
    """Return the residual blocks that ``width`` counts, and the problem if there are none. May
    overwrite ``full``."""
    before, after = (_lists(network, {width.name: times * width.length}) for times in (1, 2))
    grown = [path for path in before if after.get(path, 0) > before[path]]
    if len(grown) != 1:
        return (), "it changes which parameters exist, but does not count a list of modules"
    path = grown[0]
    for tried in (few(lengths), {}):
        try:
            built = network.build(tried) if tried else full
            for name, values in random_values(built, torch.Generator().manual_seed(0)).items():
                built.get_parameter(name).data = values
            x, _ = run_examples(network, built, EXAMPLES, partial(network.forward, built.eval()))
            blocks = tuple(
                _residual(network, built, x, [f"{path}.{number}" for number in range(before[path])])
            )
        except ConfigError:
            continue
        return blocks, "" if blocks else f"it counts the modules of {path}, which are not residual"
    return (), f"it counts the modules of {path}, but the network cannot run"


def _lists(network: UserNetwork, lengths: Mapping[str, int]) -> dict[str, int]:
    modules = shaped(lambda: network.build(lengths)).named_modules()
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
            if len(calls[path]) != 1 or _shares_parameters(built, path):
                continue
            inputs, named, returned = calls[path][0]
            made = _first(returned)
            outputs = len(returned) if isinstance(returned, tuple) else 0
            if not inputs or not isinstance(made, torch.Tensor) or made.shape != inputs[0].shape:
                continue
            ends = _ends(block, inputs, named)
            if ends:
                with _times(0, [block.get_submodule(end) for end in ends]):
                    silent = network.forward(built, *x)
                put(built, path, Absent(block, outputs))
                with suppress(ConfigError):  # the network cannot run without this block
                    if alike(network.forward(built, *x), silent):
                        yield ResidualBlock(
                            path, tuple(f"{path}.{end}".rstrip(".") for end in ends), outputs
                        )
            put(
                built, path, Absent(block, made=returned)
            )  # passes for later blocks need not compute it again
    finally:
        for path, block in blocks.items():
            put(built, path, block)


def _calls(
    network: UserNetwork, built: nn.Module, x: Sequence[torch.Tensor], paths: Sequence[str]
) -> dict[str, list[Any]]:
    calls: dict[str, list[Any]] = {path: [] for path in paths}

    def note(path: str, _: nn.Module, inputs: Any, named: Any, output: Any) -> None:
        calls[path].append((copied(inputs), named, copied(output)))

    modules = {path: built.get_submodule(path) for path in paths}
    with hooked(
        it.register_forward_hook(partial(note, path), with_kwargs=True)
        for path, it in modules.items()
    ):
        network.forward(built, *x)
    return calls


def _shares_parameters(built: nn.Module, path: str) -> bool:
    inside = {id(parameter) for parameter in built.get_submodule(path).parameters()}
    every = built.named_parameters(remove_duplicate=False)
    return not inside or any(
        id(parameter) in inside for name, parameter in every if not name.startswith(f"{path}.")
    )


def _ends(block: nn.Module, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[str, ...]:
    """Return few, late layers of a block that make it the identity if they return zero; () if there
    are none."""
    called: list[str] = []
    attentions = {
        name: part
        for name, part in block.named_modules()
        if isinstance(part, nn.MultiheadAttention)
    }
    layers = {
        name: layer
        for name, layer in block.named_modules()
        if layer._parameters and not any(layer.children())
    }

    def note(name: str, layer: nn.Module, inputs: Any, output: Any) -> None:
        # Attention reads the weights of its last layer, and never calls it.
        end = f"{name}.out_proj".lstrip(".") if name in attentions else name
        if end not in called and (end != name or _is_homogeneous(layer, inputs, output)):
            called.append(end)

    noted = (layers | attentions).items()
    with (
        hooked(layer.register_forward_hook(partial(note, name)) for name, layer in noted),
        torch.no_grad(),
    ):
        block(*copied(inputs), **named)

    def is_identity(silent: Sequence[str]) -> bool:
        with _times(0, [layers[name] for name in silent]), torch.no_grad():
            return alike(_first(block(*copied(inputs), **named)), inputs[0])

    if not is_identity(called):
        return ()
    ends = called
    for name in called:
        fewer = [end for end in ends if end != name]
        if is_identity(fewer):
            ends = fewer
    return tuple(ends)


def _is_homogeneous(layer: nn.Module, inputs: Sequence[Any], output: torch.Tensor) -> bool:
    try:
        with _times(2, [layer]):
            return isinstance(output, torch.Tensor) and alike(
                type(layer).forward(layer, *copied(inputs)), 2 * output
            )
    except Exception:  # a user's layer may need other arguments
        return False


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) and output else output


@contextmanager
def _times(factor: int, layers: Sequence[nn.Module]) -> Iterator[None]:
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
