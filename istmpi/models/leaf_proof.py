"""The layers of a network that may be leaves: tried on a small network.

Each leaf has its weight only while it is called itself, and the outputs must be, to the last bit, those of the network
as its constructor makes it. Layers of a weight that is read elsewhere are no leaves.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from istmpi.errors import ConfigError
from istmpi.models.leaves import Elsewhere, candidates, leaves_of, prepare, without_values
from istmpi.models.norms import built
from istmpi.models.trials import few, one_thread, seeded, shortly
from istmpi.models.user import UserNetwork

EXAMPLES = 2

Leaves = dict[str, tuple[str, ...]]


def proved_leaves(network: UserNetwork, lengths: Mapping[str, int], full: nn.Module | None = None) -> Leaves:
    """The layers, with the names of their parameters, that compute alike wherever their rows lie."""
    for tried in (few(lengths), lengths):
        try:
            with one_thread():
                return _proved(network, tried, full if tried == lengths else None)
        except ConfigError:
            continue
    return {}


def _proved(network: UserNetwork, lengths: Mapping[str, int], real: nn.Module | None) -> Leaves:
    real = (real or built(network, lengths)).eval()
    leaves, generator = candidates(real), torch.Generator().manual_seed(0)
    values = {}
    for name, parameter in real.named_parameters():
        values[name] = torch.empty_like(parameter.detach()).uniform_(-1, 1, generator=generator)
        parameter.data = values[name]
    with seeded():
        examples = network.examples(EXAMPLES, torch.get_default_dtype())
        x, expected = shortly(network, examples, partial(network.forward, real))
    while leaves:
        outputs, read = _tried(network, lengths, values, leaves, x)
        if not read:
            same = outputs is not None and torch.equal(outputs.nan_to_num(), expected.nan_to_num())
            return leaves if same else {}
        leaves = {path: names for path, names in leaves.items() if read.isdisjoint(names)}
    return {}


def _tried(
    network: UserNetwork,
    lengths: Mapping[str, int],
    values: Mapping[str, torch.Tensor],
    leaves: Leaves,
    x: tuple[torch.Tensor, ...],
) -> tuple[torch.Tensor | None, set[str]]:
    """The outputs, None where it fails; and the parameters that were read elsewhere."""
    try:
        with without_values():
            module = built(network, lengths).eval()
        elsewhere = {name for names in leaves.values() for name in names}
        for name, parameter in prepare(module, elsewhere).items():
            parameter.data = values[name]
        for leaf in leaves_of(module, leaves).values():
            leaf.replace(partial(leaf.whole, {key: values[name] for key, name in leaf.names.items()}))
    except Exception:  # a constructor of somebody else's, with parameters that it did not expect
        return None, set()
    outputs = None
    with seeded():
        try:
            outputs = network.forward(module, *x)
        except ConfigError:
            pass
    parameters = (parameter for part in module.modules() for parameter in part._parameters.values())
    return outputs, {parameter.name for parameter in parameters if isinstance(parameter, Elsewhere) and parameter.read}
