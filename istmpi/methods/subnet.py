"""The network that this rank trains in a round, and the network's optimizer, which steps without
communication."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from istmpi import rng
from istmpi.code import calling
from istmpi.config.sections import Optimizer
from istmpi.data.settings import Data
from istmpi.devices import to_empty
from istmpi.engine.slots import Slot
from istmpi.methods.job import LocalJob
from istmpi.names import is_own
from istmpi.network.linear import defer, label_layers, linear_layers, release_gradients
from istmpi.network.norms import select_synchronised
from istmpi.optim.optimizers import choose_optimizer
from istmpi.optim.sparse_rows import SparseRows, find_bags
from istmpi.tasks import MultiLabel, Task

CLIP_OF_REGRESSION = 1.0
"""The default clip for regression: squared errors have unbounded gradients, and wide layers need
short steps."""


class Subnet:
    """A network and its optimizer. ``tensors`` has the weights and the optimizer's state by their
    names in the store.

    ``changes_gradients``: True if the method changes gradients before the update; then all
    gradients are dense.
    ``sums_outputs``: True if outputs of all subnets are added up. Sums over units then have no
    factor, and label layers return their outputs.
    """

    network: nn.Module
    averaging: nn.Module
    """The network, wrapped in a group of several members so that it averages their gradients."""
    optimizer: torch.optim.Optimizer | None = None
    lengths: dict[str, int] | None = None
    scale: dict[str, float] | None = None
    is_new = False
    """True if the other members of the group do not have the network yet."""
    steps_of_new_state: int | None = None
    """The steps of the optimizer's state, if the other members do not have the optimizer yet."""

    def __init__(self, job: LocalJob, changes_gradients: bool, sums_outputs: bool):
        self._job = job
        self._sums_outputs = sums_outputs
        self.tensors: dict[str, torch.Tensor] = {}
        self.spec = choose_optimizer(job.run.optimizer)
        self.clip = _choose_clip(job.run.optimizer, job.run.data, job.task)
        self.clip_together: Callable[[], None] | None = None
        """A method's own way to clip, which replaces `clip`."""
        # Members of a replica group average dense gradients alone.
        self._sparse = (
            self.spec.name == "sgd" and not self.clip and not changes_gradients and not job.group
        )
        self._sparse_rows: SparseRows | None = None
        # An optimizer that only a program can make is refused here, and not in the first round.
        if not job.optimizer:
            self.spec.make([nn.Parameter(torch.zeros(1))])

    def build(self, lengths: Mapping[str, int], scale: Mapping[str, float] | None) -> bool:
        """Build a network with axis ``lengths`` and undefined values, and return True.

        ``scale``: the factors of sums over units; None for none.

        A last network of the same lengths is used again, because new memory is expensive; the
        result is then False.
        """
        if self.lengths == lengths:
            return False
        job = self._job
        self.lengths = None
        network = job.architecture.without_values(scale, lengths)
        # decision 27: kept while lengths stay, because fresh pages cost more than values.
        self.network = to_empty(network, job.device).train()
        self.lengths = dict(lengths)
        self.scale = None
        if scale is not None:
            self.scale = dict(scale)
        self.is_new = True
        self.averaging = self._wrap()
        if issubclass(job.task, MultiLabel) and not self._sums_outputs:
            defer(self.network)
        if self._sparse:
            for bag in find_bags(self.network):
                bag.sparse = True
                bag.register_forward_pre_hook(self._about_to_read, with_kwargs=True)
        return True

    def _wrap(self) -> nn.Module:
        job = self._job
        if job.group is None:
            return self.network
        for _, layer in linear_layers(self.network):
            layer.writes_gradient = False
        for module in self.network.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.sparse = False
        norms = job.architecture.batch_norm_layers(self.network)
        for norm in select_synchronised(norms, job.run.train.sync_batch_norm).values():
            norm.members = job.group
        return job.group.wrap(self.network, may_skip=is_own(job.architecture.name))

    def renew(self, steps: int) -> None:
        """Make a new optimizer with zero state. ``steps``: the number of steps that its state
        begins with."""
        if self._job.optimizer:
            optimizer = self._job.optimizer.make(self.network)
        else:
            optimizer = self.spec.make(self.network.parameters())
        self.optimizer = optimizer
        # A user's program replaces the method, to take this step itself.
        self._update = optimizer.step
        self.steps_of_new_state = steps
        self.tensors = {}
        for name, parameter in self.network.named_parameters():
            self.tensors[name] = parameter.detach()
            state = {}
            for slot in self.spec.slots:
                state[slot] = torch.zeros_like(parameter.detach())
                self.tensors[Slot(name, slot)] = state[slot]
            if state:
                optimizer.state[parameter] = self.spec.state(state, steps)
        if self._sparse:
            self._sparse_rows = SparseRows(self.network, optimizer, self._job.run.optimizer)

    def list_values(self, everything: bool, state: bool) -> Iterator[torch.Tensor]:
        """Yield the trained weights, in an order that all members have.

        ``everything``: with frozen values and buffers. ``state``: with the optimizer's state.
        """
        for parameter in self.network.parameters():
            if everything or parameter.requires_grad:
                yield parameter.detach()
        if everything:
            yield from self.network.buffers()
        if not state:
            return
        for name, _ in self.network.named_parameters():
            for slot in self.spec.slots:
                yield self.tensors[Slot(name, slot)]

    def list_gradients(self, everything: bool) -> Iterator[torch.Tensor]:
        """Yield the gradients of all parameters, in an order that all members have.

        ``everything``: a missing gradient is made, of zeros.
        """
        for parameter in self.network.parameters():
            if parameter.grad is None and everything:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                yield parameter.grad

    @property
    def _present_optimizer(self) -> torch.optim.Optimizer:
        if self.optimizer is None:
            raise AssertionError("a step needs an optimizer, which `renew` makes")
        return self.optimizer

    def begin_step(self, number: int, rate: float, stochastic: bool) -> None:
        """Begin a local step: delete all gradients. ``rate``: learning rate of label layers that
        update themselves.

        ``number``: the step's number in the run. It seeds the random numbers of a ``stochastic``
        network (dropout).
        """
        job = self._job
        self.seed(number, stochastic)
        if self._sparse and not job.run.optimizer.momentum:
            for layer in label_layers(self.network):
                layer.rate = rate
                layer.decay = job.run.optimizer.weight_decay
        with self._calling("zero_grad"):
            self._present_optimizer.zero_grad(set_to_none=True)

    def seed(self, step: int, stochastic: bool) -> None:
        """Seed the random numbers of a ``stochastic`` network (dropout) for the run's local step
        ``step``."""
        if not stochastic:
            return
        job = self._job
        # torch.manual_seed would note a call, with its stack, for each kind of device that is not
        # in use.
        purpose: list[int | str] = ["dropout", job.communicator.rank, step]
        # Members have different examples: equal random numbers would repeat those of the first.
        if job.group and job.group.member:
            purpose.append(job.group.member)
        key = rng.key(job.run.train.seed, *purpose) >> 1
        torch.default_generator.manual_seed(key)
        if job.device.type == "cuda":
            torch.cuda.manual_seed(key)

    def end_step(self, number: int, rate: float) -> None:
        """Update the weights by their gradients, with the learning rate ``rate``."""
        optimizer = self._present_optimizer
        if self.clip_together:
            self.clip_together()
        elif self.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        if self._job.optimizer:
            self._job.optimizer.schedule(optimizer, number)
        else:
            for group in optimizer.param_groups:
                group["lr"] = rate
        if self._sparse_rows:
            self._sparse_rows.step(rate)
        with self._calling("step"):
            self._update()

    def _calling(self, method: str) -> AbstractContextManager[None]:
        """Return a context in which a method of a user's optimizer runs: its errors name it."""
        is_own = bool(self._job.optimizer) or ":" in self.spec.name
        if not is_own:
            return nullcontext()
        return calling(f"{self.spec.name}: {method}")

    def settle(self) -> None:
        """Apply the postponed updates of embeddings' rows that the last steps did not read."""
        if self._sparse_rows:
            self._sparse_rows.finish()

    def release_gradients(self) -> None:
        release_gradients(self.network)

    def release(self) -> None:
        """Forget the optimizer and the tensors; the network's memory is used again."""
        self.optimizer = None
        self.tensors = {}

    def _about_to_read(
        self, bag: nn.EmbeddingBag, inputs: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        if self._sparse_rows:
            rows = inputs[0] if inputs else named["input"]
            self._sparse_rows.settle_rows(bag.weight, rows)


def _choose_clip(optimizer: Optimizer, data: Data, task: type[Task]) -> float:
    """Return the largest norm of all gradients of a step; 0 for none."""
    if optimizer.clip is not None:
        return optimizer.clip
    if task.standardises and data.standardise:
        return CLIP_OF_REGRESSION
    return 0.0
