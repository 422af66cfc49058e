"""What every method of training is given, and the round that all of them fill in.

    begin(round)          what this rank trains is made, and filled with what arrives
    local steps           no communication, but for gradients where a method averages them
    end(round)            what was trained goes where it belongs

A round that is stopped in its middle is suspended instead of ended; `begin` resumes inside it. Slots of the store and
divergence are handled here, for all methods.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from istmpi import rng
from istmpi.comm import Communicator
from istmpi.comm.codec import Wire
from istmpi.comm.stopping import StopSign
from istmpi.data.batch import Batch
from istmpi.data.batches import Batches
from istmpi.devices import to_empty
from istmpi.engine.shares import Shares
from istmpi.engine.slots import Slot
from istmpi.engine.store import ParameterStore
from istmpi.engine.wire import form_of
from istmpi.errors import DivergedError
from istmpi.exits import outputs_of, weighted_loss
from istmpi.methods import METHODS
from istmpi.methods.logit_adjustment import LogitAdjustment
from istmpi.methods.optimizers import optimizer_spec
from istmpi.methods.outer import Outer
from istmpi.methods.sparse_rows import SparseRows, bags
from istmpi.models.architecture import Architecture
from istmpi.models.label_blocks import defer, label_layers
from istmpi.record import Clock
from istmpi.tasks import MULTI_LABEL, REGRESSION, task_of

CLIP_OF_REGRESSION = 1.0
"""Where a run does not say otherwise: a squared error has no largest gradient, and wide layers make steps too long."""

if TYPE_CHECKING:
    from istmpi.config import Run
    from istmpi.exits import Outputs


@dataclass
class Job:
    """Everything that a method works on: one rank's view of a run."""

    run: Run
    architecture: Architecture
    task: str
    store: ParameterStore
    batches: Batches
    communicator: Communicator
    device: torch.device
    clock: Clock
    stop: StopSign
    state_since: int = 0
    """The round since which optimizer state has been kept, where it is kept from round to round."""
    shares: Shares | None = None
    """Of every round; None for those of the run's settings."""


@dataclass
class InterruptedRound:
    """A round that was stopped in the middle: what a rank has of it beside its rows in the store."""

    local_steps: int = 0
    """Local steps done."""
    losses: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """Of these steps, float32; none where another number of ranks goes on with the round."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Those of which other ranks have their own values, whole: the store has but the mean of them."""


