"""A network of this folder as its class makes it, its units permuted and doubled, by code that knows no istmpi."""

import importlib.util
import inspect
import math
import re
import sys
from functools import cache
from pathlib import Path

import torch

from tests.networks.table import NODES, TOKENS

HERE = Path(__file__).parent


@cache
def module_of(stem):
    """A file of this folder, imported."""
    spec = importlib.util.spec_from_file_location(stem, HERE / f"{stem}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(stem, module)
    spec.loader.exec_module(module)
    return module


def widths_in(row):
    """The groups of a row that are no blocks, and some of which its network has."""
    return [group for group in row.dealt.split() if group not in row.blocks.split()]


def lengths_of(row):
    """The width of each argument, by its name in the table."""
    widths = {}
    for name, argument in inspect.signature(kind_of(row)).parameters.items():
        if isinstance(argument.default, int):
            widths[name] = argument.default
        elif isinstance(argument.default, tuple):
            widths |= {f"{name}{number}": width for number, width in enumerate(argument.default, 1)}
    return widths


def kind_of(row):
    module, _, name = row.network.partition(".")
    return getattr(module_of(module), name)


def plain(row, **changed):
    """The module as its class makes it, with other widths; small numbers are added to variances."""
    kind, widths = kind_of(row), {**lengths_of(row), **changed}
    facts = {"shape": row.shape, "features": row.shape[0], "outputs": row.outputs}
    arguments = {}
    for name, argument in inspect.signature(kind).parameters.items():
        if name in facts:
            arguments[name] = facts[name]
        elif isinstance(argument.default, tuple):
            arguments[name] = tuple(widths[f"{name}{number}"] for number in range(1, len(argument.default) + 1))
        elif name in widths:
            arguments[name] = widths[name]
    torch.manual_seed(0)
    return quiet(kind(**arguments).to(getattr(torch, row.dtype)))


def quiet(module):
    for part in module.modules():
        if isinstance(getattr(part, "eps", None), float):
            part.eps = 1e-12
    return module


def examples(row):
    """A batch, as the network takes it."""
    generator = torch.Generator().manual_seed(1)
    if row.shape == TOKENS:
        return (torch.randint(row.outputs, (4, *row.shape), generator=generator),)
    x = torch.randn(6, *row.shape, generator=generator, dtype=torch.float64).to(getattr(torch, row.dtype))
    if row.shape == NODES:
        return x, torch.tensor([0, 2, 3, 3, 5, 6, 7]), torch.tensor([1, 4, 0, 5, 2, 3, 0])
    return (x,)


def outputs_of(row, module, values, training=False):
    """All outputs side by side, with these values; buffers stay as they were."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.train(training)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            assert parameter.shape == values[name].shape, name
            parameter.copy_(values[name])
        torch.manual_seed(2)
        outputs = module(*examples(row))
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return torch.cat([one.flatten(1) for one in (outputs if isinstance(outputs, list) else [outputs])], dim=1)


def random_values(module):
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values.dtype) * 0.4
        for name, values in module.named_parameters()
    }


def factors(axis, lengths):
    """The factors of an axis, as pairs of a name, or an empty one, and a length; a block's own factor is none."""
    words = [word for word in axis.strip("()").split() if "[" not in word]
    return [(word, lengths[word]) if word in lengths else ("", int(word)) for word in words]


def selected(axes, values, group, lengths, order):
    """Values whose units of a group are others: those in ``order``, wherever the group stands among the axes."""
    for number, parts in enumerate(parts_of_axes(axes)):
        chosen, start = [], 0
        for part in parts:
            words = factors(part, lengths)
            positions = torch.arange(start, start + math.prod(length for _, length in words))
            start += len(positions)
            for at in [at for at, (name, _) in enumerate(words) if name == group]:
                outer, inner = (math.prod(length for _, length in some) for some in (words[:at], words[at + 1 :]))
                positions = positions.view(outer, -1, inner)[:, order].reshape(-1)
            chosen.append(positions)
        values = values.index_select(number, torch.cat(chosen))
    return values


def parts_of_axes(axes):
    """The parts that lie behind each other, for each axis."""
    parts, joins = [], False
    for text in re.findall(r"\([^)]*\)|\S+", axes):
        if text == "+":
            joins = True
        elif joins:
            parts[-1].append(text)
            joins = False
        else:
            parts.append([text])
    return parts


def with_units(table, values, group, order, lengths):
    """All values with other units of a group; a parameter that the table lacks, for it is frozen, has its own."""
    return {
        name: selected(table.parameters[name].axes, of_parameter, group, lengths, order)
        if name in table.parameters
        else of_parameter
        for name, of_parameter in values.items()
    }


def twinned(table, values, group, lengths):
    half = {**lengths, group: lengths[group] // 2}
    assert lengths[group] % 2 == 0, f"{group} must be even"
    return with_units(table, values, group, torch.arange(half[group]).repeat(2), half)
