"""The agreement of all ranks at the end of a round's local steps: a message of each rank, and what
follows from all messages."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from istmpi.amounts import Amount
from istmpi.comm import Communicator
from istmpi.comm.clock import Clock
from istmpi.errors import DivergedError
from istmpi.trees import all_finite


class Report(NamedTuple):
    """The facts that a rank tells all ranks after its local steps of a round."""

    loss: float | None
    """The mean loss of the rank's steps; None without steps."""
    weight: float | None
    """The count behind this mean; None for a loss that is no pair (sum, count)."""
    bad_step: int | None
    """The first local step, from 1, with a loss or a weight that is not finite."""
    complete: bool
    """True if the rank has taken all of its steps."""
    stop_reason: str
    cause: str
    """A sentence on the cause of a loss that is not finite; empty for the usual cause."""
    digest: int | None
    """The digest of the next deal, if the rank has drawn one."""


@dataclass(frozen=True)
class Summary:
    """The losses of a rank's local steps of a round; fields are those of `Report`."""

    loss: float | None
    weight: float | None
    bad_step: int | None
    cause: str


class StepLosses:
    """The losses of this rank's local steps of a round."""

    def __init__(self) -> None:
        self._losses: list[torch.Tensor] = []
        self._weights: list[float | None] = []
        """The count of each of `_losses`, if a user's function returns sums and counts; otherwise
        None."""
        self._finite_outputs: list[torch.Tensor] = []
        """A tensor for each local step with a user's loss: True if the network's outputs are
        finite."""

    def add(self, loss: torch.Tensor) -> None:
        # It stays on its device: reading it would wait for the step.
        self._losses.append(loss.detach())

    def values(self) -> list[float]:
        """Return the losses, at full precision of float32, and then, for a user's loss, 1 for each
        step with finite outputs and 0 for others."""
        if not self._losses:
            return []
        losses: list[float] = torch.stack(self._losses).float().cpu().tolist()
        return losses + [float(finite) for finite in self._finite_outputs]

    def replace(self, parts: Sequence[Sequence[float]]) -> None:
        """Replace the losses by those of a group: each is the sum of its members' ``parts``, the
        `values` of each. Outputs are finite if those of all members are."""
        steps = len(self._losses)
        columns = list(zip(*parts, strict=True))
        self._losses = [torch.tensor(sum(of_step)) for of_step in columns[:steps]]
        self._finite_outputs = [torch.tensor(all(of_step)) for of_step in columns[steps:]]

    def add_weight(self, weight: float) -> None:
        """Note how much the last loss counts among those of all ranks."""
        self._weights.append(weight)

    def join_weight(self, total: float) -> None:
        """Replace the count behind the last loss, if it has one, by that of a whole group."""
        if self._weights and self._weights[-1] is not None:
            self._weights[-1] = total

    def add_facts(self, outputs: Any, amounts: Mapping[str, Amount]) -> None:
        """Note the outputs (any tree of tensors) and the amounts of a user's loss."""
        self._finite_outputs.append(all_finite(outputs))
        self._weights.append(find_count(amounts))

    def summarise(self, trained: Iterable[torch.Tensor], is_first_round: bool) -> Summary:
        """Return the mean loss, and the first step that is not finite. ``trained``: the weights
        that these steps changed, or the gradients of a single step."""
        losses = torch.empty(0)
        if self._losses:
            losses = torch.stack(self._losses).float().cpu()
        bad = (~torch.isfinite(losses)).nonzero()
        bad_step = None
        cause = ""
        if len(bad):
            bad_step = int(bad[0]) + 1
            cause = self._find_cause(bad_step, is_first_round)
        # The last step may have spoilt the weights, which no loss shows.
        elif not all(torch.isfinite(values.detach().sum()) for values in trained):
            bad_step = len(losses)
        weights = [weight for weight in self._weights if weight is not None]
        if weights and len(weights) == len(self._weights):
            loss = weighted_mean(losses.tolist(), weights)
            return Summary(loss=loss, weight=sum(weights), bad_step=bad_step, cause=cause)
        mean = float(losses.mean()) if len(losses) else None
        return Summary(loss=mean, weight=None, bad_step=bad_step, cause=cause)

    def _find_cause(self, step: int, is_first_round: bool) -> str:
        if self._finite_outputs and bool(self._finite_outputs[step - 1]):
            return (
                "The network's outputs are finite: check the loss function, which may divide by 0."
            )
        if is_first_round and step == 1:
            return "The first step failed: check the network's forward and the data."
        return ""


def exchange(report: Report, communicator: Communicator, clock: Clock) -> list[Report]:
    """Return the reports of all ranks. Collective."""
    with clock("wait"):
        # As plain tuples, which are shorter on the wire.
        messages = communicator.allgather(tuple(report))
    return [Report._make(message) for message in messages]


def require_finite(reports: Sequence[Report], number: int, cure: str) -> None:
    """Raise DivergedError on every rank if a rank's loss or weights are not finite in a round.

    ``cure``: the last sentence of the message if no rank knows the cause.
    """
    diverged = []
    for rank, report in enumerate(reports):
        if report.bad_step is not None:
            diverged.append((report.bad_step, rank))
    if not diverged:
        return
    # The earliest step shows where it began: averaged gradients spread it to all ranks by the
    # next step.
    step, rank = min(diverged)
    # All ranks have the same reports, so they choose the same cause.
    causes = [report.cause for report in reports]
    advice = causes[rank] or next(filter(None, causes), "") or cure
    error = DivergedError(
        f"rank {rank}: the loss is no longer finite in round {number + 1}, local step {step}; "
        f"the weights from before that round are kept. {advice}"
    )
    error.everywhere = True
    raise error


def find_count(amounts: Mapping[str, Amount]) -> float | None:
    """Return how much counts in a user's loss: the count of a single pair; None for other forms."""
    amount = next(iter(amounts.values()))
    if len(amounts) > 1 or amount.is_mean:
        return None
    return amount.count


def mean_loss(reports: Sequence[Report]) -> float:
    """Return the mean of the ranks' losses: weighted if all ranks have weights; NaN without
    losses."""
    losses = [report.loss for report in reports if report.loss is not None]
    weights = [report.weight for report in reports if report.weight is not None]
    if len(weights) == len(reports):
        return weighted_mean(losses, weights)
    if not losses:
        return math.nan
    return sum(losses) / len(losses)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the mean of values by their weights; NaN if no weight is above 0."""
    total = sum(weights)
    if not total:
        return math.nan
    # A value without weight may be NaN.
    weighted = [value * weight for value, weight in zip(values, weights, strict=True) if weight]
    return sum(weighted) / total
