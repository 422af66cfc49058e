"""Tasks: the loss that training reduces, and the score that judges a network.

A new task needs a class in this module and its name in `TASKS`. The class has all facts on the
task. This module imports torch only when used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import exp
from types import ModuleType
from typing import TYPE_CHECKING, Any

from istmpi.multilabel import AT, Labels, compute_losses, rank_first

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

CLASSIFICATION = "classification"
REGRESSION = "regression"
NEXT_TOKEN = "next-token"
MULTI_LABEL = "multi-label"
DENSE_LABELS = "dense-multi-label"
NODE_CLASSES = "node-classes"
NODE_LABELS = "node-labels"
OWN = "own"
OFF = -1

NUMBERS = "numbers"
TEXT = "text"
SPARSE_ROWS = "sparse rows"
GRAPH = "a graph"
OWN_INPUTS = "of a program"
_TEXT_OPTIONS = ("--tokens", "--temperature", "--seed", "--json")
_ROW_OPTIONS = ("--label", "--header", "--delimiter", "--resize", "--outputs")
PREDICT_OPTIONS = ("--top", *_TEXT_OPTIONS, *_ROW_OPTIONS)
"""The options of `istmpi predict` that not every task has."""
LOWER = " (lower is better)"
"""The ending of the name of a user's score in a run's record, if lower is better."""


def _functional() -> ModuleType:
    from torch.nn import functional

    return functional


def _softmax(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.softmax(dim=-1)


def _sigmoid(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.sigmoid()


class Task(ABC):
    """A loss, which is a mean over examples, and a score, computed from such means."""

    score: str
    higher_is_better = True
    numbers = 1

    inputs = NUMBERS
    """The form of examples, such as `NUMBERS`, as messages name it."""
    examples = "examples"
    """The noun for examples in a report."""
    target_type = ""
    """The type of targets in a prepared file of rows, as NumPy names it."""
    unplaced = ""
    """The reason why examples cannot be placed by their class; empty if they can."""
    predict_options: tuple[str, ...] = _ROW_OPTIONS
    """The part of `PREDICT_OPTIONS` that the task has."""
    network = ""
    """The advice for a network of dense rows; empty if the task's data are such rows."""
    start: tuple[str, ...] = ()
    """The arguments of `istmpi train` for a first run."""
    scored = 0
    """The number of examples that an evaluation scores by default; 0 is all."""
    one_class = False
    """True if the target of an example is a class."""
    confuses = False
    """True if scores count how often one class is taken for another."""
    standardises = False
    """True if targets are numbers, which training may standardise."""
    probabilities: Callable[[torch.Tensor], torch.Tensor] | None = None
    """A function of outputs; None if networks cannot learn from each other's probabilities."""

    @staticmethod
    @abstractmethod
    def loss(outputs: torch.Tensor, targets: Any, reduction: str = "mean") -> torch.Tensor:
        """Return the loss of a batch's outputs ``[b, outputs]``.

        It is the mean over its examples, or the ``"sum"``. ``targets``: a tensor, or the task's own
        form.
        """

    @staticmethod
    @abstractmethod
    def points(outputs: torch.Tensor, targets: Any) -> float | tuple[float, ...]:
        """Return sums over examples whose means make the score, as many as `numbers`."""

    @staticmethod
    def score_from_means(*points: float) -> float:
        return points[0]

    @staticmethod
    def more(outputs: int, *points: float) -> dict[str, float] | None:
        return None

    @staticmethod
    def many_outputs(features: int, outputs: int) -> int:
        """Return an example's number of outputs, if they limit the examples of a pass.

        Return 0 if the network does.
        """
        return 0


class Classification(Task):
    """Cross-entropy of integer labels; the score is the accuracy."""

    score = "accuracy"
    target_type = "<i8"
    one_class = True
    confuses = True
    probabilities = staticmethod(_softmax)

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        return _functional().cross_entropy(outputs, targets, reduction=reduction)

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(Classification.right(outputs, targets).sum())

    @staticmethod
    def right(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.argmax(dim=1) == targets


class Regression(Task):
    """Mean squared error over examples and outputs; the score is the mean absolute error."""

    score = "mean absolute error"
    higher_is_better = False
    target_type = "<f4"
    standardises = True

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        loss = _functional().mse_loss(outputs, targets.to(outputs.dtype), reduction=reduction)
        if reduction == "mean":
            return loss
        return loss / outputs.shape[1]  # a sum over examples of means over outputs

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs - targets).abs().mean(dim=1).sum())


