"""The naive oracle for plain modules: narrow modules cut out of the full one by hand, in one process.

It knows of no axes pattern, layout, transfer or store. What goes with which units is written down here, network by
network. From istmpi it takes the deals and the batches alone.
"""

from dataclasses import dataclass, field

import networks
import numpy as np
import torch
from batches import plain
from holders import HoldersMean, find_part, stream_of
from torch.nn import functional

from istmpi.data.sources import open_dataset
from istmpi.engine.partition import Partition
from istmpi.models.resnet import ResNet


@dataclass
class Oracle:
    """A network, written down: for the digits, by the widths that are dealt out."""

    make: object
    """Of the lengths of the dealt groups."""
    axes: dict
    """As `find_positions` has them, for each axis of a parameter; of what is not listed every rank has all."""
    sums: dict
    """Products that no batch normalisation follows, and the group that they sum over."""
    blocks: dict = field(default_factory=dict)
    """Of groups whose units are whole blocks the modules, in their order; a block adds what its ``end`` makes."""
    end: str = "convolutions.1"


def _deep_resnet(lengths):
    return ResNet((1, 8, 8), 10, blocks=(1, 5), channels=(4, 6), inner=(3, lengths.get("inner2", 5)))


def _resnet(lengths):
    inner = lengths["inner1"], lengths["inner2"]
    return ResNet((1, 8, 8), 10, blocks=(1, 2), channels=(4, 6), inner=inner, exits=(1,))


def _attention(lengths):
    return networks.Rows((1, 8, 8), 10, heads=lengths["heads"], head_dim=2, embed=6, hidden=lengths["hidden"], depth=1)


ORACLES = {
    "convolutional": Oracle(
        lambda lengths: networks.Convolutional(
            (1, 8, 8), 10, channels=(lengths["channels1"], lengths["channels2"]), hidden=lengths["hidden"]
        ),
        {
            "first.weight": ("channels1", None, None, None),
            "first.bias": ("channels1",),
            "norm.weight": ("channels1",),
            "norm.bias": ("channels1",),
            "second.weight": ("channels2", "channels1", None, None),
            "second.bias": ("channels2",),
            "dense.weight": ("hidden", (1, "channels2", 4)),  # four pixels are left of each channel
            "dense.bias": ("hidden",),
            "last.weight": (None, "hidden"),
        },
        {"second": "channels1", "dense": "channels2", "last": "hidden"},
    ),
    "attention": Oracle(
        _attention,
        {
            "qkv.0.weight": ((3, "heads", 2), None),
            "qkv.0.bias": ((3, "heads", 2),),
            "out.0.weight": (None, (1, "heads", 2)),
            "up.0.weight": ((2, "hidden", 1), None),
            "up.0.bias": ((2, "hidden", 1),),
            "down.0.weight": (None, "hidden"),
        },
        {"out.0": "heads", "down.0": "hidden"},
    ),
}
INNER = {"sections.0.0": "inner1", "sections.1.0": "inner2", "sections.1.1": "inner2"}
DEEP = [f"sections.1.{place}" for place in range(5)]
BLOCKS = {"blocks2": DEEP[1:]}
"""The first block of the section halves the image: every rank has it."""


def _resnet_oracle(make, groups, blocks=None):
    """Of a resnet, by the group within each block."""
    axes, sums = {}, {}
    for path, group in groups.items():
        axes |= {f"{path}.norms.1.weight": (group,), f"{path}.norms.1.bias": (group,)}
        axes[f"{path}.convolutions.0.weight"] = (group, None, None, None)
        axes[f"{path}.convolutions.1.weight"] = (None, group, None, None)
        sums[f"{path}.convolutions.1"] = group
    return Oracle(make, axes, sums, blocks or {})


ORACLES |= {
    "exits": _resnet_oracle(_resnet, INNER),
    "resnet by both": _resnet_oracle(_deep_resnet, dict.fromkeys(DEEP, "inner2"), BLOCKS),
}


