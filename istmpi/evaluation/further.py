"""Further scores of classes and of numbers, computed from sums that are exact over ranks.

Plans count these sums, so torch is imported only to add them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Protocol

import numpy as np

from istmpi.errors import ConfigError
from istmpi.record import write_key
from istmpi.tasks import OFF, Regression

if TYPE_CHECKING:
    import torch

    from istmpi.comm import Communicator
    from istmpi.config.sections import Evaluate
    from istmpi.data.dataset import Dataset
    from istmpi.tasks import Task

MOST_LISTED = 100
"""The most classes whose scores are listed one by one, with their confusion."""
MANY = 20
"""The number of classes above which the top-5 accuracy is a further score by default."""


@dataclass(frozen=True)
class Further:
    """Scores beside that of the task."""

    figures: Mapping[str, float]
    """The scores by their names, such as macro-F1."""
    classes: tuple[str, ...] = ()
    """The names of the classes in the lists below; empty for numbers and for very many classes."""
    examples: tuple[int, ...] = ()
    recall: tuple[float, ...] = ()
    precision: tuple[float, ...] = ()
    f1: tuple[float, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    """The number of examples of each class, a row, that were taken for each class; only of the last
    evaluation of a run, and of `istmpi evaluate`."""

    def record(self) -> dict[str, float]:
        """Return the figures as in metrics.jsonl."""
        return {write_key(name): value for name, value in self.figures.items()}

    def describe(self) -> str:
        return ", ".join(f"{name} {value:.4f}" for name, value in self.figures.items())


Join = Callable[[np.ndarray], np.ndarray]


class FurtherTotals(Protocol):
    """Sums over the batches of an evaluation, from which further scores are computed."""

    margins: list[np.ndarray]
    """Rows [n, 2] of examples whose order is scored, too; empty without such a score."""

    @property
    def count(self) -> int:
        """The number of sums."""

    def add_up(self, outputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
        """Return the sums of a batch, ``[count]``."""

    def score(self, sums: np.ndarray, examples: int) -> Further:
        """Return the scores of all batches, whose sums were added. Collective."""


class ClassTotals:
    """Counts of classes: balanced accuracy, F1, and accuracy among the first k. With details also
    the confusion, and the area under the ROC curve of two classes."""

    def __init__(
        self,
        classes: int,
        names: Sequence[str] | None,
        top_k: Sequence[int],
        join: Join,
        details: bool,
    ):
        self._classes = classes
        self._names = tuple(names or map(str, range(classes)))
        self._top_k = top_k
        self._join = join
        self._confuses = details and classes <= MOST_LISTED
        self._has_area = details and classes == 2
        self.count = 3 * classes + len(self._top_k)
        if self._confuses:
            self.count += classes**2
        self.margins: list[np.ndarray] = []
        """The margin of the second class and the label of each example, [n, 2]."""

    def add_up(self, outputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
        import torch

        outputs = outputs.double()
        if self._has_area:
            margins = outputs[:, 1] - outputs[:, 0]
            self.margins.append(torch.stack([margins, targets.double()], dim=1).cpu().numpy())
        # Nodes without a target do not count.
        scored = targets != OFF
        outputs = outputs[scored]
        labels = targets[scored]
        predicted = outputs.argmax(dim=1)
        right = labels[predicted == labels]
        # A network of the user's may have more outputs than there are classes.
        countable = predicted < self._classes
        parts = [self._tally(right), self._tally(predicted[countable]), self._tally(labels)]
        if self._confuses:
            cells = labels[countable] * self._classes + predicted[countable]
            parts.append(cells.bincount(minlength=self._classes**2))
        if self._top_k:
            first = outputs.topk(min(max(self._top_k), outputs.shape[1]), dim=1).indices
            hits = first == labels[:, None]
            parts.append(torch.stack([hits[:, :k].sum() for k in self._top_k]))
        return torch.cat(parts).double().cpu().numpy()

    def _tally(self, classes: torch.Tensor) -> torch.Tensor:
        return classes.bincount(minlength=self._classes)

    def score(self, sums: np.ndarray, examples: int) -> Further:
        classes = self._classes
        right, predicted, labelled = sums[: 3 * classes].reshape(3, classes)
        recall = _divide(right, labelled)
        f1 = _divide(2 * right, labelled + predicted)
        # Classes without an example, in the split or by prediction, have no score.
        present = labelled > 0
        met = labelled + predicted > 0
        figures = {
            "balanced accuracy": float(recall[present].mean()),
            "macro-F1": float(f1[met].mean()),
        }
        for k, hits in zip(self._top_k, sums[self.count - len(self._top_k) :], strict=True):
            figures[f"top-{k} accuracy"] = float(hits / labelled.sum())
        if self._has_area:
            area = find_area(self._join(np.concatenate([np.zeros((0, 2)), *self.margins])))
            if area is not None:
                figures["AUC"] = area
        if classes > MOST_LISTED:
            return Further(figures)
        cells = np.zeros((0, classes))
        if self._confuses:
            cells = sums[3 * classes : 3 * classes + classes**2].reshape(classes, classes)
        return Further(
            figures=figures,
            classes=self._names,
            examples=tuple(map(int, labelled)),
            recall=tuple(recall.tolist()),
            precision=tuple(_divide(right, predicted).tolist()),
            f1=tuple(f1.tolist()),
            confusion=tuple(tuple(map(int, row)) for row in cells),
        )


class NumberTotals:
    """Sums of numbers and of their errors: RMSE over examples and outputs, and R2, the mean over
    outputs."""

    def __init__(self, outputs: int, deviations: np.ndarray | None):
        """``deviations`` [outputs]: those by which targets were divided; None if they were not."""
        self.margins: list[np.ndarray] = []
        self._outputs = outputs
        self._deviations = np.ones(outputs)
        if deviations is not None:
            self._deviations = deviations
        self.count = 3 * outputs

    def add_up(self, outputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
        import torch

        numbers = targets.double()
        errors = outputs.double() - numbers
        parts = [errors.square(), numbers, numbers.square()]
        return torch.cat([part.sum(dim=0) for part in parts]).cpu().numpy()

    def score(self, sums: np.ndarray, examples: int) -> Further:
        errors, numbers, squares = sums.reshape(3, self._outputs)
        in_units = errors * self._deviations**2
        spread = np.maximum(squares - numbers**2 / examples, 0.0)
        # Without spread, only an exact prediction explains everything.
        explained = np.where(spread > 0, 1 - _divide(errors, spread), errors == 0)
        return Further(
            {
                "RMSE": sqrt(in_units.sum() / (examples * self._outputs)),
                "R2": float(explained.mean()),
            }
        )


def choose_further(
    task: type[Task],
    data: Dataset,
    settings: Evaluate,
    join: Join,
    details: bool,
) -> FurtherTotals | None:
    """Return the totals of a task's further scores; None if it has none.

    ``settings``: those of ``[evaluate]``; ``top_k`` is by default 5 if there are more than `MANY`
    classes. ``join``: a collective function
    that joins the rows [n, 2] of ranks that scored different examples. ``details``: True for
    scores that take many bytes, too. Raises ConfigError for a ``top_k`` that is no score.
    """
    require_further(data, settings)
    if task.confuses and data.outputs > 1:
        top_k: Sequence[int] | None = settings.top_k
        if top_k is None:
            top_k = (5,)
            if data.outputs <= MANY:
                top_k = ()
        return ClassTotals(data.outputs, data.classes, top_k, join, details)
    if task is Regression:
        deviations = None
        if data.targets is not None:
            _, deviations = data.targets
        return NumberTotals(data.outputs, deviations)
    return None


def require_further(data: Dataset, settings: Evaluate) -> None:
    """Raise ConfigError unless each of ``top_k`` is less than the number of classes."""
    top_k = settings.top_k
    if not top_k:
        return
    task = data.scoring
    shown = f"evaluate.top_k = {list(top_k)}"
    if not task.confuses:
        raise ConfigError(f"{shown} is for examples of one class each. Leave it out.")
    if max(top_k) >= data.outputs:
        raise ConfigError(
            f"{shown}: there are {data.outputs} classes, and each number must be smaller."
        )


def count_further(task: type[Task], data: Dataset, settings: Evaluate, details: bool) -> int:
    """Return the number of sums for a task's further scores."""
    totals = choose_further(task, data, settings, np.asarray, details)
    if totals is None:
        return 0
    return totals.count


