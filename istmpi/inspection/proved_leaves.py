"""Proves which layers of a network can compute with a part of their weight's rows."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.inspection.tracing import EXAMPLES
from istmpi.network.leaves import Elsewhere, find_leaves, list_candidates, prepare, without_values
from istmpi.network.norms import build_module
from istmpi.network.running import run_short
from istmpi.network.trials import few, one_thread, seeded
from istmpi.network.user import UserNetwork

Leaves = dict[str, tuple[str, ...]]
"""The parameters' names of each leaf."""


def prove_leaves(
    network: UserNetwork, lengths: Mapping[str, int], full: nn.Module | None = None
) -> Leaves:
    """Return the layers, with their parameters' names, whose results do not depend on where their
    weights' rows are.

    A small network is tried, or the full network if the small one fails. A layer has its weight
    only during its call. All bits of the outputs must equal the ordinary network's. A layer is left
    out if others read its weight.
    """
    for tried in (few(lengths), lengths):
        with suppress(ConfigError), one_thread():
            module = full if full and tried == lengths else build_module(network, tried)
            return _prove(network, tried, module.eval())
    return {}


def _prove(network: UserNetwork, lengths: Mapping[str, int], plain: nn.Module) -> Leaves:
    """Return the leaves of the built network ``plain``. Overwrites its values."""
    generator = torch.Generator().manual_seed(0)
    values = {}
    for name, parameter in plain.named_parameters():
        # A constructor may set zeros, with which a wrong leaf would show nothing.
        drawn = torch.empty_like(parameter.detach()).uniform_(-1, 1, generator=generator)
        parameter.data = values[name] = drawn
    with seeded():
        examples = network.examples(EXAMPLES, torch.get_default_dtype())
        x, expected = run_short(network, examples, partial(network.forward, plain))
    leaves = list_candidates(plain)
    while leaves:
        outputs, read = _run_with_leaves(network, lengths, values, leaves, x)
        if not read:
            if outputs is None:
                return {}
            same = torch.equal(outputs.nan_to_num(), expected.nan_to_num())
            return leaves if same else {}
        # With fewer leaves the next pass may come further, and read others.
        leaves = {path: names for path, names in leaves.items() if read.isdisjoint(names)}
    return {}


def _run_with_leaves(
    network: UserNetwork,
    lengths: Mapping[str, int],
    values: Mapping[str, torch.Tensor],
    leaves: Leaves,
    x: tuple[torch.Tensor, ...],
) -> tuple[torch.Tensor | None, set[str]]:
    """Return the outputs (None if the pass fails), and the parameters that were read outside their
    layers."""
    outputs = None
    elsewhere: set[str] = set()
    for names in leaves.values():
        elsewhere.update(names)
    try:
        with without_values():
            module = build_module(network, lengths).eval()
        for name, parameter in prepare(module, elsewhere).items():
            parameter.data = values[name]
        for leaf in find_leaves(module, leaves).values():
            parameters = {key: values[name] for key, name in leaf.names.items()}
            leaf.replace(partial(leaf.whole, parameters))
    except Exception:  # a user's constructor may not accept such parameters
        return None, set()
    with suppress(ConfigError), seeded():
        outputs = network.forward(module, *x)
    read: set[str] = set()
    for part in module.modules():
        for placeholder in part._parameters.values():
            if isinstance(placeholder, Elsewhere) and placeholder.read:
                read.add(placeholder.name)
    return outputs, read
