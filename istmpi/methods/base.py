"""A method of training, which runs a round step by step.

`Method.round` is a generator: it fetches the values that this rank trains, yields the number of
each local step, and sends the trained values. Its caller takes the local steps. A round is
completed or dropped. A dropped round leaves all values as they were before the round.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from istmpi.engine.axes import narrow, with_slots
from istmpi.engine.group_calls import Begin, Collect, Step
from istmpi.engine.layout import TrainingLayout, part_shape
from istmpi.engine.outer import Outer
from istmpi.engine.partition import Partition
from istmpi.engine.shards import Shards
from istmpi.errors import DivergedError, IstmpiError
from istmpi.methods.agreement import Report, StepLosses, exchange, mean_loss, require_finite
from istmpi.methods.job import Job
from istmpi.methods.local_training import LocalTraining
from istmpi.optim.schedules import rate_at

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


class Method(LocalTraining, ABC):
    """A method of training. ``subnet`` has the network that this rank trains, and its optimizer."""

    job: Job

    finished_within = 10.0
    """The most seconds in which a rank that is asked to stop finishes its round; it drops a longer
    round."""
    restores_itself = False
    """True if the method itself restores this rank's own values from a checkpoint; otherwise
    `Shards` does."""

    def __init__(self, job: Job):
        super().__init__(job)
        if job.optimizer:
            job.optimizer.follow(self.rates, self._find_place)
        self._deals: dict[int, Partition] = {}
        self._loss = math.nan
        self._number_in_group = 0
        if job.group:
            self._number_in_group = job.group.count_method()
        ranks = job.communicator.size
        route = self.spec.route(job.run, job.architecture, ranks, self.holders, job.course)
        lr, momentum = self.spec.outer(job.run)
        self.shards = Shards(
            store=job.store,
            route=route,
            communicator=job.communicator,
            clock=job.clock,
            outer=Outer(lr, momentum),
            restored={} if self.restores_itself else job.restored,
        )

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
        # The round's values replace those of the checkpoint; a dropped round still needs them.
        self.job.restored = {}
        return self._loss

    @abstractmethod
    def round(self, number: int) -> Iterator[int]:
        """Run a round; yield the number of each local step, from 0, which the caller takes on
        ``subnet``."""

    def take(self, number: int, local_step: int) -> None:
        """Take a local step of a round: forward, backward, and the optimizer's update."""
        step = self.first_step(number) + local_step
        rate = self.rate(step)
        if self.job.group:
            options = self.plan_options(step)
            self.job.group.membership.tell(Step(step, local_step, rate, options))
        self.job.communicator.whereabouts.step(local_step + 1)
        self.take_step(step, rate)

    def rate(self, step: int) -> float:
        job = self.job
        if job.optimizer:
            return job.optimizer.rate(step)
        return rate_at(self.rates, *self._find_place(step))

    def _find_place(self, step: int) -> tuple[float, int]:
        """Return a local step's number in the plan, and the plan's number of local steps."""
        course = self.job.course
        planned_step = course.find_planned_step(step, in_a_round=self.first_step(1))
        return planned_step, self.first_step(course.planned)

    def build(self, number: int) -> None:
        """Build this rank's subnet of a round and its optimizer; their values are filled in
        later."""
        store = self.job.store
        deal = self.holders(number)
        subnet = self.subnet
        lengths = narrow(deal.lengths, store.parameters, deal.held(store.rank))
        is_new = subnet.build(lengths, self._choose_scale(lengths))
        keeps_state = bool(self.spec.optimizer_slots(self.job.run))
        moves = bool(deal.units) and not self.shards.route.keeps_all
        if is_new or not keeps_state or subnet.optimizer is None or moves:
            steps = 0
            if keeps_state:
                # Adam corrects its moments by the number of steps that they have seen.
                steps = self.first_step(number) - self.first_step(self.job.state_since)
            subnet.renew(steps)
        parameters = with_slots(self.job.architecture.parameters, subnet.spec.slots)
        for name, parameter in parameters.items():
            if name not in subnet.tensors:
                # The tensor belongs to a block that this rank does not have: its part is empty.
                shape = part_shape(deal, parameter, store.rank)
                subnet.tensors[name] = torch.empty(shape, dtype=getattr(torch, parameter.dtype))

    def _choose_scale(self, lengths: Mapping[str, int]) -> Mapping[str, float] | None:
        """Return the factors of sums over units in a network with axis ``lengths``."""
        if self.spec.sums_outputs:
            return None
        if lengths == self.job.architecture.lengths:
            return self.job.store.full_scale
        return self.job.store.scale

    def _begin_in_group(self, number: int) -> None:
        """Give this round's subnet, with its values, to the other members of the group."""
        group = self.job.group
        # A rank without steps has nothing for its members.
        if group is None or not self.steps(number):
            return
        subnet = self.subnet
        assert subnet.lengths is not None, "`build` has built it"
        call = Begin(
            number=number,
            method=self._number_in_group,
            side=self.job.side,
            lengths=subnet.lengths,
            scale=subnet.scale,
            is_new=subnet.is_new,
            steps=subnet.steps_of_new_state,
            keeps_state=self.spec.keeps_optimizer(self.job.run),
        )
        subnet.is_new = False
        subnet.steps_of_new_state = None
        group.membership.tell(call)
        group.share(subnet.list_values(call.is_new, call.keeps_state))

    def local_steps(self, number: int) -> Iterator[int]:
        """Yield this rank's local steps of a round, then agree with all ranks that all steps were
        taken.

        Raises Dropped or DivergedError on every rank, IstmpiError if ranks drew different deals.
        """
        steps = self.steps(number)
        self._begin_in_group(number)
        began = time.perf_counter()
        complete = True
        self._losses = StepLosses()
        self.skipped = 0
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
        if not self.job.stop.asked():
            return False
        return (steps - local_step) * self.seconds_a_step > self.finished_within

    def after_update(self, done: int) -> None:
        """Act when ``done`` local steps of the round are done; does nothing by default."""
        return

    def rollback(self) -> None:
        self.shards.rollback()

    def publish(self) -> None:
        """Bring the evaluated network to its owners: this rank gets its rows in ``job.store``.
        Collective."""
        self.shards.flush()

    def values_on_all_ranks(self) -> Mapping[str, torch.Tensor]:
        """Return the weights, whole, that every rank has between rounds with the values that
        `publish` gives their owners: an evaluation need not send them. Equal names on all ranks."""
        return self.shards.values_on_all_ranks()

    def values_of_subnet(self, number: int) -> Mapping[str, torch.Tensor]:
        """Return the values that this rank has of its own subnet, whose number is its rank."""
        return self.subnet.tensors or self.of_this_rank()

    def values_of_part(self, deal: Partition) -> Mapping[str, torch.Tensor]:
        """Return the weights that this rank holds of its part of a deal, with the values that
        `publish` gives their owners. Equal names on all ranks."""
        values = dict(self.values_on_all_ranks())
        if self.shards.held:
            values |= self.shards.held.find_weights(deal)
        return values

    def of_this_rank(self) -> Mapping[str, torch.Tensor]:
        """Return, in host memory, the whole tensors that differ from rank to rank between
        rounds."""
        return self.shards.of_this_rank()

    @property
    def keeps_network(self) -> bool:
        return self.shards.route.keeps_all

    def agree_on_deal(self, number: int) -> bool:
        """Draw the deal of a round; return True if the ranks had to exchange its digest for that.
        Collective; raises what `holders` does."""
        if number in self._deals:
            return False
        layout = self.holders(number)
        return number in self._deals and bool(layout.units)

    def holders(self, number: int) -> TrainingLayout:
        """Return the deal of a round. Raises IstmpiError if ranks drew different deals. Collective
        the first time."""
        if number not in self._deals:
            with self.job.clock("deal"):
                deal = self._draw(number)
                digests: list[int] = []
                if deal.units:
                    digests = self.job.communicator.allgather(deal.digest)
                self._keep(number, deal, digests)
        return self._deals[number]

    @property
    def _ahead(self) -> int:
        """The number of rounds between a round and the last deal that is known at its end."""
        # What leaves early in the next round goes to the ranks of the round after it.
        return 1 + bool(self.shards.route.early)

    def _draw(self, number: int) -> Partition:
        job = self.job
        shares = None
        if job.shares:
            shares = job.shares.of(number)
        return self.spec.deal(job.run, job.architecture, job.communicator.size, number, shares)

    def _draw_ahead(self, number: int) -> Partition | None:
        """Return the deal that the round after ``number`` needs; None if it is known, or if its
        shares are not."""
        later = number + self._ahead
        shares = self.job.shares
        shares_may_change = self._ahead > 1 and shares is not None and shares.changing
        if later in self._deals or shares_may_change:
            return None
        with self.job.clock("deal"):
            return self._draw(later)

    def _keep(self, number: int, deal: Partition, digests: Sequence[int | None]) -> None:
        """Keep a deal, and forget those of rounds long ago. Raises IstmpiError if ``digests``, the
        ranks' digests of it, differ."""
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                error = IstmpiError(
                    f"rank {rank}: the deal of round {number + 1} differs from rank 0's; weights "
                    "would be scrambled. Run the same versions of istmpi and NumPy on all ranks."
                )
                error.everywhere = True
                raise error
        self._deals = {
            round: kept for round, kept in self._deals.items() if abs(round - number) <= self._ahead
        }
        self._deals[number] = deal

    def _join_losses(self, number: int) -> None:
        """Add up the parts of the members of the group in the losses of a round's steps."""
        group = self.job.group
        if group is None or not self.steps(number):
            return
        group.membership.tell(Collect(self.skipped))
        parts, signal = group.membership.collect(self._losses.values())
        self._losses.replace(parts)
        self.job.stop.take(signal)

    def _agree(self, number: int, complete: bool) -> None:
        """Agree on a round's mean loss and the next deal, in one message. Raises the errors of
        `local_steps`."""
        trained = self.subnet.network.parameters() if self.steps(number) else ()
        reports = self._exchange_reports(number, complete, trained)
        setting = f"optimizer.lr ({self.rates.lr})"
        if self.job.optimizer:
            setting = "the learning rate"
        require_finite(reports, number, f"Lower {setting}.")
        self.job.stop.settle([report.stop_reason for report in reports])
        if not all(report.complete for report in reports):
            raise Dropped
        self._loss = mean_loss(reports)

    def _exchange_reports(
        self, number: int, complete: bool, trained: Iterable[torch.Tensor]
    ) -> list[Report]:
        """Return the reports of all ranks on a round's local steps, and keep the next deal.
        Collective. ``trained``: what these steps must have left finite."""
        self._join_losses(number)
        summary = self._losses.summarise(trained, is_first_round=number == 0)
        self.job.stop.asked()
        deal = self._draw_ahead(number)
        report = Report(
            loss=summary.loss,
            weight=summary.weight,
            bad_step=summary.bad_step,
            complete=complete,
            stop_reason=self.job.stop.reason,
            cause=summary.cause,
            digest=deal.digest if deal and deal.units else None,
        )
        reports = exchange(report, self.job.communicator, self.job.clock)
        if deal:
            self._keep(number + self._ahead, deal, [report.digest for report in reports])
        return reports