class Method(ABC):
    """How a round is run: `run` leaves the round's weights in the store. Every method of it is collective.

    From `begin` on there are ``network`` and ``optimizer``, with which this rank trains, and ``tensors``: all that
    belongs to them, by its names in the store.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer | None
    tensors: dict[str, torch.Tensor]
    averages_gradients = False
    """Gradients leave the rank, so that all of them are dense."""

    def __init__(self, job: Job):
        self.job = job
        self.spec = METHODS[job.run.method.name]
        self.tensors = {}
        self.optimizer_spec = optimizer_spec(job.run.optimizer)
        self.outer = Outer(*self.spec.outer(job.run))
        self.examples = 0
        """That this rank has consumed."""
        self.task = task_of(job.task, job.run.train.multi_label_loss)
        self._adjustment = LogitAdjustment(job.batches, job.run.train.logit_adjustment)
        self._built: tuple[dict[str, int], nn.Module] | None = None
        self._sparse_rows: SparseRows | None = None
        # torch imports its compiler for the first optimizer, which takes seconds: here rather than in the first round.
        self.optimizer_spec.make([nn.Parameter(torch.zeros(1))])

    @classmethod
    def check(cls, run: Run, task: str, batches: Batches, architecture: Architecture) -> None:
        """Refuse, with a ConfigError, a run that this method cannot train; by default it can train all.

        ``batches``: this rank's; another may find a reason where this one finds none.
        """
        return

    def run(self, round: int, resume_from: InterruptedRound) -> float | InterruptedRound:
        """Run one round, or what is left of it, and return its mean loss over all ranks and local steps.

        Where a stop is asked for, in which case ``job.stop`` has the reason on all ranks, the round may end in its
        middle: then the store has the weights and the optimizer state of all slots so far, and the InterruptedRound
        is returned from which the round resumes, bit for bit.

        Raises DivergedError on every rank when the loss or the weights of any rank stop being finite; the store then
        still has the weights from before the round, or from where the round was gone on with.
        """
        store = self.job.store
        self.begin(round, resume_from)
        try:
            outcome = self.local_steps(round, resume_from)
        except DivergedError:
            self.go_back()
            raise
        self.settle()
        if isinstance(outcome, InterruptedRound):
            store.add_slots((*self.optimizer_spec.slots, *self.outer.slots_inside))
            outcome.tensors = self.suspend(round)
        else:
            store.drop_slots(except_for=self.kept)
            self.end(round)
        return outcome

    @abstractmethod
    def begin(self, round: int, resume_from: InterruptedRound) -> None:
        """Have what this rank trains in a round, with the values that it starts from, or resumes with."""

    @abstractmethod
    def end(self, round: int) -> None:
        """Send what was trained where it belongs; the store has its slots between rounds."""

    @abstractmethod
    def suspend(self, round: int) -> Mapping[str, torch.Tensor]:
        """Leave in the store, which has all slots for it, what `begin` resumes from in the middle of a round.

        Returns the tensors of which other ranks have their own values: the store has but the mean of them.
        """

    def settle(self) -> None:
        """Have everything as it is after the last local step."""
        if self._sparse_rows:
            self._sparse_rows.finish()

    def go_back(self) -> None:
        """Have the values from before the round again, where it diverged and the store does not have them."""
        return

    def new_optimizer(
        self, network: nn.Module, round: int, resume_from: InterruptedRound
    ) -> tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]:
        """An optimizer for the network, and the tensors of both by their names in the store.

        Its state starts at zero, until the store has filled what it keeps.
        """
        optimizer = self.optimizer_spec.make(network.parameters())
        kept = bool(self.spec.optimizer_slots(self.job.run))
        before = self.first_step(round) - self.first_step(self.job.state_since) if kept else 0
        tensors = {}
        for name, parameter in network.named_parameters():
            tensors[name] = parameter.detach()
            state = {slot: torch.zeros_like(parameter.detach()) for slot in self.optimizer_spec.slots}
            tensors |= {Slot(name, slot): values for slot, values in state.items()}
            if state:
                optimizer.state[parameter] = self.optimizer_spec.state(state, before + resume_from.local_steps)
        if self._has_sparse_gradients:
            self._sparse_rows = SparseRows(network, optimizer, self.job.run.optimizer)
        return optimizer, tensors

    def build(self, lengths: Mapping[str, int]) -> nn.Module:
        """A network of these lengths on this rank's device, its values still undefined.

        It is the last one again where the lengths are the same, as they are from deal to deal: fresh memory would cost
        more than the values that go into it.
        """
        if self._built is None or self._built[0] != lengths:
            self._built = None
            architecture, store = self.job.architecture, self.job.store
            # Who trains the full network trains the one that is evaluated.
            scale = store.scale if lengths != architecture.lengths else store.full_scale
            network = architecture.without_values(scale, lengths)
            self._built = dict(lengths), to_empty(network, self.job.device).train()
            self._prepare(self._built[1])
        return self._built[1]

    @property
    def kept(self) -> tuple[str, ...]:
        """The slots that rest in the store between two rounds."""
        return self.spec.kept(self.job.run, self.job.architecture)

    def _prepare(self, network: nn.Module) -> None:
        """Have a network train with few labels' logits at a time, and gradients of rows that it reads alone."""
        if self.job.task == MULTI_LABEL:
            defer(network)
        if self._has_sparse_gradients:
            for bag in bags(network):
                bag.sparse = True
                bag.register_forward_pre_hook(self._about_to_read, with_kwargs=True)

    def _about_to_read(self, bag: nn.EmbeddingBag, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self._sparse_rows.about_to_read(bag.weight, inputs[0] if inputs else named["input"])

    def _take_steps_at_once(self, network: nn.Module, rate: float) -> None:
        settings = self.job.run.optimizer
        if self._has_sparse_gradients and not settings.momentum:
            for layer in label_layers(network):
                layer.rate, layer.decay = rate, settings.weight_decay

    @property
    def _has_sparse_gradients(self) -> bool:
        settings = self.job.run.optimizer
        return settings.name == "sgd" and not self.clip and not self.averages_gradients

    @property
    def clip(self) -> float:
        """The norm to which a larger gradient is cut; 0 where it is not."""
        run = self.job.run
        if run.optimizer.clip is not None:
            return run.optimizer.clip
        return CLIP_OF_REGRESSION if self.job.task == REGRESSION and run.data.standardise else 0.0

    def wire(self, round: int, what: str, settles: bool = False) -> Wire | None:
        """How one transfer of a round travels; None: as values are. Each name is used once in a round."""
        kind, seed = self.spec.wire(self.job.run), self.job.run.train.seed
        return None if kind == "float32" else Wire(kind, rng.key(seed, "wire", what, round), settles)

    def forms(self, names: Iterable[str]) -> dict[str, str]:
        """In which form each of these tensors travels in an all-reduce."""
        kind, parameters = self.spec.wire(self.job.run), self.job.store.parameters
        return {name: form_of(kind, name, parameters[name]) for name in names}

    def own(self) -> Mapping[str, torch.Tensor]:
        """Tensors of which every rank has its own values between rounds, whole, in host memory; none by default."""
        return {}

    def publish(self) -> None:
        """Have in the store the network as it is worth evaluating, where `run` does not leave it there. Collective."""
        return

    def first_step(self, round: int) -> int:
        """The number of this rank's first local step in a round: steps are numbered through from round to round."""
        return round * self.job.run.method.local_steps

    def steps(self, round: int) -> int:
        """How many local steps this rank takes in a round."""
        return self.job.run.method.local_steps

    def batch(self, step: int) -> Batch:
        """The examples of a local step."""
        return self.job.batches.at(step)

    def local_steps(self, round: int, resume_from: InterruptedRound) -> float | InterruptedRound:
        """This rank's local steps on its own batches; returns the mean loss of all ranks, or raises DivergedError.

        Returns the losses so far as an InterruptedRound when any rank stopped before its last step.
        """
        run, rank = self.job.run, self.job.communicator.rank
        network, optimizer = self.network, self.optimizer
        dtype, steps = getattr(torch, run.model.dtype), self.first_step(run.train.rounds)
        losses = []
        with self.job.clock("compute"):
            for local_step in range(resume_from.local_steps, self.steps(round)):
                # A round resumes from exact values: it must not be begun, with what arrived rounded, a second time.
                if self.asked_to_stop(local_step) and (local_step or self.spec.wire(run) == "float32"):
                    break
                self.job.communicator.whereabouts.step(local_step + 1)
                step = self.first_step(round) + local_step
                if self.job.architecture.stochastic:
                    torch.manual_seed(rng.key(run.train.seed, "dropout", rank, step) >> 1)
                batch = self.batch(step).to(self.job.device, dtype)
                rate = run.optimizer.lr_at(step, steps)
                self._take_steps_at_once(network, rate)
                optimizer.zero_grad(set_to_none=True)
                objective, loss = self.objective(network, batch)
                objective.backward()
                self.before_update()
                if self.clip:
                    nn.utils.clip_grad_norm_(network.parameters(), self.clip)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                if self._sparse_rows:
                    self._sparse_rows.step(rate)
                optimizer.step()
                losses.append(loss.detach())
                self.examples += batch.examples
                self.after_update(local_step + 1)
            done = resume_from.local_steps + len(losses)
            losses = (
                torch.cat([resume_from.losses, torch.stack(losses).float().cpu()]) if losses else resume_from.losses
            )
        return self._agree(network, InterruptedRound(done, losses), round)

    def asked_to_stop(self, local_step: int) -> bool:
        """Whether this rank shall not begin that local step."""
        return self.job.stop.asked()

    def before_update(self) -> None:
        """Do with a local step's gradients what comes before the optimizer's step; by default nothing."""
        return

    def after_update(self, done: int) -> None:
        """Do what comes when so many local steps of the round are done; by default nothing."""
        return

    def objective(self, network: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """What a local step makes smaller, and the loss on the batch's targets: by default the same."""
        loss = self.loss(self._adjustment(self.forward(network, batch)), batch.targets)
        return loss, loss

    def loss(self, outputs: Outputs, targets: torch.Tensor) -> torch.Tensor:
        """The task's loss, of a network with several exits the weighted sum over them."""
        return weighted_loss(self.task.loss, outputs, targets, self.job.run.train.exit_weights)

    def forward(self, network: Callable[..., Outputs], batch: Batch) -> Outputs:
        """The network's outputs, its matrix products in bfloat16 if the run says so."""
        if self.job.run.train.autocast:
            with torch.autocast(self.job.device.type, torch.bfloat16):
                returned = network(*batch.inputs)
            return [outputs.float() for outputs in outputs_of(returned)]
        return network(*batch.inputs)

    def _agree(self, network: nn.Module, mine: InterruptedRound, round: int) -> float | InterruptedRound:
        """The mean loss of a round that every rank got through, or what this rank has of one that they did not."""
        bad = (~torch.isfinite(mine.losses)).nonzero()
        step = mine.local_steps - len(mine.losses) + int(bad[0]) + 1 if len(bad) else None
        trained = network.parameters() if self.steps(round) else ()
        if step is None and not all(torch.isfinite(parameter.detach().sum()) for parameter in trained):
            step = mine.local_steps
        self.job.stop.asked()
        complete = mine.local_steps >= self.steps(round)
        loss = float(mine.losses.mean()) if len(mine.losses) else None
        with self.job.clock("wait"):
            untrained = round == 0 and step == 1 and bool(len(bad))
            reports = self.job.communicator.allgather((loss, step, complete, self.job.stop.reason, untrained))
        losses, steps, done, reasons, untrained = zip(*reports, strict=True)
        # The earliest step tells where it began: averaged gradients have spread it to all ranks by the next.
        bad_steps = [(step, rank) for rank, step in enumerate(steps) if step is not None]
        if bad_steps:
            step, rank = min(bad_steps)
            cure = f"Lower optimizer.lr ({self.job.run.optimizer.lr})."
            if any(untrained):
                cure = "No step was taken before: look at the network's forward and at the data."
            error = DivergedError(
                f"rank {rank}: the loss is no longer finite in round {round + 1}, local step {step}; the weights from "
                f"before that round are kept. {cure}"
            )
            error.everywhere = True
            raise error
        self.job.stop.settle(reasons)
        if not all(done):
            return mine
        losses = [loss for loss in losses if loss is not None]
        return sum(losses) / len(losses) if losses else math.nan
