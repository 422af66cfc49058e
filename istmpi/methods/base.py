"""A method of training, which runs a round step by step.

`Method.round` is a generator: it fetches the values that this rank trains, yields the number of
each local step, and sends the trained values. Its caller takes the local steps. A round is
completed or dropped. A dropped round leaves all values as they were before the round.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from istmpi.amounts import Amount
from istmpi.code import calling
from istmpi.config.methods import METHODS
from istmpi.data.batch import Batch
from istmpi.engine.axes import narrow, with_slots
from istmpi.engine.layout import TrainingLayout, part_shape
from istmpi.engine.outer import Outer
from istmpi.engine.partition import Partition
from istmpi.engine.shards import Shards
from istmpi.errors import ConfigError, DivergedError, IstmpiError
from istmpi.methods.class_loss import class_loss
from istmpi.methods.job import Job
from istmpi.methods.logit_adjustment import LogitAdjustment
from istmpi.methods.subnet import Subnet
from istmpi.names import is_own
from istmpi.optim.schedules import rate_at
from istmpi.outputs import LossOfOutputs
from istmpi.tasks import OwnTask
from istmpi.trees import all_finite, call, mapped

if TYPE_CHECKING:
    from istmpi.outputs import Outputs


T = TypeVar("T")


class Dropped(Exception):
    """Raised on every rank when a rank has stopped before its last local step of a round."""


def drive(steps: Generator[int, None, T], take: Callable[[int], None]) -> T:
    """Call ``take`` for each local step that a round yields, and return the round's result."""
    while True:
        try:
            local_step = next(steps)
        except StopIteration as end:
            return end.value
        take(local_step)


