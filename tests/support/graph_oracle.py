"""The naive oracle of GIST: dense matrices, every rank's subnet trained in one process.
From istmpi it takes the deals and the batches alone.
"""

from graphs import naive_logits
from holders import train_plainly
from torch.nn import functional


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

    def compute_loss(own, stream, step, factor):
        batch = stream.at(step)
        return loss_of(naive_logits(run.model.name, own, batch.inputs, factor), batch.targets)

    layers = len(lengths) + 1
    return train_plainly(
        run, lengths, {name: axes(name, layers) for name in weights}, split, weights, ranks, compute_loss
    )
