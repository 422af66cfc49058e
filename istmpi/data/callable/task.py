"""The loss and the score of a run on a user's data.

Both are functions of (outputs, batch), from the network's class or, if missing there, from the data's file. The class
or file with the score may also define ``score_name`` and ``higher_is_better``. Without a loss function, the type of the
targets decides what is missing.
"""

import inspect
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import torch

from istmpi.code import short
from istmpi.data.batch import Batch
from istmpi.errors import ConfigError
from istmpi.tasks import LOWER, Classification, OwnTask, Regression, higher_is_better

Function = Callable[[Any, Any], Any]


class RegressionAsItIs(Regression):
    """Regression on targets as they are: to standardise them would need a pass over all examples."""

    predicts_numbers = False


class _Task(OwnTask):
    points: Function

    @classmethod
    @torch.no_grad()
    def totals(cls, outputs: Any, batch: Batch) -> tuple[float, int, float]:
        loss, score = (float(each(outputs, batch.targets)) for each in (cls.loss, cls.points))
        return loss * batch.examples, batch.examples, score * batch.examples


def functions_of(holders: Mapping[str, Any]) -> dict[str, tuple[Function, Any]]:
    """Return the functions ``loss`` and ``score``, each with the first class or module of ``holders`` that has it.

    The keys of ``holders`` are names for messages. Raises ConfigError if a function does not take (outputs, batch).
    """
    functions = {}
    for (place, holder), name in product(reversed(holders.items()), ("loss", "score")):
        if not callable(function := getattr(holder, name, None)):
            continue
        try:
            inspect.signature(function).bind(None, None)
        except TypeError as error:
            raise ConfigError(
                f"{place}: {name} must take exactly (outputs, batch); in a class make it a @staticmethod."
            ) from error
        functions[name] = _checked(f"{place}: {name}", function), holder
    return functions


def kind_of(target: Any) -> str:
    """Return ``float`` or ``integer`` for a tensor of numbers, otherwise the target's type."""
    if not isinstance(target, torch.Tensor) or target.dtype == torch.bool:
        return str(getattr(target, "dtype", type(target).__name__))
    return "float" if target.is_floating_point() else "integer"


def own_task(functions: Mapping[str, tuple[Function, Any]], target: Any, source: str) -> type[OwnTask]:
    """Return a task with ``functions``. The type of ``target`` decides a missing loss, or raises ConfigError."""
    (loss, _), (score, holder) = functions.get("loss", (None, None)), functions.get("score", (None, None))
    if not loss:
        kind = kind_of(target)
        if kind not in ("integer", "float"):
            raise ConfigError(
                f"{source} has targets of {kind}; only integers and floats have a default loss. Write "
                "loss(outputs, batch) in its file, or as a @staticmethod of the network's class."
            )
        default = _Integers if kind == "integer" else _Floats
        holder = holder or default
        loss = _checked(f"{source}: the loss of {kind} targets", default.loss)
        score = score or _checked(f"{source}: the score of {kind} targets", holder.score)
    name = getattr(holder, "score_name", "score" if score else "loss")
    higher = getattr(holder, "higher_is_better", bool(score) and higher_is_better(name))
    facts = {"loss": staticmethod(loss), "points": staticmethod(score or loss), "higher_is_better": higher}
    return type("OwnTask", (_Task,), {**facts, "score": name + LOWER * (not higher and higher_is_better(name))})


def _checked(subject: str, function: Function) -> Function:
    """Return a checked ``function``: ConfigError if it fails, returns no single number or, in training, no gradient."""

    def checked(outputs: Any, batch: Any) -> Any:
        try:
            value = function(outputs, batch)
        except Exception as error:
            raise ConfigError(f"{subject} fails: {short(error)}.") from error
        if not isinstance(value, int | float) and getattr(value, "shape", None) != ():
            what = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ConfigError(f"{subject} returns a value of {what}; it must return one number, the mean over a batch.")
        if torch.is_grad_enabled() and not getattr(value, "requires_grad", False):
            raise ConfigError(f"{subject} has no gradient. Compute it from outputs that are not detached.")
        return value

    return checked


class _Integers:
    score_name = Classification.score

    @staticmethod
    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return Classification.loss(outputs, batch[1].long())

    @staticmethod
    def score(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return Classification.right(outputs, batch[1]).double().mean()


class _Floats:
    score_name = Regression.score

    @staticmethod
    def loss(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return Regression.loss(outputs, batch[1].reshape(outputs.shape))

    @staticmethod
    def score(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return (outputs - batch[1].reshape(outputs.shape)).abs().mean()