def has_area(task: type[Task], data: Dataset) -> bool:
    """Return True if the details of a task's scores are an area under a curve, too."""
    return task.confuses and data.outputs == 2


def join_over_ranks(
    data: Dataset, communicator: Communicator, apart: bool, rows: np.ndarray
) -> np.ndarray:
    """Return the rows [n, k] of all ranks. Collective.

    ``apart``: False if each rank has the rows of all examples already, unless one rank alone has
    labels.
    """
    if data.labels_on not in (None, communicator.rank):
        rows = rows[:0]
    if not apart and data.labels_on is None:
        return rows
    lengths = np.zeros(communicator.size)
    lengths[communicator.rank] = rows.size
    counts = communicator.allreduce_sum(lengths).astype(int).tolist()
    return communicator.allgatherv(rows.ravel(), counts).reshape(-1, rows.shape[1])


def find_area(rows: np.ndarray) -> float | None:
    """Return the area under the ROC curve of margins and labels, ``rows`` [n, 2]; None without
    examples of both classes, 0 and 1.

    It is the share of pairs, an example of each class, whose margins are in order; equal ones count
    half.
    """
    margins, labels = rows[rows[:, 1] != OFF].T
    positive = labels == 1
    ones = int(positive.sum())
    zeros = len(labels) - ones
    if not ones or not zeros:
        return None
    _, places, counts = np.unique(margins, return_inverse=True, return_counts=True)
    # Equal margins share their mean rank, from 1.
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[places][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return quotients; 0 where ``whole`` is 0."""
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole != 0)
