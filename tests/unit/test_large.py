"""Networks that no rank may hold: the table that few units give is the one that all units give."""

from dataclasses import fields

import networks
import pytest
from torch import nn

from istmpi.errors import ConfigError
from istmpi.inspection import large
from istmpi.inspection.examine import inspect
from istmpi.network.arguments import user_network


class Recurrent(nn.Module):
    def __init__(self, features, outputs, hidden=160):
        super().__init__()
        self.recurrent = nn.LSTM(features, hidden, batch_first=True)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.last(self.recurrent(x[:, None])[0][:, 0])


class Stacked(nn.Module):
    def __init__(self, features, outputs, hidden=132, depth=70):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.blocks = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.last(x)


CASES = {
    "convolutions": (networks.Convolutional, (1, 8, 8), {"channels": [96, 71], "hidden": 250}),
    "attention": (networks.Rows, (1, 8, 8), {"heads": 8, "head_dim": 16, "embed": 128, "hidden": 192}),
    "recurrent": (Recurrent, (6,), {}),
    "blocks": (Stacked, (6,), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_table_of_few_units_is_that_of_all(name, monkeypatch):
    kind, shape, settings = CASES[name]
    network = user_network("net.py:Net", shape, 10, settings, network=kind)
    expected = inspect(network)
    monkeypatch.setattr(kind, "LARGE", True, raising=False)
    built = []
    monkeypatch.setattr(type(network), "build", noting(type(network).build, built))
    table = large.inspected(network)
    for field in fields(table):
        assert getattr(table, field.name) == getattr(expected, field.name), field.name
    assert max(built) < sum(values.numel() for values in network.build().parameters())


def noting(build, sizes):
    def noted(network, lengths=None):
        module = build(network, lengths)
        sizes.append(sum(values.numel() for values in module.parameters() if not values.is_meta))
        return module

    return noted


class Computed(nn.Module):
    LARGE = True

    def __init__(self, features, outputs, hidden=160):
        super().__init__()
        self.first, self.last = nn.Linear(features, hidden), nn.Linear(hidden, outputs)
        nn.init.eye_(self.first.weight)

    def forward(self, x):
        return self.last(self.first(x).relu())


def test_values_that_need_the_whole_network_are_refused():
    with pytest.raises(ConfigError, match="LARGE = True, but its constructor computes the values of first.weight"):
        large.inspected(user_network("net.py:Net", (6,), 10, {}, network=Computed))
