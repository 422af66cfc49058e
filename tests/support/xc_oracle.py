"""The naive oracle for sparse rows: dense matrices, all logits, every weight touched in every step, in one process.
From istmpi it takes the deals and the batches' rows alone.
"""

import torch
from holders import train_plainly
from sparse_rows import dense
from torch.nn import functional

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

    def compute_loss(own, stream, step, factor):
        x, y = map(torch.from_numpy, dense(split, stream.indices(step)))
        return losses(logits(own, x, factor, "norms.0.weight" in own), y, run.train.multi_label_loss).mean()

    return train_plainly(run, lengths, AXES, split, weights, ranks, compute_loss)
