"""The loss and the score of a run on data of the user's own: functions of the outputs and a batch, or by the targets.

They stand on the network's class or else in the data's file, and beside a score ``score_name`` and
``higher_is_better``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from istmpi.code import short
from istmpi.data.batch import Batch
from istmpi.errors import ConfigError
from istmpi.tasks import LOWER, Classification, OwnTask, Regression, higher_is_better

Function = Callable[[Any, Any], Any]


class ScoredAsItIs(Regression):
    """Regression whose targets are not standardised: that would read all of them first."""

    predicts_numbers = False


class _Task(OwnTask):
    loss_of: tuple[str, Function]
    """The name of the function for messages, and the function."""
    score_of: tuple[str, Function] | None
    """None where the loss is the score."""

    @classmethod
    def loss(cls, outputs: Any, targets: Any, reduction: str = "mean") -> torch.Tensor:
        subject, loss = cls.loss_of[0], _called(*cls.loss_of, outputs, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ConfigError(f"{subject} returns {_shown(loss)}; it must return a tensor of one number, as a mean is.")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ConfigError(f"{subject} needs no gradient. Compute it from the outputs, and do not detach them.")
        return loss.reshape(())

    @classmethod
    @torch.no_grad()
    def totals(cls, outputs: Any, batch: Batch) -> tuple[float, int, float]:
        """Return the sums of the losses and of the scores over a batch's examples, and their number between them."""
        score = loss = cls.loss(outputs, batch.targets)
        if cls.score_of:
            score = _called(*cls.score_of, outputs, batch.targets)
            if not isinstance(score, int | float) and getattr(score, "shape", None) not in ((), (1,)):
                raise ConfigError(f"{cls.score_of[0]} returns {_shown(score)}; it must return one number, as a mean is.")
        return float(loss) * batch.examples, batch.examples, float(score) * batch.examples


def has_functions(holders: Mapping[str, Any]) -> bool:
    """Say whether a class or module of ``holders``, by their names for messages, has a loss or a score."""
    return any(_function_of(holders, name) for name in ("loss", "score"))


def own_task(holders: Mapping[str, Any], target: Any, source: str) -> type[OwnTask]:
    """Return the task of the first holder's ``loss`` and ``score``; without them of ``target``, those of a batch."""
    loss, score = _function_of(holders, "loss"), _function_of(holders, "score")
    kind, default_loss, default_score = None, None, None
    if isinstance(target, torch.Tensor) and target.is_floating_point():
        kind, default_loss, default_score = Regression, _squared_error, _absolute_error
    elif isinstance(target, torch.Tensor) and not target.is_complex() and target.dtype != torch.bool:
        kind, default_loss, default_score = Classification, _cross_entropy, _accuracy
    name, higher = "loss", False
    if score:
        holder = holders[score[0].removesuffix(": score")]
        name = getattr(holder, "score_name", "score")
        higher = getattr(holder, "higher_is_better", higher_is_better(name))
    elif kind and not loss:
        name, higher, score = kind.score, kind.higher_is_better, (f"{source}: the {kind.score}", default_score)
    if not loss and not kind:
        what = f"targets of {target.dtype}" if isinstance(target, torch.Tensor) else "no targets that are a tensor"
        raise ConfigError(
            f"{source} has {what}; only integers and floats have a loss by default. Write loss(outputs, batch) in its "
            f"file, or as a @staticmethod of the network's class."
        )
    name += LOWER if not higher and higher_is_better(name) else ""
    facts = {"loss_of": loss or (f"{source}: the loss of its targets", default_loss), "score_of": score}
    return type("OwnTask", (_Task,), {**facts, "score": name, "higher_is_better": bool(higher)})


def _function_of(holders: Mapping[str, Any], name: str) -> tuple[str, Function] | None:
    for place, holder in holders.items():
        function = getattr(holder, name, None)
        if callable(function):
            try:
                inspect.signature(function).bind(None, None)
            except TypeError:
                raise ConfigError(
                    f"{place}: {name} must take (outputs, batch) and nothing else; in a class make it a @staticmethod."
                ) from None
            return f"{place}: {name}", function
    return None


def _called(subject: str, function: Function, outputs: Any, batch: Any) -> Any:
    try:
        return function(outputs, batch)
    except Exception as error:
        raise ConfigError(f"{subject} fails: {short(error)}.") from error


def _shown(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:80]


def _cross_entropy(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(outputs, batch[1].long())


def _accuracy(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return Classification.right(outputs, batch[1]).double().mean()


def _squared_error(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return functional.mse_loss(outputs, batch[1].to(outputs.dtype).reshape(outputs.shape))


def _absolute_error(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return functional.l1_loss(outputs, batch[1].to(outputs.dtype).reshape(outputs.shape))
