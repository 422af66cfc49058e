"""The loss and the score of a run on a user's data.

Both are functions of (outputs, batch), from the network's class or, if missing there, from the
data's file. The class or file with the score may also define ``score_name`` and
``higher_is_better``. Without a loss function, the type of the targets decides what is missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import torch

from istmpi.amounts import Amount, amounts_in
from istmpi.code import calling, shown
from istmpi.data.batch import Batch
from istmpi.data.callable.form import name_kind
from istmpi.data.callable.halves import join_rows, split_rows
from istmpi.data.callable.split import control_random_numbers
from istmpi.data.dataset import have_same_form, without_ones
from istmpi.errors import ConfigError
from istmpi.foreign import printable
from istmpi.tasks import LOWER, Classification, OwnTask, Regression, higher_is_better
from istmpi.trees import list_tensors

Function = Callable[[Any, Any], Any]
Amounts = Callable[[Any, Batch], dict[str, Amount]]


class Found(NamedTuple):
    """A function of a user's, or a default one."""

    place: str
    """The class or file that has it, for messages."""
    name: str
    call: Function
    holder: Any
    """The class or module that has the function."""

    @property
    def subject(self) -> str:
        return f"{self.place}: {self.name}"


LEFT_OUT = -100
"""The integer target that the default loss and score leave out, as torch's cross-entropy does."""


class RegressionAsItIs(Regression):
    """Regression on targets as they are: to standardise them would need a pass over all
    examples."""

    standardises = False


class _Task(OwnTask):
    functions: Mapping[str, Amounts]
    """The user's functions, or the default ones, that can be tried on half a batch: a name and a
    function."""

    @classmethod
    def no_means(cls, scored: list[tuple[Any, Batch]]) -> str:
        outputs, batch = scored[-1]
        # A last batch of one row has no halves.
        if batch.examples == 1 and len(scored) > 1:
            outputs, batch = join_rows(*scored[-2:]) or (outputs, batch)
        for subject, function in cls.functions.items():
            if not averages_halves(function, outputs, batch):
                return (
                    f"{subject} is not a mean over rows: two halves of a batch do not average to "
                    "the whole batch. Its average over batches depends on evaluate.batch and on "
                    "the ranks. Return a pair (sum, count)."
                )
        return ""


def find_functions(holders: Mapping[str, Any]) -> dict[str, Found]:
    """Return the functions ``loss`` and ``score``, each with the first class or module of
    ``holders`` that has it.

    The keys of ``holders`` are names for messages; None counts as missing. Raises ConfigError if a
    function does not take (outputs, batch).
    """
    functions = {}
    # The first holder comes last, and replaces the functions of the others.
    last_first = reversed(list(holders.items()))
    for (place, holder), name in product(last_first, ("loss", "score")):
        function = getattr(holder, name, None)
        if function is None:
            continue
        # A class may have an attribute that is called loss.
        if not callable(function):
            raise ConfigError(
                f"{place}: {name} = {shown(function)} must be a function of (outputs, batch)."
            )
        try:
            inspect.signature(function).bind(None, None)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{place}: {name} must take exactly (outputs, batch); in a class make it a "
                "@staticmethod."
            ) from error
        functions[name] = Found(place, name, function, holder)
    return functions


def make_task(functions: Mapping[str, Found], target: Any, source: str) -> type[OwnTask]:
    """Return a task with ``functions``. The type of ``target`` decides a missing loss, or raises
    ConfigError."""
    loss = functions.get("loss")
    score = functions.get("score")
    place = source
    holder = None
    if score:
        place = score.place
        holder = score.holder
    if loss is None:
        kind = name_kind(target)
        default = _make_defaults(kind, target, source)
        loss = Found(source, f"the loss of {kind} targets", default.loss, default)
        score = score or Found(source, f"the score of {kind} targets", default.score, default)
        holder = holder or default
    name, higher = _read_score_facts(holder, place, has_score=score is not None)
    losses = _count_amounts(loss.subject, loss.call)
    attributes: dict[str, Any] = {
        "losses": staticmethod(losses),
        "scores": None,
        "functions": {loss.subject: losses},
        "score": name + LOWER * (not higher and higher_is_better(name)),
        "higher_is_better": higher,
    }
    if score:
        scores = _count_amounts(score.subject, score.call)
        attributes["scores"] = staticmethod(scores)
        attributes["functions"][score.subject] = scores
    return type("OwnTask", (_Task,), attributes)


def _make_defaults(kind: str, target: Any, source: str) -> _Integers | _Floats:
    """Return the default loss and score for targets of a ``kind``. Raises ConfigError if there are
    none."""
    if kind == "integer":
        return _Integers()
    if kind == "float":
        return _Floats(tuple(target.shape[1:]))
    raise ConfigError(
        f"{source} has targets of {kind}; only integers and floats have a default loss. "
        "Write loss(outputs, batch) in its file, or as a @staticmethod of the network's "
        "class."
    )


def _read_score_facts(holder: Any, place: str, has_score: bool) -> tuple[str, bool]:
    """Return the name of the score and its direction, as ``holder``, a class or module, says them.

    ``place``: the name of the holder for messages.
    """
    name = getattr(holder, "score_name", "score" if has_score else "loss")
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{place}: score_name = {shown(name)} must be a text.")
    higher = getattr(holder, "higher_is_better", has_score and higher_is_better(name))
    if not isinstance(higher, bool):
        raise ConfigError(f"{place}: higher_is_better = {shown(higher)} must be True or False.")
    return printable(name), higher


