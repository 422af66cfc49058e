"""The naive oracle for a network of one's own: narrow modules cut out of the full one by hand, in one process.

It knows of no axes pattern, layout, transfer or store. What goes with which units is written down here for one network,
`networks.Convolutional`. From istmpi it takes the deals and the batches alone.
"""

import networks
import numpy as np
import torch
from batches import plain
from torch.nn import functional

from istmpi.data.batches import Batches
from istmpi.data.placement import place
from istmpi.data.sources import open_dataset
from istmpi.engine.partition import Partition

AXES = {
    "first.weight": ("channels1", None, None, None),
    "first.bias": ("channels1",),
    "norm.weight": ("channels1",),
    "norm.bias": ("channels1",),
    "second.weight": ("channels2", "channels1", None, None),
    "second.bias": ("channels2",),
    "dense.weight": ("hidden", "pixels"),
    "dense.bias": ("hidden",),
    "last.weight": (None, "hidden"),
    "last.bias": (None,),
}
"""The units that go with each axis; the pixels behind the second pooling are four for each of channels2."""
SUMS = {"second": "channels1", "dense": "channels2", "last": "hidden"}
"""Products that no batch normalisation follows."""


def train_convolutional(run, weights, ranks):
    """The full network's weights after all rounds of IST, and the mean loss of every round."""
    channels1, channels2 = run.model.arguments["channels"]
    lengths = {"channels1": channels1, "channels2": channels2, "hidden": run.model.arguments["hidden"]}
    train = open_dataset(run.data.source).train
    stream = [
        Batches(
            train,
            place(run.data.placement, train.labels(), rank, ranks, run.train.seed, run.data.alpha),
            run.train.batch,
            run.train.seed,
            rank,
        )
        for rank in range(ranks)
    ]
    losses = []
    for round in range(run.train.rounds):
        deal = Partition.draw(lengths, tuple(lengths), ranks, run.train.seed, round, None, 1.0)
        total = {name: torch.zeros_like(values) for name, values in weights.items()}
        count = {name: torch.zeros_like(values) for name, values in weights.items()}
        of_round = []
        for rank in range(ranks):
            held = {name: deal.units[name][rank] for name in lengths}
            first = round * run.method.local_steps
            batches = [plain(stream[rank].at(first + step)) for step in range(run.method.local_steps)]
            trained = _local_steps(run, weights, lengths, held, ranks, batches, of_round)
            for name, values in trained.items():
                where = _where(name, weights[name], held)
                total[name][where] += values
                count[name][where] += 1
        for name, values in weights.items():
            values.copy_(torch.where(count[name] > 0, total[name] / count[name].clamp(min=1), values))
        losses.append(float(np.mean(of_round)))
    return weights, losses


def _where(name, values, held):
    """What a rank holds of a parameter, as an index."""
    pixels = np.concatenate([4 * held["channels2"][:, None] + np.arange(4)]).ravel()
    chosen = {**held, "pixels": pixels}
    return np.ix_(
        *(np.arange(length) if axis is None else chosen[axis] for axis, length in zip(AXES[name], values.shape))
    )


def _local_steps(run, weights, lengths, held, ranks, batches, losses):
    """A rank's weights after its local steps, on a narrow module."""
    counts = {name: len(units) for name, units in held.items()}
    channels = [counts["channels1"], counts["channels2"]]
    narrow = networks.Convolutional((1, 8, 8), 10, channels=channels, hidden=counts["hidden"]).double().train()
    for name, parameter in narrow.named_parameters():
        parameter.data = weights[name][_where(name, weights[name], held)].clone()
    for name, group in SUMS.items():
        factor = lengths[group] / ranks / counts[group]  # as many as a rank has on average, of the mean
        narrow.get_submodule(name).register_forward_pre_hook(lambda _, inputs, factor=factor: (inputs[0] * factor,))
    velocity = {name: torch.zeros_like(parameter) for name, parameter in narrow.named_parameters()}
    for x, y in batches:
        loss = functional.cross_entropy(narrow(torch.from_numpy(x).double().view(-1, 1, 8, 8)), torch.from_numpy(y))
        gradients = torch.autograd.grad(loss, list(narrow.parameters()))
        losses.append(float(loss.detach()))
        for (name, parameter), gradient in zip(narrow.named_parameters(), gradients):
            velocity[name].mul_(run.optimizer.momentum).add_(gradient)
            parameter.data -= run.optimizer.lr * velocity[name]
    return {name: parameter.detach() for name, parameter in narrow.named_parameters()}
