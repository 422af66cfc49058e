"""The loss and the score of a run on data of the user's: functions of the outputs and a batch, or by the targets.

They stand on the network's class or else in the data's file; beside a score ``score_name`` and ``higher_is_better``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import torch

from istmpi.code import short
from istmpi.data.batch import Batch
from istmpi.errors import ConfigError
from istmpi.tasks import LOWER, Classification, OwnTask, Regression, higher_is_better


class RegressionAsItIs(Regression):
    """Regression whose targets are not standardised: that would read all of them first."""

    predicts_numbers = False


class _Task(OwnTask):
    loss_of: tuple[str, Callable[[Any, Any], Any]]
    """The function and before it its name for messages."""
    score_of: tuple[str, Callable[[Any, Any], Any]] | None
    """None where the loss is the score."""

    @classmethod
    def loss(cls, outputs: Any, targets: Any, reduction: str = "mean") -> torch.Tensor:
        loss = _number(*cls.loss_of, outputs, targets)
        if torch.is_grad_enabled() and not getattr(loss, "requires_grad", False):
            raise ConfigError(f"{cls.loss_of[0]} needs no gradient. Compute it from outputs that are not detached.")
        return loss

    @classmethod
    @torch.no_grad()
    def totals(cls, outputs: Any, batch: Batch) -> tuple[float, int, float]:
        """Return the sums of the losses and of the scores over a batch's examples, and their number between them."""
        score = loss = cls.loss(outputs, batch.targets)
        if cls.score_of:
            score = _number(*cls.score_of, outputs, batch.targets)
        return float(loss) * batch.examples, batch.examples, float(score) * batch.examples


def functions_of(holders: Mapping[str, Any]) -> dict[str, tuple[str, Callable[[Any, Any], Any], Any]]:
    """Return loss and score, each with its name for messages and its holder: of the first class or module that has it.

    ``holders``: by their names for messages.
    """
    functions = {}
    for (place, holder), name in product(reversed(holders.items()), ("loss", "score")):
        if not callable(function := getattr(holder, name, None)):
            continue
        try:
            inspect.signature(function).bind(None, None)
        except TypeError as error:
            raise ConfigError(
                f"{place}: {name} must take (outputs, batch) and nothing else; in a class make it a @staticmethod."
            ) from error
        functions[name] = f"{place}: {name}", function, holder
    return functions


def kind_of(target: Any) -> str:
    """Return ``float`` or ``integer``; for other targets what they are."""
    if not isinstance(target, torch.Tensor) or target.dtype == torch.bool:
        return str(getattr(target, "dtype", type(target).__name__))
    return "float" if target.is_floating_point() else "integer"


def own_task(functions: Mapping[str, tuple[str, Any, Any]], target: Any, source: str) -> type[OwnTask]:
    """Return the task of some `functions_of`, or of the targets of a batch where these have no loss."""
    loss, score, kind = functions.get("loss"), functions.get("score"), kind_of(target)
    name, higher = "loss", False
    if score:
        name = getattr(score[2], "score_name", "score")
        higher = getattr(score[2], "higher_is_better", higher_is_better(name))
    if not loss:
        if kind not in _BY_TARGET:
            raise ConfigError(
                f"{source} has targets of {kind}; only integers and floats have a loss by default. Write "
                f"loss(outputs, batch) in its file, or as a @staticmethod of the network's class."
            )
        task, default_loss, default_score = _BY_TARGET[kind]
        loss = f"{source}: the loss of {kind} targets", default_loss
        if not score:
            name, higher, score = task.score, task.higher_is_better, (f"{source}: the {task.score}", default_score)
    name += LOWER if not higher and higher_is_better(name) else ""
    facts = {"loss_of": loss[:2], "score_of": score and score[:2], "score": name, "higher_is_better": higher}
    return type("OwnTask", (_Task,), facts)


def _number(subject: str, function: Callable[[Any, Any], Any], outputs: Any, batch: Any) -> Any:
    try:
        value = function(outputs, batch)
    except Exception as error:
        raise ConfigError(f"{subject} fails: {short(error)}.") from error
    if isinstance(value, int | float) or getattr(value, "shape", None) in ((), (1,)):
        return value.reshape(()) if isinstance(value, torch.Tensor) else value
    what = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    raise ConfigError(f"{subject} returns a value of {what}; it must return one number, the mean over a batch.")


def _like(batch: Any, outputs: torch.Tensor) -> torch.Tensor:
    return batch[1].to(outputs.dtype).reshape(outputs.shape)


_BY_TARGET = {
    "integer": (
        Classification,
        lambda outputs, batch: Classification.loss(outputs, batch[1].long()),
        lambda outputs, batch: Classification.right(outputs, batch[1]).double().mean(),
    ),
    "float": (
        Regression,
        lambda outputs, batch: Regression.loss(outputs, _like(batch, outputs)),
        lambda outputs, batch: (outputs - _like(batch, outputs)).abs().mean(),
    ),
}
"""The task of targets, its loss and its score."""
