"""The naive oracle for networks that multiply in their own way: functions of their weights, written by hand.

It knows of no axes pattern, layout, transfer, store or trace. A rank's subnet has the weights of its units; a sum over
units is as many times as large as a rank has units on average, over those that it has. The full network sums over all,
by the share of a rank.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from batches import plain
from holders import train_plainly
from torch.nn import functional

from istmpi.data.sources import open_for_training


@dataclass(frozen=True)
class Case:
    """A network of tests/networks: the widths that are dealt out, and which units lie on each axis."""

    network: str
    lengths: Mapping[str, int]
    axes: Mapping[str, tuple]
    """As `find_positions` has them, for each axis of a parameter. All ranks have what is not listed."""
    forward: Callable
    """``forward(weights, x, factor)``: the outputs; ``factor`` multiplies a sum over the units of a group."""


def lstm(weights, x, factor):
    state = memory = x.new_zeros(len(x), weights["last.weight"].shape[1])
    for step in x.unbind(1):
        gates = step @ weights["cell.weight_ih_l0"].T + weights["cell.bias_ih_l0"] + weights["cell.bias_hh_l0"]
        gates = gates + factor["hidden"] * (state @ weights["cell.weight_hh_l0"].T)
        enter, keep, new, leave = gates.chunk(4, dim=1)
        memory = torch.sigmoid(keep) * memory + torch.sigmoid(enter) * torch.tanh(new)
        state = torch.sigmoid(leave) * torch.tanh(memory)
    return factor["hidden"] * (state @ weights["last.weight"].T) + weights["last.bias"]


def dense_net(weights, x, factor):
    def product(name, *units):
        parts = torch.cat([x, *(factor["growth"] * part for part in units)], dim=1)
        return functional.conv2d(parts, weights[f"{name}.weight"], weights[f"{name}.bias"])

    first = product("first").relu()
    second = product("second", first).relu()
    return product("last", first, second).mean((2, 3))


GATES = (4, "hidden", 1)
CASES = {
    "lstm": Case(
        "recurrent_nets.Lstm",
        {"hidden": 13},
        {
            "cell.weight_ih_l0": (GATES, None),
            "cell.weight_hh_l0": (GATES, "hidden"),
            "cell.bias_ih_l0": (GATES,),
            "cell.bias_hh_l0": (GATES,),
            "last.weight": (None, "hidden"),
        },
        lstm,
    ),
    "growth": Case(
        "convolution_nets.DenseNet",
        {"growth": 13},
        {
            "first.weight": ("growth", None, None, None),
            "first.bias": ("growth",),
            "second.weight": ("growth", [2, "growth"], None, None),
            "second.bias": ("growth",),
            "last.weight": (None, [2, (2, "growth", 1)], None, None),
        },
        dense_net,
    ),
}


def train(case, run, weights, ranks):
    """The full network's weights after all rounds of IST with plain SGD, and the mean loss of each round."""

    def compute_loss(own, stream, step, factor):
        x, y = map(torch.from_numpy, plain(stream.at(step)))
        return functional.cross_entropy(case.forward(own, x.double().view(len(x), *data.shape), factor), y)

    data = open_for_training(run.data)
    return train_plainly(run, case.lengths, case.axes, data.train, weights, ranks, compute_loss)


def score(case, run, weights, ranks):
    """The mean loss of the full network on the test examples: it sums over all units, by the share of a rank."""
    data = open_for_training(run.data)
    x, y = map(torch.from_numpy, plain(data.test.batch(np.arange(len(data.test)))))
    factor = dict.fromkeys(case.lengths, 1 / ranks)
    outputs = case.forward(weights, x.double().view(len(x), *data.shape), factor)
    return float(functional.cross_entropy(outputs, y))