def train(oracle, lengths, run, weights, ranks):
    """The full network's weights after all rounds of IST, and the mean loss of every round; ``lengths``: of groups."""
    data = open_dataset(run.data.source).train
    streams = [stream_of(run, data, rank, ranks) for rank in range(ranks)]
    losses = []
    everybodys = [name for name in weights if _is_everybodys(oracle, name)]
    own = [{name: weights[name].clone() for name in everybodys} for _ in range(ranks)]
    for round in range(run.train.rounds):
        deal = Partition.draw(lengths, tuple(lengths), ranks, run.train.seed, round)
        of_round, after = [], HoldersMean(weights)
        for rank in range(ranks):
            held = {name: deal.units[name][rank] for name in lengths}
            first = round * run.method.local_steps
            batches = [plain(streams[rank].at(first + step)) for step in range(run.method.local_steps)]
            trained = _local_steps(oracle, lengths, run, {**weights, **own[rank]}, held, ranks, batches, of_round)
            own[rank] = {name: trained.pop(name).clone() for name in everybodys}
            where = {name: find_part(oracle.axes.get(name), weights[name].shape, held, lengths) for name in trained}
            after.add(trained, where)
        means = {name: sum(one[name] for one in own) / ranks for name in everybodys}
        weights |= after.mean(weights) | means
        if (round + 1) % run.method.share_every == 0:
            for name in everybodys:
                weights[name] = means[name]
            own = [{name: weights[name].clone() for name in everybodys} for _ in range(ranks)]
        losses.append(float(np.mean(of_round)))
    return weights, losses


def _is_everybodys(oracle, name):
    """Whether a parameter is on every rank whole."""
    of_block = any(name.startswith(f"{path}.") for paths in oracle.blocks.values() for path in paths)
    return not of_block and all(axis is None for axis in oracle.axes.get(name, ()))


def _local_steps(oracle, lengths, run, weights, held, ranks, batches, losses):
    """A rank's weights after its local steps, on a narrow module."""
    counts = {name: len(units) for name, units in held.items()}
    narrow = oracle.make(counts).double().train()
    for group, paths in oracle.blocks.items():
        for number, path in enumerate(paths):
            holder, _, place = path.rpartition(".")
            if number not in held[group]:
                narrow.get_submodule(holder)[int(place)] = torch.nn.Identity()
            else:
                factor = len(paths) / ranks / counts[group]
                narrow.get_submodule(f"{path}.{oracle.end}").register_forward_hook(
                    lambda _, __, output, factor=factor: output * factor
                )
    for name, parameter in narrow.named_parameters():
        parameter.data = weights[name][find_part(oracle.axes.get(name), weights[name].shape, held, lengths)].clone()
    for name, group in oracle.sums.items():
        factor = lengths[group] / ranks / counts[group]  # as many as a rank has on average, of the mean
        if name in dict(narrow.named_modules()):
            narrow.get_submodule(name).register_forward_pre_hook(lambda _, inputs, factor=factor: (inputs[0] * factor,))
    velocity = {name: torch.zeros_like(parameter) for name, parameter in narrow.named_parameters()}
    for x, y in batches:
        outputs = narrow(torch.from_numpy(x).double().view(-1, 1, 8, 8))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = sum(
            weight * functional.cross_entropy(of_exit, torch.from_numpy(y))
            for weight, of_exit in zip(run.train.exit_weights or [1] * len(outputs), outputs, strict=True)
        )
        gradients = torch.autograd.grad(loss, list(narrow.parameters()))
        losses.append(float(loss.detach()))
        for (name, parameter), gradient in zip(narrow.named_parameters(), gradients):
            velocity[name].mul_(run.optimizer.momentum).add_(gradient)
            parameter.data -= run.optimizer.lr * velocity[name]
    return {name: parameter.detach() for name, parameter in narrow.named_parameters()}
