"""What a network is trained for: the loss, and the score by which it is judged. Described without torch.

A new task is a class here and its name in `TASKS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import exp
from typing import TYPE_CHECKING

from istmpi.multilabel import AT, losses_of, ranked_first

if TYPE_CHECKING:
    import torch

    from istmpi.data.batch import Labels

CLASSIFICATION = "classification"
REGRESSION = "regression"
NEXT_TOKEN = "next-token"
MULTI_LABEL = "multi-label"
DENSE_LABELS = "dense-multi-label"
NODE_CLASSES = "node-classes"
NODE_LABELS = "node-labels"
GRAPH_TASKS = (NODE_CLASSES, NODE_LABELS)
"""Of the nodes of a graph."""
OFF = -1
"""The target of a node that is not to be scored."""


class Task(ABC):
    """A loss to make smaller, and a score to judge by, each a mean over examples."""

    score: str
    """The name of the score."""
    higher_is_better: bool
    """Of two scores."""
    numbers = 1
    """That `points` gives."""

    @staticmethod
    @abstractmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        """The loss of a batch's outputs ``[b, outputs]``: the mean over its examples, or the ``"sum"``."""

    @staticmethod
    @abstractmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float | tuple[float, ...]:
        """The sum over examples of what the score is made of the mean of: a number, or as many as `numbers` says."""

    @staticmethod
    def of_mean(*points: float) -> float:
        """The score, of the mean over examples of their `points`."""
        return points[0]

    @staticmethod
    def more(outputs: int, *points: float) -> dict[str, float] | None:
        """Other scores by their names, of the same means, where a task has some."""
        return None


class Classification(Task):
    """Cross-entropy of integer labels; the score is the accuracy."""

    score = "accuracy"
    higher_is_better = True

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        from torch.nn import functional

        return functional.cross_entropy(outputs, targets, reduction=reduction)

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(Classification.right(outputs, targets).sum())

    @staticmethod
    def right(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Which examples have the class that is likeliest, ``[b]`` bool."""
        return outputs.argmax(dim=1) == targets


class Regression(Task):
    """Mean squared error over examples and outputs; the score is the mean absolute error."""

    score = "mean absolute error"
    higher_is_better = False

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        from torch.nn import functional

        loss = functional.mse_loss(outputs, targets.to(outputs.dtype), reduction=reduction)
        return loss if reduction == "mean" else loss / outputs.shape[1]

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs - targets).abs().mean(dim=1).sum())


class NextToken(Task):
    """Cross-entropy of each token given those before it, in nats: outputs ``[b, t, vocabulary]``, targets ``[b, t]``.

    An example is a window of tokens, and its loss their mean; the score is the perplexity of all.
    """

    score = "perplexity"
    higher_is_better = False

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        from torch.nn import functional

        given = targets.flatten(0, 1)  # tokens, or the odds of each: [b, t, vocabulary]
        loss = functional.cross_entropy(outputs.flatten(0, 1), given, reduction=reduction)
        return loss if reduction == "mean" else loss / outputs.shape[1]

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(NextToken.loss(outputs, targets, reduction="sum"))

    @staticmethod
    def of_mean(*points: float) -> float:
        return exp(points[0])


class MultiLabel(Task):
    """Rows with any number of labels (`istmpi.multilabel`), as `istmpi.data.batch.Labels`; the score is precision at 1.

    ``outputs`` may also be what can tell its losses itself, as `istmpi.models.label_blocks.Deferred`.
    """

    score = "P@1"
    higher_is_better = True
    kind = "softmax"
    """Of `istmpi.multilabel.LOSSES`."""

    @classmethod
    def loss(cls, outputs: torch.Tensor, targets: Labels, reduction: str = "mean") -> torch.Tensor:
        known = getattr(outputs, "losses", None)
        losses = known(targets, cls.kind) if known else losses_of(outputs, targets, cls.kind)
        return losses.mean() if reduction == "mean" else losses.sum()

    @classmethod
    def points(cls, outputs: torch.Tensor, targets: Labels) -> float:
        best = ranked_first(outputs, 1)[1][:, 0]
        return float((best[targets.rows] == targets.columns).sum())


class BinaryMultiLabel(MultiLabel):
    """The same, with the cross-entropy of each label for itself."""

    kind = "binary"


class NodeClasses(Task):
    """Cross-entropy of the nodes of a batch that have a target, which may be none; the score is their accuracy."""

    score = "accuracy"
    higher_is_better = True

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        from torch.nn import functional

        total = functional.cross_entropy(outputs, targets, ignore_index=OFF, reduction="sum")
        return total / (targets != OFF).sum().clamp(min=1) if reduction == "mean" else total

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs.argmax(dim=1) == targets).sum())


class NodeLabels(Task):
    """Cross-entropy of each label for itself, their mean; of nodes with several labels, ``[n, outputs]`` of 0 and 1.

    The score is micro-F1: of all labels, with an odds of more than one half said to be there.
    """

    score = "micro-F1"
    higher_is_better = True
    numbers = 2
    """Twice the labels that are rightly said to be there; this, and those wrongly said to be there or not there."""

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        from torch.nn import functional

        on = targets[:, 0] != OFF
        losses = functional.binary_cross_entropy_with_logits(
            outputs, targets.clamp(min=0).to(outputs.dtype), reduction="none"
        )
        total = (losses.mean(dim=1) * on).sum()
        return total / on.sum().clamp(min=1) if reduction == "mean" else total

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
        said, on = outputs > 0, targets[:, :1] != OFF
        twice = 2 * int((said & (targets == 1)).sum())
        return float(twice), float(twice + (on & (said != (targets == 1))).sum())

    @staticmethod
    def of_mean(*points: float) -> float:
        return points[0] / points[1] if points[1] else 0.0


class DenseLabels(NodeLabels):
    """The loss of `NodeLabels`, for examples that each have any number of labels; the score is precision at 1."""

    score = "P@1"
    numbers = len(AT) + NodeLabels.numbers
    """Labels among the k ranked first that an example has, for each k; and what micro-F1 is made of."""

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, ...]:
        first = ranked_first(outputs, min(max(AT), outputs.shape[1]))[1]
        hits = targets.gather(1, first)
        return (*(float(hits[:, :k].sum()) for k in AT), *NodeLabels.points(outputs, targets))

    @staticmethod
    def of_mean(*points: float) -> float:
        return points[0]

    @staticmethod
    def more(outputs: int, *points: float) -> dict[str, float]:
        precisions = {f"P@{k}": mean / k for k, mean in zip(AT, points) if 1 < k <= outputs}
        return precisions | {NodeLabels.score: NodeLabels.of_mean(*points[len(AT) :])}


TASKS: dict[str, type[Task]] = {
    CLASSIFICATION: Classification,
    REGRESSION: Regression,
    NEXT_TOKEN: NextToken,
    MULTI_LABEL: MultiLabel,
    DENSE_LABELS: DenseLabels,
    NODE_CLASSES: NodeClasses,
    NODE_LABELS: NodeLabels,
}


def task_of(name: str, multi_label_loss: str) -> type[Task]:
    """The task of a name, with the loss that a run asks for (``train.multi_label_loss``)."""
    return BinaryMultiLabel if (name, multi_label_loss) == (MULTI_LABEL, "binary") else TASKS[name]


def higher_is_better(score: str) -> bool:
    """Whether the higher of two scores of this name is the better one; so it is of scores that no task here has."""
    return all(task.higher_is_better for task in TASKS.values() if task.score == score)
