"""The naive oracle for sparse rows: dense matrices, all logits, every weight touched in every step, in one process.

From istmpi it takes the deals and the batches' rows alone.
"""

import numpy as np
import torch
from holders import HoldersMean
from sparse_rows import dense
from torch.nn import functional

from istmpi.data.batches import Batches
from istmpi.engine.partition import Partition

AXES = {
    "bag.weight": (None, "hidden1"),
    "bias": ("hidden1",),
    "hidden.0.weight": ("hidden2", "hidden1"),
    "hidden.0.bias": ("hidden2",),
    "norms.0.weight": ("hidden1",),
    "norms.0.bias": ("hidden1",),
    "norms.1.weight": ("hidden2",),
    "norms.1.bias": ("hidden2",),
    "output.weight": (None, "hidden2"),
    "output.bias": (None,),
}


def logits(weights, x, scale, batch_norm):
    """Of dense rows; ``scale`` multiplies what units contribute to a sum."""
    h = x @ weights["bag.weight"] + weights["bias"]
    if batch_norm:
        h = functional.batch_norm(h, None, None, weights["norms.0.weight"], weights["norms.0.bias"], training=True)
    h = h.relu()
    h = h * (1 if batch_norm else scale["hidden1"]) @ weights["hidden.0.weight"].T + weights["hidden.0.bias"]
    if batch_norm:
        h = functional.batch_norm(h, None, None, weights["norms.1.weight"], weights["norms.1.bias"], training=True)
    return h.relu() * scale["hidden2"] @ weights["output.weight"].T + weights["output.bias"]


def losses(outputs, y, loss):
    """Of dense targets of zeros and ones."""
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(outputs, y, reduction="none").sum(dim=1)
    return -(y / y.sum(dim=1, keepdim=True) * outputs.log_softmax(dim=1)).sum(dim=1)


def train(run, lengths, split, weights, ranks):
    """The full network's weights after all rounds of IST, and the mean loss of every round."""
    streams = [Batches(split, np.arange(len(split)), run.train.batch, run.train.seed, rank) for rank in range(ranks)]
    carried = {name: torch.zeros_like(values) for name, values in weights.items()}
    steps, means = run.method.local_steps, []
    for round in range(run.train.rounds):
        deal = Partition.draw(lengths, tuple(lengths), ranks, run.train.seed, round, None, run.method.redeal)
        of_round, after, speeds = [], HoldersMean(weights), HoldersMean(weights)
        for rank in range(ranks):
            held = {name: deal.units[name][rank] for name in lengths}
            where = {name: _where(name, values.shape, held) for name, values in weights.items()}
            own = {name: values[where[name]].clone().requires_grad_() for name, values in weights.items()}
            speed = {name: values[where[name]].clone() for name, values in carried.items()}
            scale = {name: lengths[name] / ranks / len(held[name]) for name in lengths}
            for step in range(round * steps, (round + 1) * steps):
                x, y = map(torch.from_numpy, dense(split, streams[rank].indices(step)))
                loss = losses(logits(own, x, scale, "norms.0.weight" in weights), y, run.train.multi_label_loss).mean()
                of_round.append(float(loss.detach()))
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
        means.append(float(np.mean(of_round)))
    return weights, means


def _where(name, shape, held):
    return np.ix_(*(np.arange(n) if axis is None else held[axis] for axis, n in zip(AXES[name], shape)))
