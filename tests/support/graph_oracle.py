"""The naive oracle of GIST: dense matrices and masks, every rank's subnet trained in one process.

From istmpi it takes the deals and the batches alone.
"""

import numpy as np
import torch
from graphs import naive_logits
from holders import HoldersMean
from torch.nn import functional

from istmpi.data.batches import Batches
from istmpi.engine.partition import Partition


def axes(name, layers):
    """The unit groups of a parameter's axes, None for features and classes."""
    number = int(name.split(".")[1])
    group = [None, *(f"hidden{n}" for n in range(1, layers)), None]
    return (group[number + 1],) if name.endswith("bias") else (group[number + 1], group[number])


def loss_of(outputs, targets):
    """The mean over the nodes that have a target."""
    if targets.ndim == 1:
        on = targets >= 0
        return functional.cross_entropy(outputs[on], targets[on]) if on.any() else outputs.sum() * 0
    on = targets[:, 0] >= 0
    return functional.binary_cross_entropy_with_logits(outputs[on], targets[on].double())


def train(run, lengths, split, weights, ranks):
    """The full network's weights after all rounds of IST, and the mean loss of every round."""
    streams = [Batches(split, np.arange(len(split)), run.train.batch, run.train.seed, rank) for rank in range(ranks)]
    steps, means, layers = run.method.local_steps, [], len(lengths) + 1
    for round in range(run.train.rounds):
        deal = Partition.draw(lengths, tuple(lengths), ranks, run.train.seed, round, None, run.method.redeal)
        losses, after = [], HoldersMean(weights)
        for rank in range(ranks):
            held = {name: deal.units[name][rank] for name in lengths}
            where = {
                name: np.ix_(
                    *(np.arange(n) if of is None else held[of] for of, n in zip(axes(name, layers), values.shape))
                )
                for name, values in weights.items()
            }
            own = {name: values[where[name]].clone().requires_grad_() for name, values in weights.items()}
            scale = {name: lengths[name] / ranks / len(held[name]) for name in lengths}
            for step in range(round * steps, (round + 1) * steps):
                batch = streams[rank].at(step)
                loss = loss_of(naive_logits(run.model.name, own, batch.inputs, scale), batch.targets)
                losses.append(float(loss.detach()))
                for values, gradient in zip(own.values(), torch.autograd.grad(loss, list(own.values()))):
                    values.data -= run.optimizer.lr * gradient
            after.add(own, where)
        weights = after.mean(weights)
        means.append(float(np.mean(losses)))
    return weights, means
