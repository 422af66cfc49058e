"""The naive oracle for networks that multiply in their own way: full networks with masks, written by hand.

It knows of no axes pattern, layout, transfer, store or trace. A rank's subnet is the full network in which a unit that
the rank was not dealt contributes nothing; a sum over units is as many times as large as a rank has units on average,
over those that it has. The full network sums over all, by the share of a rank. From istmpi it takes the deals and the
batches alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from batches import plain
from holders import HoldersMean, stream_of
from torch.nn import functional

from istmpi.data.sources import open_for_training
from istmpi.engine.partition import Partition


@dataclass(frozen=True)
class Case:
    """A network of tests/networks: the widths that are dealt out, and which units lie on each axis."""

    network: str
    lengths: Mapping[str, int]
    axes: Mapping[str, tuple]
    """A group, or ``(before, group, behind)`` where a unit has several positions, or None, for each axis; a list of
    these, and of numbers of other positions, where they lie behind each other. All ranks have what is not listed."""
    forward: Callable
    """``forward(weights, x, held, factor)``: the outputs; ``held`` has one for each unit that is there, and ``factor``
    multiplies a sum over the units of a group."""


def lstm(weights, x, held, factor):
    there = held["hidden"]
    state = memory = x.new_zeros(len(x), len(there))
    for step in x.unbind(1):
        gates = step @ weights["cell.weight_ih_l0"].T + weights["cell.bias_ih_l0"] + weights["cell.bias_hh_l0"]
        gates = gates + factor["hidden"] * (state @ weights["cell.weight_hh_l0"].T)
        enter, keep, new, leave = gates.chunk(4, dim=1)
        memory = torch.sigmoid(keep) * memory + torch.sigmoid(enter) * torch.tanh(new)
        state = torch.sigmoid(leave) * torch.tanh(memory) * there
    return factor["hidden"] * (state @ weights["last.weight"].T) + weights["last.bias"]


def autoencoder(weights, x, held, factor):
    hidden = torch.tanh(x @ weights["first.weight"].T + weights["first.bias"]) * held["hidden"]
    code = torch.tanh(factor["hidden"] * (hidden @ weights["second.weight"].T) + weights["second.bias"]) * held["code"]
    back = torch.tanh(factor["code"] * (code @ weights["second.weight"])) * held["hidden"]
    return factor["hidden"] * (back @ weights["last.weight"].T) + weights["last.bias"]


def mixture(weights, x, held, factor):
    """The softmax is over the experts that are there, so that their sum is a mean, and not multiplied."""
    scores = x @ weights["gate.weight"].T + weights["gate.bias"]
    shares = torch.softmax(scores.masked_fill(held["experts"] == 0, -torch.inf), -1)
    outputs = 0
    for expert in range(shares.shape[1]):
        hidden = torch.relu(x @ weights["up"][expert]) * held["hidden"]
        outputs = outputs + shares[:, expert, None] * factor["hidden"] * (hidden @ weights["down"][expert])
    return outputs


def dense_net(weights, x, held, factor):
    there = held["growth"].view(-1, 1, 1)

    def product(name, *units):
        parts = torch.cat([x, *(factor["growth"] * part for part in units)], dim=1)
        return functional.conv2d(parts, weights[f"{name}.weight"], weights[f"{name}.bias"])

    first = product("first").relu() * there
    second = product("second", first).relu() * there
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
    "autoencoder": Case(
        "tied_nets.TiedAutoencoder",
        {"hidden": 13, "code": 11},
        {
            "first.weight": ("hidden", None),
            "first.bias": ("hidden",),
            "second.weight": ("code", "hidden"),
            "second.bias": ("code",),
            "last.weight": (None, "hidden"),
        },
        autoencoder,
    ),
    "mixture": Case(
        "expert_nets.SoftExperts",
        {"experts": 7, "hidden": 11},
        {
            "gate.weight": ("experts", None),
            "gate.bias": ("experts",),
            "up": ("experts", None, "hidden"),
            "down": ("experts", "hidden", None),
        },
        mixture,
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
    data = open_for_training(run.data).train
    streams = [stream_of(run, data, rank, ranks) for rank in range(ranks)]
    means, steps = [], run.method.local_steps
    for round in range(run.train.rounds):
        deal = Partition.draw(case.lengths, tuple(case.lengths), ranks, run.train.seed, round)
        losses, after = [], HoldersMean(weights)
        for rank in range(ranks):
            held = {name: torch.zeros(length, dtype=torch.float64) for name, length in case.lengths.items()}
            for name in held:
                held[name][torch.from_numpy(deal.units[name][rank])] = 1
            factor = {name: length / ranks / float(held[name].sum()) for name, length in case.lengths.items()}
            own = {name: values.clone().requires_grad_() for name, values in weights.items()}
            for step in range(round * steps, (round + 1) * steps):
                x, y = map(torch.from_numpy, plain(streams[rank].at(step)))
                x = x.double().view(len(x), *data_shape(run))
                loss = functional.cross_entropy(case.forward(own, x, held, factor), y)
                losses.append(float(loss.detach()))
                for values, gradient in zip(own.values(), torch.autograd.grad(loss, list(own.values()))):
                    values.data -= run.optimizer.lr * gradient
            there = {name: mask(case.axes.get(name, ()), values.shape, held) > 0 for name, values in own.items()}
            after.add({name: values[there[name]] for name, values in own.items()}, there)
        weights = after.mean(weights)
        means.append(float(np.mean(losses)))
    return weights, means


def score(case, run, weights, ranks):
    """The mean loss of the full network on the test examples: it sums over all units, by the share of a rank."""
    test = open_for_training(run.data).test
    x, y = map(torch.from_numpy, plain(test.batch(np.arange(len(test)))))
    everything = {name: torch.ones(length, dtype=torch.float64) for name, length in case.lengths.items()}
    outputs = case.forward(weights, x.double().view(len(x), *data_shape(run)), everything, shares(case, ranks))
    return float(functional.cross_entropy(outputs, y))


def shares(case, ranks):
    return dict.fromkeys(case.lengths, 1 / ranks)


def data_shape(run):
    return tuple(open_for_training(run.data).shape)


def mask(axes, shape, held):
    """One for each element of a parameter that a rank holds."""
    there = torch.ones(shape, dtype=torch.float64)
    for number, axis in enumerate(axes):
        if axis is not None:
            along = []
            for part in axis if isinstance(axis, list) else [axis]:
                before, group, behind = part if isinstance(part, tuple) else (1, part, 1)
                of_part = torch.ones(part).double() if isinstance(part, int) else held[group].repeat_interleave(behind)
                along.append(of_part.repeat(before))
            along = torch.cat(along)
            there = there * along.view(*(-1 if place == number else 1 for place in range(len(shape))))
    return there