def _count_amounts(subject: str, function: Function) -> Amounts:
    """Return a function of (outputs, `Batch`) that returns the amounts of a user's function.

    It raises ConfigError if the user's function fails, returns another form than before or, in
    training, no gradient.
    """
    first: list[tuple[str, bool]] | None = None

    def count(outputs: Any, batch: Batch) -> dict[str, Amount]:
        nonlocal first
        with calling(subject):
            returned = function(outputs, batch.targets)
        amounts = amounts_in(returned, batch.examples, subject)
        form = [(name, amount.is_mean) for name, amount in amounts.items()]
        if first is None:
            first = form
        # Ranks add up amounts one by one, so each batch must have the same.
        if form != first:
            raise ConfigError(
                f"{subject} returns {_describe_form(form)} for a batch, and "
                f"{_describe_form(first)} before."
            )
        # A pair (sum, count) says itself what it is a mean over.
        if any(amount.is_mean for amount in amounts.values()):
            _require_rows(subject, batch)
        # Training would go on, and nothing would be learnt.
        if torch.is_grad_enabled() and not any(
            _has_gradient(amount.value) for amount in amounts.values()
        ):
            raise ConfigError(
                f"{subject} has no gradient. Compute it from outputs that are not detached."
            )
        return amounts

    return count


def _describe_form(form: list[tuple[str, bool]]) -> str:
    words = []
    for name, is_mean in form:
        what = "number" if is_mean else "pair"
        words.append(f"{name or 'the value'} as a {what}")
    return ", ".join(words)


def _has_gradient(value: Any) -> bool:
    return getattr(value, "requires_grad", False)


def _require_rows(subject: str, batch: Batch) -> None:
    """Raise ConfigError if a collate function made another number of rows: a mean over them cannot
    be weighed."""
    shapes = [tensor.shape for tensor in list_tensors(batch.targets) if tensor.ndim]
    firsts = {shape[0] for shape in shapes}
    if len(firsts) == 1 and not any(batch.examples in shape[:2] for shape in shapes):
        raise ConfigError(
            f"{subject} returns a mean over rows, but the collate function made {firsts.pop()} "
            f"rows of {batch.examples} examples. Return a pair (sum, count)."
        )


def averages_halves(count: Amounts, outputs: Any, batch: Batch) -> bool:
    """Return False if a function's numbers of two halves of a batch do not average to those of the
    whole batch.

    The result is True if the batch cannot be halved, if numbers have 16 bits, or if the function
    fails on a half or draws random numbers.
    """
    ways = split_rows(outputs, batch)
    if not ways or any(
        x.is_floating_point() and x.element_size() < 4 for x in list_tensors(outputs)
    ):
        return True
    with control_random_numbers(), suppress(ConfigError):
        whole = count(outputs, batch)
        # A function that draws random numbers differs from itself, and is not judged.
        again = count(outputs, batch)
        judged = {}
        for name, amount in whole.items():
            if amount.is_mean and amount.total == again[name].total:
                judged[name] = amount.total
        for halves in ways:
            parts = [count(half_outputs, half) for half_outputs, half in halves]
            for name, total in judged.items():
                if not _add_up([part[name].total for part in parts], total):
                    return False
    return True


def _add_up(parts: list[float], total: float) -> bool:
    # Sums in another order differ by rounding in float32.
    near = 1e-4 * sum(map(abs, parts)) + 1e-6
    return abs(sum(parts) - total) <= near


class _Integers:
    """Cross-entropy and accuracy of integer targets; those of `LEFT_OUT` do not count."""

    score_name = Classification.score

    def loss(self, outputs: torch.Tensor, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        targets = self._targets(batch)
        return Classification.loss(outputs, targets, "sum"), (targets != LEFT_OUT).sum()

    def score(self, outputs: torch.Tensor, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        targets = self._targets(batch)
        counts = targets != LEFT_OUT
        return (Classification.right(outputs, targets) & counts).sum(), counts.sum()

    def _targets(self, batch: Any) -> torch.Tensor:
        _require_kind(batch[1], "integer")
        return batch[1].long()


class _Floats:
    """Squared and absolute error of floats, of shape ``shape`` in the first training examples."""

    score_name = Regression.score

    def __init__(self, shape: tuple[int, ...]):
        self._shape = shape

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return Regression.loss(outputs, self._targets(outputs, batch))

    def score(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return (outputs - self._targets(outputs, batch)).abs().mean()

    def _targets(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        """Return a batch's targets in the shape of the outputs. Raises ConfigError if the order of
        axes may differ."""
        target = batch[1]
        _require_kind(target, "float")
        if target.shape == outputs.shape:
            return target
        if target.shape[:1] != outputs.shape[:1] or not have_same_form(
            target.shape[1:], outputs.shape[1:]
        ):
            raise ConfigError(
                f"the network's outputs have the shape {tuple(outputs.shape)}, and the targets "
                f"{tuple(target.shape)}. Give both the same shape, or write loss(outputs, batch)."
            )
        # Targets [b] fit outputs [b, 1]. Other shapes of one size might mix up axes.
        differs = without_ones(target.shape) != without_ones(outputs.shape)
        if differs and tuple(target.shape[1:]) != self._shape:
            raise ConfigError(
                f"targets have the shape {tuple(target.shape[1:])}, and those of the first "
                f"training examples {self._shape}. Give all targets one shape."
            )
        return target.reshape(outputs.shape)


def _require_kind(target: Any, kind: str) -> None:
    if name_kind(target) != kind:
        raise ConfigError(
            f"targets of {name_kind(target)} follow targets of {kind}. Give all splits targets of "
            "the same type."
        )
