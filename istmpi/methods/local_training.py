"""Local steps: what a rank does alone between two exchanges, and each member of its group alike."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from istmpi.amounts import Amount
from istmpi.code import calling
from istmpi.config.methods import METHODS
from istmpi.data.batch import Batch
from istmpi.data.callable.halves import take_part
from istmpi.errors import ConfigError
from istmpi.methods.agreement import StepLosses
from istmpi.methods.class_loss import class_loss, weigh_classes
from istmpi.methods.job import LocalJob
from istmpi.methods.logit_adjustment import LogitAdjustment
from istmpi.methods.subnet import Subnet
from istmpi.models.moe import weighing_inner_losses
from istmpi.names import is_own
from istmpi.outputs import LossOfOutputs
from istmpi.tasks import OwnTask
from istmpi.trees import call, map_tensors
from istmpi.units import list_first

if TYPE_CHECKING:
    from istmpi.engine.replica_group import ReplicaGroup
    from istmpi.outputs import Outputs

UNTIL_LOSS_IS_KNOWN = 1.0
"""The weight of a member's part for an own task: only the loss knows how much counts in a part, and
`_join_amounts` weighs by it."""


class LocalTraining(ABC):
    """The local steps of a subnet. In a group each member takes a part of the batch, weighed by
    how much it counts, and the mean of members' gradients is that of the whole batch."""

    hands_over = True
    """True in a local step's last backward pass, whose gradients may be sent as soon as they are
    computed."""
    reads_batches = True
    """False if a user's own loop reads the batches and takes the local steps."""
    seconds_a_step = math.inf
    """The mean seconds of a local step of this round; a stop before the first step of a job waits
    for no step."""

    def __init__(self, job: LocalJob):
        self.job = job
        self.settings = job.run.method
        """The settings of the phase's method."""
        self.spec = METHODS[self.settings.name]
        self.rates = job.run.optimizer
        """The settings of the learning rate."""
        self.seed = job.run.train.seed
        self.dtype = job.architecture.dtype
        """The type of the network's values."""
        self.subnet = Subnet(
            job,
            changes_gradients=self.spec.changes_gradients,
            sums_outputs=self.spec.sums_outputs,
        )
        self.task = job.task
        self.examples = 0
        self.skipped = 0
        """The number of local steps of this round that a user's own loop has left out."""
        loss = class_loss(job.task, job.run.train, job.batches)
        self.loss = LossOfOutputs.from_settings(loss, job.run.train)
        self._adjustment = LogitAdjustment(job.batches, job.run.train.logit_adjustment)
        self._losses = StepLosses()
        self._amounts: Mapping[str, Amount] = {}
        """The amounts of a user's loss in the last local step; empty for other losses."""
        self._share_of_examples = 1.0
        """The part of the examples of the current batch that this process has taken."""
        self._has_gradients = False
        self._weigh = weigh_classes(job.run.train, job.batches)

    @abstractmethod
    def rate(self, step: int) -> float:
        """Return the learning rate of a local step, of those numbered through all rounds."""

    def plan_options(self, step: int) -> list[dict[str, Any]]:
        """Return the options that a program's schedule sets at a local step, for each group of its
        optimizer; an empty list if it sets none."""
        if self.job.optimizer is None:
            return []
        return self.job.optimizer.plan(step)

    def first_step(self, number: int) -> int:
        """Return the number of this rank's first local step in a round; steps are numbered through
        all rounds."""
        if self.spec.in_passes:
            return number * self.settings.epochs * self.job.batches.in_a_pass
        return number * self.settings.local_steps

    def steps(self, number: int) -> int:
        """Return the number of this rank's local steps in a round."""
        return self.first_step(1)

    @property
    def keeps_network(self) -> bool:
        """True if this process uses the same network in all rounds."""
        return True

    def rollback(self) -> None:
        """Restore all values from before the round; does nothing by default."""
        return

    def take_step(self, step: int, rate: float) -> None:
        """Take the local step number ``step`` of the run, with a learning rate."""
        whole = self.batch(step)
        batch, share = self._take_part(whole)
        batch = batch.to(self.job.device, self.dtype)
        number = self.find_batch(step)
        self.subnet.begin_step(number, rate, self.job.architecture.stochastic)
        minimised, loss = self.objective(self.subnet.averaging, batch)
        if share is not None and self._amounts:
            minimised, loss = self._join_amounts(share)
            share = 1.0
        self._go_back(minimised, share)
        self._require_gradients()
        if share is not None:
            loss = loss * share
        # A method may look at the loss before it changes the gradients.
        self.note_step(loss, whole.examples)
        self.complete_gradients()
        self.subnet.end_step(step, rate)

    def _take_part(self, batch: Batch) -> tuple[Batch, float | None]:
        """Return this member's part of a batch, and the part's weight in the batch's loss; None for
        a rank alone. The weights of all members add up to 1, except for an own task."""
        group = self.job.group
        if group is None:
            return batch, None
        rows = group.take_part(batch.examples)
        is_idle = rows.start == rows.stop
        self._share_of_examples = (rows.stop - rows.start) / batch.examples
        if is_idle:
            # A member without an example takes part in the mean of gradients, with zeros.
            rows = slice(0, 1)
        part = take_part(batch, rows)
        if part is None:
            raise ConfigError(
                f"{self.job.run.data.source}: a batch has a tensor without a row for each example, "
                "so a replica group cannot divide it. Leave train.group_size out."
            )
        if is_idle:
            return part, 0.0
        if issubclass(self.task, OwnTask):
            return part, UNTIL_LOSS_IS_KNOWN
        return part, self._weigh(part) / self._weigh(batch)

    def _join_amounts(self, share: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this member's part of the value that the step minimises, and of the mean loss of
        the whole batch, whose amounts a user's loss has computed. Note how much counts in the whole
        batch. Collective in the group, and in the job if the method sends in every step.

        ``share``: 0 for a member without an example, otherwise 1.
        """
        group = self.job.group
        assert group is not None, "a rank alone has whole batches"
        counts = {name: share * amount.count for name, amount in self._amounts.items()}
        by_member = self._collect_counts(group, counts)
        totals = []
        for name in counts:
            totals.append(sum(of_member[name] for of_member in by_member))
        self._losses.join_weight(totals[0])
        loss = self._add_amounts([*counts.values()], totals)
        if not self.spec.sends_every_step:
            return loss, loss
        # The mean over groups of what they minimise is then that of the joined batches.
        means = group.membership.average_over_groups(totals)
        return self._add_amounts([*counts.values()], means), loss

    @staticmethod
    def _collect_counts(group: ReplicaGroup, counts: dict[str, float]) -> list[dict[str, float]]:
        """Return the counts of a loss's amounts on all members. Collective in the group.

        Raises ConfigError if members have other amounts.
        """
        named, _ = group.membership.collect([*counts.items()])
        by_member = [dict(of_member) for of_member in named]
        for of_member in by_member:
            if of_member.keys() != by_member[0].keys():
                raise ConfigError(
                    f"the loss returns {list_first([*by_member[0]])} for a part of a batch, and "
                    f"{list_first([*of_member])} for another part. Return the same amounts for all."
                )
        return by_member

    def _add_amounts(self, counts: Sequence[float], totals: Sequence[float]) -> torch.Tensor:
        """Return the sum of a user's amounts, each as a mean over ``counts``, weighed by their
        share of ``totals``."""
        terms = []
        for amount, count, total in zip(self._amounts.values(), counts, totals, strict=True):
            terms.append(amount.mean * (count / (total or 1.0)))
        return sum(terms[1:], start=terms[0])

    def _go_back(self, minimised: torch.Tensor, share: float | None) -> None:
        """Compute the gradients; in a group, their mean over its members."""
        group = self.job.group
        if group is None or share is None:
            with self._calling("the backward pass"):
                minimised.backward()
            return
        inner_weight = self._share_of_examples * group.size
        with (
            self._calling("the backward pass"),
            group.averaging(),
            weighing_inner_losses(inner_weight),
        ):
            # The mean over members divides by their number, which is undone here.
            (minimised * (share * group.size)).backward()

    def note_step(self, loss: torch.Tensor, examples: int) -> None:
        """Note the loss and the examples of a step that was taken."""
        self._losses.add(loss)
        self.examples += examples

    def _require_gradients(self) -> None:
        """Raise ConfigError if a user's loss gave no parameter a gradient in this job's first local
        step."""
        if not issubclass(self.task, OwnTask) or self._has_gradients:
            return
        if all(parameter.grad is None for parameter in self.subnet.network.parameters()):
            raise ConfigError(
                f"{self.job.architecture.name}: the loss does not depend on the network: no "
                "parameter has a gradient. Compute the loss from the network's outputs."
            )
        self._has_gradients = True

    def complete_gradients(self) -> None:
        """Let the method change the gradients before the optimizer's step, on all members alike."""
        self.before_update()
        if self.job.group and self.spec.changes_gradients:
            gradients = self.subnet.list_gradients(self.spec.sends_every_step)
            self.job.group.share(gradients)

    def skip_step(self) -> None:
        """Leave out a local step that other ranks may take."""
        self.skipped += 1

    def share_overflow(self) -> None:
        """Agree with other ranks on gradients that are not finite, if their steps depend on each
        other; does nothing by default."""
        return

    def before_update(self) -> None:
        """Change the gradients before the optimizer's step; does nothing by default."""
        return

    def find_batch(self, step: int) -> int:
        """Return the number in the run of a local step's batch, which seeds the step's random
        numbers: that of the step by default."""
        return step

    def batch(self, step: int) -> Batch:
        batches = self.job.batches
        if not self.spec.in_passes:
            return batches.at(step)
        completed_passes, number = divmod(step, batches.in_a_pass)
        return batches.read_from_pass(completed_passes, number)

    def objective(self, network: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the value that a local step minimises, and the loss on the batch's targets; equal
        by default."""
        outputs = self._adjustment(self.assume(self.forward(network, batch)))
        if issubclass(self.task, OwnTask):
            self._amounts = self.task.losses(outputs, batch)
            self._losses.add_facts(outputs, self._amounts)
            loss = sum(amount.mean for amount in self._amounts.values())
        else:
            loss = self.loss(outputs, batch.targets)
        return loss, loss

    def assume(self, returned: Outputs) -> Outputs:
        """Return what the loss takes for the outputs that this rank's network has returned."""
        return returned

    def forward(self, network: Callable[..., Outputs], batch: Batch) -> Outputs:
        """Return the network's outputs. With train.autocast its matrix products are in bfloat16."""
        # DistributedDataParallel may exchange with members in a new network's second forward pass.
        naming: AbstractContextManager[None] = nullcontext()
        if self.job.group:
            naming = self.job.group.naming_lost_member()
        with self._calling("forward"), naming:
            if not self.job.run.train.autocast:
                return call(network, batch.inputs)
            with torch.autocast(self.job.device.type, torch.bfloat16):
                returned = call(network, batch.inputs)
            # The loss needs more precision than bfloat16 has.
            return map_tensors(lambda x: x.float() if x.is_floating_point() else x, returned)

    def _calling(self, what: str) -> AbstractContextManager[None]:
        """Open a context for the code of a user's network or loss; ``what`` names its method."""
        network = self.job.architecture.name
        if issubclass(self.task, OwnTask) or is_own(network):
            return calling(f"{network}: {what}")
        return nullcontext()