class NextToken(Task):
    """Cross-entropy in nats of each token given the tokens before.

    Outputs are ``[b, t, vocabulary]``, targets ``[b, t]``. An example is a window of tokens; its
    loss is the mean over tokens. The score is the perplexity.
    """

    score = "perplexity"
    higher_is_better = False
    inputs = TEXT
    examples = "tokens"
    unplaced = "text"
    predict_options = _TEXT_OPTIONS
    network = "takes numbers, but these data are text. Use --model transformer."
    start = ("--model", "transformer", "--optimizer", "adamw", "--lr", "0.001")
    scored = 512
    probabilities = staticmethod(_softmax)

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        # Targets are tokens, or the probabilities of each: [b, t, vocabulary].
        loss = Classification.loss(outputs.flatten(0, 1), targets.flatten(0, 1), reduction)
        if reduction == "mean":
            return loss
        return loss / outputs.shape[1]  # a sum over windows of means over tokens

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(NextToken.loss(outputs, targets, reduction="sum"))

    @staticmethod
    def score_from_means(*points: float) -> float:
        return exp(points[0])

    @staticmethod
    def many_outputs(features: int, outputs: int) -> int:
        return features * outputs


class MultiLabel(Task):
    """Rows with any number of labels (`istmpi.multilabel.Labels`); the score is precision at 1.

    ``outputs`` may also be an object that computes its own losses, such as
    `istmpi.network.linear.Deferred`.
    """

    score = "P@1"
    kind = "softmax"
    inputs = SPARSE_ROWS
    unplaced = f"for {MULTI_LABEL}"
    predict_options = ("--top",)
    network = "takes dense rows, but these data are sparse rows. Use --model xc."
    start = ("xc",)

    @classmethod
    def loss(cls, outputs: torch.Tensor, targets: Labels, reduction: str = "mean") -> torch.Tensor:
        # Very many labels: their logits never exist at once.
        compute = getattr(outputs, "losses", None)
        if compute:
            losses = compute(targets, cls.kind)
        else:
            losses = compute_losses(outputs, targets, cls.kind)
        if reduction == "mean":
            return losses.mean()
        return losses.sum()

    @classmethod
    def points(cls, outputs: torch.Tensor, targets: Labels) -> float:
        _, places = rank_first(outputs, 1)
        return float((places[targets.rows, 0] == targets.columns).sum())

    @staticmethod
    def many_outputs(features: int, outputs: int) -> int:
        return outputs


class BinaryMultiLabel(MultiLabel):
    kind = "binary"


class NodeClasses(Task):
    """Cross-entropy of the nodes of a batch that have a target; 0 if none has.

    The score is these nodes' accuracy.
    """

    score = "accuracy"
    inputs = GRAPH
    examples = "nodes"
    confuses = True
    predict_options = ("--outputs",)
    network = "takes single examples, but this is a graph. Use --model gcn or sage."
    start = ("graph",)

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        total = _functional().cross_entropy(outputs, targets, ignore_index=OFF, reduction="sum")
        if reduction == "sum":
            return total
        # A batch of neighbours may have no scored node; its loss is 0.
        return total / (targets != OFF).sum().clamp(min=1)

    points = staticmethod(Classification.points)


