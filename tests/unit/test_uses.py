"""Sums over units, wherever a network takes them, have the factor that makes them as large as in a subnet.

The law: a full network whose units are copies of a subnet's computes the same as the subnet, for the share of the
units that a subnet has is the factor of every sum over them. A sum that is missed is as many times too large as there
are copies; a mean that is scaled is as many times too small. Networks of the corpus are held to it in test_networks.py.
"""

from pathlib import Path

import pytest
import torch
import using_networks

from istmpi.inspection.examine import inspect
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network

FILE = Path(using_networks.__file__)
COPIES = 2
NETWORKS = [name for name, kind in vars(using_networks).items() if getattr(kind, "__module__", "") == "using_networks"]


def network_of(name):
    code = user_network(f"{FILE}:{name}", (8,), 6, {})
    return Architecture(code.name, inspect(code), "float64", code)


def copied(network, module, subnet, lengths):
    """Give the full network the values of a subnet, as many times along each dealt axis as it has copies of it."""
    for name, parameter in module.named_parameters():
        values = subnet.get_parameter(name).detach()
        for place, axis in enumerate(network.parameters[name].pattern.axes):
            before = 1
            for factor in axis.factors:
                count = factor.literal if factor.name is None else lengths[factor.name]
                if factor.name in network.default_groups:
                    shape = values.shape
                    inner = shape[place] // (before * count)
                    split = values.reshape(*shape[:place], before, count, inner, *shape[place + 1 :])
                    split = torch.cat([split] * COPIES, dim=place + 1)
                    values = split.reshape(*shape[:place], -1, *shape[place + 1 :])
                    count *= COPIES
                before *= count
        parameter.data = values.contiguous()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_copies_computes_what_the_subnet_does(name):
    network = network_of(name)
    assert network.default_groups == getattr(using_networks, name).DEALS
    assert not network.table.unscaled
    lengths = {
        key: length // COPIES if key in network.default_groups else length for key, length in network.lengths.items()
    }
    scale = dict.fromkeys(network.default_groups, 1 / COPIES)
    subnet, full = network.build(lengths), network.build(network.lengths, scale)
    generator = torch.Generator().manual_seed(0)
    for parameter in subnet.parameters():
        parameter.data = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.3
    copied(network, full, subnet, lengths)
    x = network.code.examples(4, torch.float64)
    for training in (False, True):
        outputs = [module.train(training)(*x) for module in (subnet, full)]
        torch.testing.assert_close(*outputs)
        target = torch.randn(outputs[0].shape, generator=generator, dtype=torch.float64)
        for module, made in zip((subnet, full), outputs):
            module.zero_grad()
            (made * target).sum().backward()
        # What each copy contributes to a gradient adds up to the subnet's, and is the same for all.
        for name, parameter in subnet.named_parameters():
            whole = full.get_parameter(name).grad
            if parameter.grad is not None and parameter.grad.abs().max() > 0:
                assert whole.sum().item() == pytest.approx(parameter.grad.sum().item(), rel=1e-9, abs=1e-12), name