class Method(ABC):
    """A method of training. ``subnet`` has the network that this rank trains, and its optimizer."""

    finished_within = 10.0
    """The most seconds in which a rank that is asked to stop finishes its round; it drops a longer
    round."""
    hands_over = True
    """True in a local step's last backward pass, whose gradients may be sent as soon as they are
    computed."""
    restores_itself = False
    """True if the method itself restores this rank's own values from a checkpoint; otherwise
    `Shards` does."""

    def __init__(self, job: Job):
        self.job = job
        self.spec = METHODS[job.run.method.name]
        self.subnet = Subnet(job, self.spec.sends_every_step)
        self.task = job.task
        self.examples = 0
        loss = class_loss(job.task, job.run.train, job.batches)
        self.loss = LossOfOutputs.from_settings(loss, job.run.train)
        self._adjustment = LogitAdjustment(job.batches, job.run.train.logit_adjustment)
        self._deals: dict[int, Partition] = {}
        self._loss = math.nan
        self._losses: list[torch.Tensor] = []
        self._weights: list[float | None] = []
        """The count of each of `_losses`, if a user's function returns sums and counts; otherwise
        None."""
        self._amounts: Mapping[str, Amount] = {}
        """The amounts of a user's loss in the last local step; empty for other losses."""
        self._finite_outputs: list[torch.Tensor] = []
        """A tensor for each local step with a user's loss: True if the network's outputs are
        finite."""
        self._has_gradients = False
        self.seconds_a_step = math.inf
        route = self.spec.route(job.run, job.architecture, job.communicator.size, self.holders)
        route = replace(route, last=job.run.last_rounds(job.course))
        outer, restored = (
            Outer(*self.spec.outer(job.run)),
            {} if self.restores_itself else job.restored,
        )
        self.shards = Shards(job.store, route, job.communicator, job.clock, outer, restored)

    def run(self, number: int) -> float | None:
        """Run a round; return the mean of the ranks' mean losses (NaN without steps), None if
        dropped. Collective.

        A round is dropped if a rank that is asked to stop does not finish its steps; ``job.stop``
        has the reason on all ranks. Raises DivergedError on every rank if a loss or weight is not
        finite. A dropped or diverged round leaves all values as they were before the round.
        """
        return drive(self.attempt(number), lambda local_step: self.take(number, local_step))

    def attempt(self, number: int) -> Generator[int, None, float | None]:
        """Run a round with the result and errors of `run`; yield local steps' numbers to the
        caller, who takes them."""
        try:
            yield from self.round(number)
        except Dropped:
            self.rollback()
            return None
        except DivergedError:
            self.rollback()
            raise
        self.job.restored = {}
        return self._loss

    @abstractmethod
    def round(self, number: int) -> Iterator[int]:
        """Run a round; yield the number of each local step, from 0, which the caller takes on
        ``subnet``."""

    def take(self, number: int, local_step: int) -> None:
        step = self.first_step(number) + local_step
        self.job.communicator.whereabouts.step(local_step + 1)
        batch = self.batch(step).to(self.job.device, getattr(torch, self.job.run.model.dtype))
        self.subnet.begin_step(step, self.rate(step), self.job.architecture.stochastic)
        minimised, loss = self.objective(self.subnet.network, batch)
        with self._calling("the backward pass"):
            minimised.backward()
        self._require_gradients()
        self.before_update()
        self.subnet.end_step(step, self.rate(step))
        self.taken(loss, batch.examples)

    def taken(self, loss: torch.Tensor, examples: int) -> None:
        self._losses.append(loss.detach())
        self.examples += examples

    def _require_gradients(self) -> None:
        """Raise ConfigError if a user's loss gave no parameter a gradient in this job's first local
        step."""
        if issubclass(self.task, OwnTask) and not self._has_gradients:
            if all(parameter.grad is None for parameter in self.subnet.network.parameters()):
                raise ConfigError(
                    f"{self.job.run.model.name}: the loss does not depend on the network: no "
                    "parameter has a gradient. "
                    "Compute the loss from the network's outputs."
                )
            self._has_gradients = True

    def rate(self, step: int) -> float:
        """Return the learning rate of a local step, of those numbered through all rounds."""
        job = self.job
        if job.optimizer:
            return job.optimizer.rate(step)
        planned_step = job.course.find_planned_step(step, in_a_round=self.first_step(1))
        return rate_at(job.run.optimizer, planned_step, self.first_step(job.course.planned))

    def build(self, number: int) -> None:
        """Build this rank's subnet of a round and its optimizer; their values are filled in
        later."""
        store, deal, spec = self.job.store, self.holders(number), self.subnet.spec
        new = self.subnet.build(narrow(deal.lengths, store.parameters, deal.held(store.rank)))
        kept = bool(self.spec.optimizer_slots(self.job.run))
        if new or not kept or self.subnet.optimizer is None or deal.units:
            self.subnet.renew(
                self.first_step(number) - self.first_step(self.job.state_since) if kept else 0
            )
        for name, parameter in with_slots(self.job.architecture.parameters, spec.slots).items():
            if name not in self.subnet.tensors:  # of a block that this rank does not have
                shape = part_shape(deal, parameter, store.rank)
                self.subnet.tensors[name] = torch.empty(
                    shape, dtype=getattr(torch, parameter.dtype)
                )

    def local_steps(self, number: int) -> Iterator[int]:
        """Yield this rank's local steps of a round, then agree with all ranks that all steps were
        taken.

        Raises Dropped or DivergedError on every rank, IstmpiError if ranks drew different deals.
        """
        steps, began, complete = self.steps(number), time.perf_counter(), True
        self._losses, self._weights, self._finite_outputs = [], [], []
        with self.job.clock("compute"):
            for local_step in range(steps):
                if self.leaves(local_step, steps):
                    complete = False
                    break
                yield local_step
                self.after_update(local_step + 1)
                self.seconds_a_step = (time.perf_counter() - began) / (local_step + 1)
        self._agree(number, complete)
        self.subnet.settle()

    def leaves(self, local_step: int, steps: int) -> bool:
        """Return True if a stop is asked for and steps from ``local_step`` on take over
        `finished_within` seconds."""
        return (
            self.job.stop.asked()
            and (steps - local_step) * self.seconds_a_step > self.finished_within
        )

    def before_update(self) -> None:
        """Change the gradients before the optimizer's step; does nothing by default."""
        return

    def after_update(self, done: int) -> None:
        """Act when ``done`` local steps of the round are done; does nothing by default."""
        return

    def rollback(self) -> None:
        self.shards.rollback()

    def publish(self) -> None:
        """Bring the evaluated network to its owners: this rank gets its rows in ``job.store``.
        Collective."""
        self.shards.flush()

    def of_this_rank(self) -> Mapping[str, torch.Tensor]:
        """Return, in host memory, the whole tensors that differ from rank to rank between
        rounds."""
        return self.shards.of_this_rank()

    def first_step(self, number: int) -> int:
        """Return the number of this rank's first local step in a round; steps are numbered through
        all rounds."""
        settings = self.job.run.method
        return number * (
            settings.epochs * self.job.batches.in_a_pass
            if self.spec.in_passes
            else settings.local_steps
        )

    def steps(self, number: int) -> int:
        return self.first_step(1)

    def batch(self, step: int) -> Batch:
        batches = self.job.batches
        return (
            batches.read_from_pass(*divmod(step, batches.in_a_pass))
            if self.spec.in_passes
            else batches.at(step)
        )

    def objective(self, network: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the value that a local step minimises, and the loss on the batch's targets; equal
        by default."""
        outputs = self._adjustment(self.forward(network, batch))
        if issubclass(self.task, OwnTask):
            self._finite_outputs.append(all_finite(outputs))
            self._amounts = self.task.losses(outputs, batch)
            self._weights.append(weight_of(self._amounts))
            loss = sum(amount.mean for amount in self._amounts.values())
        else:
            loss = self.loss(outputs, batch.targets)
        return loss, loss

    def forward(self, network: Callable[..., Outputs], batch: Batch) -> Outputs:
        """Return the network's outputs. With train.autocast its matrix products are in bfloat16."""
        with self._calling("forward"):
            if not self.job.run.train.autocast:
                return call(network, batch.inputs)
            with torch.autocast(self.job.device.type, torch.bfloat16):
                returned = call(network, batch.inputs)
            return mapped(lambda x: x.float() if x.is_floating_point() else x, returned)

    def _calling(self, what: str) -> AbstractContextManager[None]:
        """Open a context for the code of a user's network or loss; ``what`` names its method."""
        users = issubclass(self.task, OwnTask) or is_own(self.job.run.model.name)
        return calling(f"{self.job.run.model.name}: {what}") if users else nullcontext()

    def holders(self, number: int) -> TrainingLayout:
        """Return the deal of a round. Raises IstmpiError if ranks drew different deals. Collective
        the first time."""
        if number not in self._deals:
            with self.job.clock("deal"):
                deal = self._drawn(number)
                self._keep(
                    number, deal, self.job.communicator.allgather(deal.digest) if deal.units else ()
                )
        return self._deals[number]

    @property
    def _ahead(self) -> int:
        return 1 + bool(self.shards.route.early)

    def _drawn(self, number: int) -> Partition:
        job = self.job
        shares = job.shares.of(number) if job.shares else None
        return self.spec.deal(job.run, job.architecture, job.communicator.size, number, shares)

    def _keep(self, number: int, deal: Partition, digests: Sequence[int]) -> None:
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                error = IstmpiError(
                    f"rank {rank}: the deal of round {number + 1} differs from rank 0's; weights "
                    "would be scrambled. "
                    "Run the same versions of istmpi and NumPy on all ranks."
                )
                error.everywhere = True
                raise error
        self._deals = {
            round: kept for round, kept in self._deals.items() if abs(round - number) <= self._ahead
        }
        self._deals[number] = deal

    def _agree(self, number: int, complete: bool) -> None:
        """Agree on a round's mean loss and the next deal, in one message. Raises the errors of
        `local_steps`."""
        losses = torch.stack(self._losses).float().cpu() if self._losses else torch.empty(0)
        bad = (~torch.isfinite(losses)).nonzero()
        step = int(bad[0]) + 1 if len(bad) else None
        trained = self.subnet.network.parameters() if self.steps(number) else ()
        if step is None and not all(
            torch.isfinite(parameter.detach().sum()) for parameter in trained
        ):
            step = len(losses)
        self.job.stop.asked()
        loss, weight = float(losses.mean()) if len(losses) else None, None
        if self._weights and None not in self._weights:
            loss, weight = weighted_mean(losses.tolist(), self._weights), sum(self._weights)
        cause = self._cause(number, step) if len(bad) else ""
        later, deal = number + self._ahead, None
        if later not in self._deals and not (
            self._ahead > 1 and self.job.shares and self.job.shares.changing
        ):
            with self.job.clock("deal"):
                deal = self._drawn(later)
        digest = deal.digest if deal and deal.units else None
        with self.job.clock("wait"):
            report = loss, weight, step, complete, self.job.stop.reason, cause, digest
            reports = self.job.communicator.allgather(report)
        means, weights, bad_steps, done, reasons, causes, digests = zip(*reports, strict=True)
        if deal:
            self._keep(later, deal, digests)
        # The earliest step shows where it began: averaged gradients spread it to all ranks by the
        # next step.
        diverged = [(step, rank) for rank, step in enumerate(bad_steps) if step is not None]
        if diverged:
            step, rank = min(diverged)
            setting = f"optimizer.lr ({self.job.run.optimizer.lr})"
            cure = f"Lower {'the learning rate' if self.job.optimizer else setting}."
            cure = causes[rank] or max(causes) or cure
            error = DivergedError(
                f"rank {rank}: the loss is no longer finite in round {number + 1}, local step "
                f"{step}; the weights from "
                f"before that round are kept. {cure}"
            )
            error.everywhere = True
            raise error
        self.job.stop.settle(reasons)
        if not all(done):
            raise Dropped
        if None not in weights:
            self._loss = weighted_mean(means, weights)
            return
        means = [mean for mean in means if mean is not None]
        self._loss = sum(means) / len(means) if means else math.nan

    def _cause(self, number: int, step: int) -> str:
        """Return a sentence on the cause of a loss that is not finite in a local step; empty for
        the usual cause."""
        if self._finite_outputs and bool(self._finite_outputs[step - 1]):
            return (
                "The network's outputs are finite: check the loss function, which may divide by 0."
            )
        if number == 0 and step == 1:
            return "The first step failed: check the network's forward and the data."
        return ""


def weight_of(amounts: Mapping[str, Amount]) -> float | None:
    """Return how much counts in a user's loss: the count of a single pair; None for other forms."""
    amount = next(iter(amounts.values()))
    return None if len(amounts) > 1 or amount.is_mean else amount.count


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the mean of values by their weights; NaN if no weight is above 0."""
    total = sum(weights)
    counted = [value * weight for value, weight in zip(values, weights, strict=True) if weight]
    return sum(counted) / total if total else math.nan