class _Flags(Task):
    """Binary cross-entropy, averaged over labels.

    Targets ``[n, outputs]``: 0 and 1; rows of `OFF` are left out.
    """

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        scored = targets[:, 0] != OFF  # a node without a target has it in every label
        losses = _functional().binary_cross_entropy_with_logits(
            outputs, targets.clamp(min=0).to(outputs.dtype), reduction="none"
        )
        total = (losses.mean(dim=1) * scored).sum()
        if reduction == "sum":
            return total
        return total / scored.sum().clamp(min=1)

    @staticmethod
    def f1_points(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
        """Return twice the number of true positives; the same plus the number of wrong labels."""
        positive = outputs > 0  # logits: a probability above one half
        true = targets == 1
        scored = targets[:, :1] != OFF
        twice = 2 * int((positive & true).sum())
        wrong = (scored & (positive != true)).sum()
        return float(twice), float(twice + wrong)

    @staticmethod
    def f1(twice: float, total: float) -> float:
        return twice / total if total else 0.0


class NodeLabels(_Flags):
    """`_Flags` of nodes; the score is micro-F1 over all labels.

    A probability above one half is positive.
    """

    score = "micro-F1"
    numbers = 2
    inputs = NodeClasses.inputs
    examples = NodeClasses.examples
    predict_options = NodeClasses.predict_options
    network = NodeClasses.network
    start = NodeClasses.start

    points = staticmethod(_Flags.f1_points)

    @staticmethod
    def score_from_means(*points: float) -> float:
        return _Flags.f1(*points)


class DenseLabels(_Flags):
    """`_Flags` of examples; the score is precision at 1."""

    score = "P@1"
    numbers = len(AT) + NodeLabels.numbers
    """The counts of true labels among the first k, for each k of `AT`; then `f1_points`."""
    target_type = "u1"
    unplaced = f"for {DENSE_LABELS}"
    predict_options = ("--top", *_ROW_OPTIONS)
    probabilities = staticmethod(_sigmoid)

    @staticmethod
    def points(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, ...]:
        _, first = rank_first(outputs, min(max(AT), outputs.shape[1]))
        hits = targets.gather(1, first)
        hits_at = [float(hits[:, :k].sum()) for k in AT]
        return (*hits_at, *_Flags.f1_points(outputs, targets))

    @staticmethod
    def more(outputs: int, *points: float) -> dict[str, float]:
        precisions = {f"P@{k}": mean / k for k, mean in zip(AT, points) if 1 < k <= outputs}
        return precisions | {NodeLabels.score: _Flags.f1(*points[len(AT) :])}


class OwnTask(Task):
    """A user's loss and score, as amounts of a batch (`istmpi.amounts`), which a program
    (`istmpi.Distributed`) computes."""

    score = "score"
    inputs = OWN_INPUTS
    unplaced = "without them"
    losses: Callable[[Any, Any], dict[str, Any]]
    """A function of (outputs, batch) that returns the loss's amounts; the loss is the sum of their
    means."""
    scores: Callable[[Any, Any], dict[str, Any]] | None
    """A function like `losses` for the score, whose first amount is the run's score; None if the
    loss is the score."""
    functions: Mapping[str, Callable[[Any, Any], dict[str, Any]]]
    """Both functions by their names for messages."""

    @staticmethod
    def loss(outputs: torch.Tensor, targets: Any, reduction: str = "mean") -> torch.Tensor:
        raise NotImplementedError("`losses` computes a user's loss, from a whole batch")

    @staticmethod
    def points(outputs: torch.Tensor, targets: Any) -> float:
        raise NotImplementedError("`scores` computes a user's score, from a whole batch")

    @classmethod
    def no_means(cls, scored: list[tuple[Any, Any]]) -> str:
        """Return a sentence on a function whose numbers depend on the size of a batch.

        It is empty if there is none. ``scored``: pairs (outputs, batch) of an evaluation's first
        batches. The last pair is halved. If it has a single row, the two last pairs are joined.
        """
        return ""


TASKS: dict[str, type[Task]] = {
    CLASSIFICATION: Classification,
    REGRESSION: Regression,
    NEXT_TOKEN: NextToken,
    MULTI_LABEL: MultiLabel,
    DENSE_LABELS: DenseLabels,
    NODE_CLASSES: NodeClasses,
    NODE_LABELS: NodeLabels,
    OWN: OwnTask,
}


def choose_task(scoring: type[Task], multi_label_loss: str) -> type[Task]:
    if scoring is MultiLabel and multi_label_loss == "binary":
        return BinaryMultiLabel
    return scoring


def higher_is_better(score: str) -> bool:
    if score.endswith(LOWER):
        return False
    return all(task.higher_is_better for task in TASKS.values() if task.score == score)
