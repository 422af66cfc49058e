"""What the naive oracles share: the batches of all ranks, what each holds, the mean over holders, and plain rounds.
From istmpi it takes the deals and the batches alone.
"""

import numpy as np
import torch

from istmpi.data.batches import Batches, place
from istmpi.engine.partition import Partition


def stream_of(run, split, rank, ranks):
    """The batches of a rank."""
    rows = place(run.data.placement, split.labels(), rank, ranks, run.train.seed, run.data.alpha)
    return Batches(split, rows, run.train.batch, run.train.seed, rank)


class HoldersMean:
    """The sum of what ranks hold of each value, and how many hold it."""

    def __init__(self, like):
        self._sums = {name: torch.zeros_like(values) for name, values in like.items()}
        self._counts = {name: torch.zeros_like(values) for name, values in like.items()}

    def add(self, held, where):
        """``held``: a rank's values by their names; ``where``: their positions among all."""
        for name, values in held.items():
            self._sums[name][where[name]] += values.detach()
            self._counts[name][where[name]] += 1

    def mean(self, stored):
        """The mean over the holders; what nobody held stays as it was stored."""
        return {
            name: torch.where(count > 0, self._sums[name] / count.clamp(min=1), stored[name])
            for name, count in self._counts.items()
        }


def find_positions(axis, length, held, lengths):
    """The positions that a rank has of an axis of a parameter: all where it is None, else those of a group's units.

    An axis is a group, ``(before, group, behind)`` where a unit has several positions, or a list of these and of
    numbers of other positions, which lie behind each other. ``held``: the units of a rank; ``lengths``: how many there
    are.
    """
    if axis is None:
        return np.arange(length)
    found, start = [], 0
    for part in axis if isinstance(axis, list) else [axis]:
        if isinstance(part, int):
            found += range(start, start + part)
            start += part
            continue
        before, group, behind = part if isinstance(part, tuple) else (1, part, 1)
        for block in range(before):
            for unit in held[group]:
                first = start + (block * lengths[group] + unit) * behind
                found += range(first, first + behind)
        start += before * lengths[group] * behind
    return np.array(found)


def find_part(axes, shape, held, lengths):
    """What a rank holds of a parameter, as an index; without axes it holds all."""
    axes = axes or (None,) * len(shape)
    return np.ix_(*(find_positions(axis, length, held, lengths) for axis, length in zip(axes, shape, strict=True)))


def train_plainly(run, lengths, axes, split, weights, ranks, compute_loss):
    """The full network's weights after all rounds of IST by plain SGD, and the mean loss of each round.

    ``axes``: of each parameter, as `find_positions` has them. ``compute_loss(own, stream, step, factor)``: of a rank's
    own weights for a batch; a sum over a group's units is multiplied by its factor, for a rank may have more or fewer.
    """
    streams = [Batches(split, np.arange(len(split)), run.train.batch, run.train.seed, rank) for rank in range(ranks)]
    carried = {name: torch.zeros_like(values) for name, values in weights.items()}
    steps, means = run.method.local_steps, []
    for round in range(run.train.rounds):
        deal = Partition.draw(lengths, tuple(lengths), ranks, run.train.seed, round, None, run.method.redeal)
        losses, after, speeds = [], HoldersMean(weights), HoldersMean(weights)
        for rank in range(ranks):
            held = {name: deal.units[name][rank] for name in lengths}
            where = {name: find_part(axes.get(name), values.shape, held, lengths) for name, values in weights.items()}
            own = {name: values[where[name]].clone().requires_grad_() for name, values in weights.items()}
            speed = {name: values[where[name]].clone() for name, values in carried.items()}
            factor = {name: lengths[name] / ranks / len(held[name]) for name in lengths}
            for step in range(round * steps, (round + 1) * steps):
                loss = compute_loss(own, streams[rank], step, factor)
                losses.append(float(loss.detach()))
                gradients = torch.autograd.grad(loss, list(own.values()))
                for (name, values), gradient in zip(own.items(), gradients):
                    change = gradient + run.optimizer.weight_decay * values.detach()
                    speed[name].mul_(run.optimizer.momentum).add_(change)
                    values.data -= run.optimizer.lr * speed[name]
            after.add(own, where)
            speeds.add(speed, where)
        weights = after.mean(weights)
        if run.method.optimizer_state == "carry":
            carried = speeds.mean(carried)
        means.append(float(np.mean(losses)))
    return weights, means
