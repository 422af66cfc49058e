"""Joint training of subnets on the sum of their outputs.

The units are dealt out once. Every rank keeps the subnet of its units, and no weight is sent. The
network is all P subnets side by side, and its output is the sum of theirs:

    S = sum over p of z_p

All ranks draw the same batches. At the beginning of a round of J local steps, each rank passes the
J batches through its subnet, without gradients, and the ranks add up the outputs. Each rank then
takes its J steps without communication. Step j minimises

    loss(S_j + sigma (z_p - z_p at the round's start)) / sigma

A rank thus knows what the others answered, and assumes how they change meanwhile: sigma = P (the
default) assumes that all subnets move as its own does, and sigma = 1 that all others stand still.
sigma = P is the safe parameter of the adding variant of CoCoA+ (Ma et al. 2015, arXiv 1502.03508),
here for subnets instead of blocks of coordinates; sigma = 1 is a Jacobi step. With J = 1 the
gradient is that of the whole sum for every sigma, as in joint training of an ensemble (Webb et al.
2019, arXiv 1902.04422). Codistillation (arXiv 1804.03235) teaches each network the mean of the
others instead, so that each can stand alone; here only the sum counts.

A round of several passes (`method.passes`) has n batches and more than n local steps: steps j,
j + n and j + 2n have the same batch and the same S_j. As in CoCoA+, ranks work more for the same
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf, sqrt
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from istmpi.comm.host_copies import on_host
from istmpi.comm.ledger import ROUNDS
from istmpi.config.legs import count_batches
from istmpi.data.batch import Batch
from istmpi.engine.layout import TrainingLayout
from istmpi.engine.output_sums import NAME
from istmpi.engine.store import Tensors
from istmpi.engine.transfer import Transfer
from istmpi.errors import ConfigError
from istmpi.methods.agreement import Report
from istmpi.methods.job import Job
from istmpi.methods.output_sums import OutputSums
from istmpi.methods.replicated import ReplicatedMethod
from istmpi.network.added import clear, find_added

if TYPE_CHECKING:
    from istmpi.comm.codec import Wire
    from istmpi.outputs import Outputs


ROUNDED = 0.05
ROUNDED_SHORT = 1.0
"""The largest difference between outputs for the same weights and inputs, relative to the largest
output so far; the second one if the loop computes in 16 bits."""


class Joint(ReplicatedMethod):
    """A method in which ranks keep their subnets, and add up outputs instead of weights."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._local_steps: int = self.settings.local_steps
        self.batches_in_a_round = count_batches(self.settings)
        self._sigma = self.settings.sigma or float(job.communicator.size)
        # One subnet is the whole sum, which it need not assume.
        self._is_alone = job.communicator.size == 1 and self._sigma == 1
        # A round of a single step passes its batch only once.
        self.needs_batches = self._local_steps > 1 and not self._is_alone
        # Sums travel while ranks take steps, so their messages are separate from all others.
        self._beside = job.communicator.duplicate(ROUNDS)
        self._sums: OutputSums | None = None
        self._batches: list[Batch] = []
        self._local_step = 0
        self._number = 0
        self._reports: list[Report] = []
        """The reports on a single step, from before its update; otherwise empty."""
        self._largest = 0.0
        """The largest output at a round's start so far."""
        self._deal: TrainingLayout | None = None
        # The norm is that of all ranks' gradients, so this method clips in place of the subnet.
        if self.subnet.clip:
            self.subnet.clip_together = self._clip_together

    def round(self, number: int) -> Iterator[int]:
        self.begin(number)
        self._number = number
        self._start = {}
        if self._keeps_start:
            self._start = {name: values.clone() for name, values in self.each_rank().items()}
        self._local_step = 0
        self._sums = OutputSums(self._beside, self.batches_in_a_round, self._choose_wire(number))
        if self.reads_batches:
            self._look_ahead(number)
        yield from self.local_steps(number)
        self._finish_sums()
        self._start = {}

    @property
    def _keeps_start(self) -> bool:
        """True if a round may have to be undone. A round of one step is never left, and ranks
        agree that its loss and gradients are finite before they take it (`before_update`). A rank
        that does not see the loss, or whose user's loop takes the step, does not know that."""
        # The plan counts the copy for a run that reads batches.
        is_planned = self.spec.copies(self.job.run, self.job.communicator.size, 0) > 0
        return is_planned or not self.reads_batches

    # ---- the sums of a round

    def _look_ahead(self, number: int) -> None:
        """Read the round's batches, and begin to add up their outputs."""
        first = self.find_batch(self.first_step(number))
        self._batches = []
        for batch_number in range(first, first + self.batches_in_a_round):
            self._batches.append(super().batch(batch_number).to(self.job.device, self.dtype))
        self.look_ahead(number, self._batches)

    def find_batch(self, step: int) -> int:
        # decision 96: each pass over a round's batches draws the random numbers of the first one.
        round, local_step = divmod(step, self._local_steps)
        count = self.batches_in_a_round
        return round * count + local_step % count

    @property
    def place(self) -> int:
        """The place of the present local step's batch among the batches of the round."""
        return self._local_step % self.batches_in_a_round

    def batch(self, step: int) -> Batch:
        return self._batches[self.place]

    def look_ahead(self, number: int, batches: Sequence[Batch]) -> None:
        """Pass the batches of a round through the subnet, and begin to add up the outputs."""
        if not self.needs_batches:
            return
        assert self._sums is not None, "`round` makes it"
        with self.job.clock("compute"), torch.no_grad():
            first = self.find_batch(self.first_step(number))
            for batch_number, batch in enumerate(batches, start=first):
                self.subnet.seed(batch_number, self._is_stochastic)
                self._sums.put(self._require_whole(self.forward(self.subnet.network, batch)))

    @property
    def _is_stochastic(self) -> bool:
        # A loop may draw random numbers that the inspection of the network has not seen.
        return self.job.architecture.stochastic or not self.reads_batches

    def assume(self, returned: Outputs) -> torch.Tensor:
        """Return the sum of all subnets' outputs ``[b, ...]`` for this rank's loss: S + sigma (z -
        z at the round's start), where z are the outputs that its subnet has ``returned`` now, and S
        is the sum at the round's start. Raises ConfigError unless they are one tensor."""
        outputs = self._require_whole(returned)
        if self._is_alone:
            return outputs
        assert self._sums is not None, "`round` makes it"
        if self._local_steps == 1:
            self._sums.put(outputs.detach())
        elif not self._sums.complete:
            raise ConfigError(
                f"method.name = {self.spec.name!r} adds up the outputs of a round's batches at its "
                "beginning: call round.take(loader) for these batches."
            )
        with self.job.clock("all-reduce"):
            # This rank's z, and S, both of the round's start.
            start, total = self._sums.wait(self.place)
        if self._local_step == 0 and self.needs_batches and not self.reads_batches:
            self._require_start(outputs.detach(), start)
        return Assumed.apply(outputs, start, total, self._sigma)

    def objective(self, network: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the value that a local step minimises, and the loss on the batch's targets. If one
        rank alone has labels, only its loss counts, and all ranks learn its gradient."""
        labels_on = self.job.run.data.labels_on
        if labels_on is None:
            return super().objective(network, batch)
        outputs = self._require_whole(self.forward(network, batch))
        total = self.assume(outputs).detach().requires_grad_()
        gradient = torch.zeros_like(total)
        loss = torch.zeros(())
        has_labels = labels_on == self.job.communicator.rank
        if has_labels:
            loss = self.loss(self._adjustment(total), batch.targets)
            (gradient,) = torch.autograd.grad(loss, total)
        # A rank without labels has no loss.
        self._losses.add_weight(float(has_labels))
        with self.job.clock("all-reduce"):
            sent = gradient.contiguous().cpu()
            self.job.communicator.broadcast(sent.numpy(), labels_on)
        return (outputs * sent.to(outputs.device)).sum(), loss

    def after_update(self, done: int) -> None:
        self._local_step = done

    def leaves(self, local_step: int, steps: int) -> bool:
        """Answer as `Method.leaves`, but False for a single step, for whose sum all ranks wait."""
        return self._local_steps > 1 and super().leaves(local_step, steps)

    def before_update(self) -> None:
        """Delete the gradients on all ranks if a loss or a gradient of one is not finite, and the
        round has no copy. Collective then, in place of the agreement after the step."""
        if self._keeps_start:
            return
        parameters = [*self.subnet.network.parameters()]
        gradients = [p.grad for p in parameters if p.grad is not None]
        self._reports = super()._exchange_reports(self._number, True, gradients)
        if any(report.bad_step is not None for report in self._reports):
            for parameter in parameters:
                parameter.grad = None

    def _exchange_reports(
        self, number: int, complete: bool, trained: Iterable[torch.Tensor]
    ) -> list[Report]:
        # Nothing is to be said twice: a single step has asked before its update.
        reports = self._reports or super()._exchange_reports(number, complete, trained)
        self._reports = []
        return reports

    def _clip_together(self) -> None:
        """Clip the gradients by the norm over all ranks; between two exchanges, by an estimate of
        it: all ranks' parts are taken to be as long as this one's. Collective if a round has one
        step."""
        gradients = [p.grad for p in self.subnet.network.parameters() if p.grad is not None]
        squares = sum(float(gradient.double().square().sum()) for gradient in gradients)
        if self._local_steps == 1:
            # In a message as small as a report, which no plan counts.
            with self.job.clock("all-reduce"):
                squares = sum(self.job.communicator.allgather(squares))
        else:
            squares *= self.job.communicator.size
        # As nn.utils.clip_grad_norm_, which is kept from a division by 0.
        factor = self.subnet.clip / (sqrt(squares) + 1e-6)
        if factor < 1:
            for gradient in gradients:
                gradient.mul_(factor)

    def skip_step(self) -> None:
        """Take part in what other ranks exchange in a step that this rank leaves out."""
        super().skip_step()
        if self._local_steps > 1:
            return
        if self._sums is None or not self._sums.complete:
            raise ConfigError(
                "round.skip comes before round.outputs, for which the other ranks wait. Ask for "
                "the outputs of each step."
            )
        if self.subnet.clip_together:
            for parameter in self.subnet.network.parameters():
                parameter.grad = None
            self._clip_together()

    def share_overflow(self) -> None:
        """Let all ranks leave out a step if a scaled gradient of one of them is not finite.
        Collective if a round has one step; ranks take longer rounds alone."""
        if self._local_steps > 1:
            return
        gradients = [p.grad for p in self.subnet.network.parameters() if p.grad is not None]
        for place, gradient in enumerate(gradients):
            # Gradients of embeddings may be sparse.
            if gradient.is_sparse:
                gradients[place] = gradient._values()
        is_finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        if all(self.job.communicator.allgather(is_finite)):
            return
        for gradient in gradients:
            gradient.fill_(inf)

    def _finish_sums(self) -> None:
        if self._sums:
            self._sums.finish(self.job.communicator.traffic)
        self._sums = None
        self._batches = []

    # ---- what a rank keeps

    def holders(self, number: int) -> TrainingLayout:
        """Return the deal of all rounds. Errors are as for `Method.holders`. Collective once."""
        if self._deal is None:
            self._deal = super().holders(number)
        return self._deal

    def _draw_ahead(self, number: int) -> None:
        """Draw nothing: the deal of all rounds is known."""

    def begin(self, number: int) -> None:
        is_first = not self.subnet.tensors
        is_store_filled = self._published
        super().begin(number)
        if is_first:
            self._count_once()
        if is_store_filled:
            # From the first step on, the owners' rows of dealt tensors are out of date.
            store = self.job.store
            store.release([name for name in store.parameters if self._is_dealt(name)])

    def rollback(self) -> None:
        self._finish_sums()
        super().rollback()

    def of_this_rank(self) -> Tensors:
        """Return the tensors without a dealt axis: every subnet has its own."""
        tensors = super().of_this_rank()
        if not self.subnet.tensors:
            return tensors
        return {name: values for name, values in tensors.items() if not self._is_dealt(name)}

    def fill_store(self) -> None:
        """Give the owners the dealt tensors, of which no two ranks have the same elements, and rank
        0's tensors without a dealt axis: what the sum has once is there. Weights between units of
        two ranks, which no subnet has, become zeros."""
        store = self.job.store
        store.reclaim()
        tensors = on_host(self.each_rank())
        moved = {name: store.parameters[name] for name in tensors if self._is_dealt(name)}
        push = Transfer(moved, self.holders(0), store.owners, store.rank, shared=False)
        push.run(tensors, store.tensors, self.job.communicator)
        self.give_mean((0,))

    def _is_dealt(self, name: str) -> bool:
        return self.job.store.parameters[name].pattern.dealt(self.holders(0).units) > 0

    def _count_once(self) -> None:
        """Keep what is only added to the outputs on rank 0: the sum has it once, as the whole
        network."""
        job = self.job
        added: list[str] = []
        with job.communicator.agreed():
            # Machines may round otherwise: one rank decides.
            if job.communicator.rank == 0:
                dealt = self.holders(0).held(0)
                added = find_added(job.architecture, dealt, self._require_whole)
        added = job.communicator.broadcast_from_root(added)
        if job.communicator.rank > 0:
            clear(self.subnet.network, added)

    def _choose_wire(self, number: int) -> Wire | None:
        return self.shards.route.choose_wire(number, NAME)

    def _require_start(self, outputs: torch.Tensor, start: torch.Tensor) -> None:
        """Raise ConfigError if a round's first step has other ``outputs`` than at its ``start``,
        where weights are the same."""
        # Outputs that are not finite are found out by the loss.
        if not bool(start.isfinite().all()) or not start.numel():
            return
        # Few outputs may all be near 0, so their rounding errors are compared with earlier ones.
        self._largest = max(self._largest, float(start.abs().max()))
        tolerance = ROUNDED
        is_short = outputs.dtype in (torch.bfloat16, torch.float16)
        if is_short or torch.is_autocast_enabled(outputs.device.type):
            tolerance = ROUNDED_SHORT
        if outputs.shape == start.shape:
            difference = float((outputs.double() - start.double()).abs().max())
            if difference <= tolerance * self._largest:
                return
        raise ConfigError(
            "round.module returns other outputs than for the same batch at the round's start. "
            "Change inputs in the data set, or in a function: round.take(loader, inputs=...). Draw "
            "no random numbers before round.module."
        )

    def _require_whole(self, returned: Outputs) -> torch.Tensor:
        """Return a network's outputs. Raises ConfigError unless they are one tensor with a row for
        each example."""
        kind = type(returned).__name__
        if isinstance(returned, torch.Tensor):
            if returned.ndim:
                return returned
            kind = "one number"
        raise ConfigError(
            f"{self.job.architecture.name}: its forward returns {kind}, but method.name = "
            f"{self.spec.name!r} adds up one tensor with a row for each example. Return such a "
            "tensor, or use another method."
        )


class Assumed(torch.autograd.Function):
    """The sum S + sigma (z - z at the round's start), whose loss is divided by sigma: z gets the
    gradient of the loss for the sum, once."""

    @staticmethod
    def forward(
        outputs: torch.Tensor, start: torch.Tensor, total: torch.Tensor, sigma: float
    ) -> torch.Tensor:
        return total + sigma * (outputs - start)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return gradient, None, None, None
