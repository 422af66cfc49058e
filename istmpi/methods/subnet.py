"""The network that this rank trains in a round, and the network's optimizer, which steps without
communication."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from istmpi import rng
from istmpi.code import calling
from istmpi.devices import to_empty
from istmpi.engine.slots import Slot
from istmpi.methods.job import Job
from istmpi.network.linear import defer, label_layers, release_gradients
from istmpi.optim.optimizers import choose_optimizer
from istmpi.optim.sparse_rows import SparseRows, find_bags
from istmpi.tasks import MultiLabel

CLIP_OF_REGRESSION = 1.0
"""The default clip for regression: squared errors have unbounded gradients, and wide layers need
short steps."""


class Subnet:
    """A network and its optimizer. ``tensors`` has the weights and the optimizer's state by their
    names in the store.

    ``averages_gradients``: True if gradients are sent to other ranks; then all gradients are dense.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer | None = None

    def __init__(self, job: Job, averages_gradients: bool):
        self._job, self._lengths = job, None
        self.tensors: dict[str, torch.Tensor] = {}
        self.spec = choose_optimizer(job.run.optimizer)
        self.clip = _clip(job)
        self._sparse = self.spec.name == "sgd" and not self.clip and not averages_gradients
        self._sparse_rows: SparseRows | None = None
        if (
            not job.optimizer
        ):  # one that only a program can make is refused here, and not in the first round
            self.spec.make([nn.Parameter(torch.zeros(1))])

    def build(self, lengths: Mapping[str, int]) -> bool:
        """Build a network with axis ``lengths`` and undefined values, and return True.

        A last network of the same lengths is used again, because new memory is expensive; the
        result is then False.
        """
        if self._lengths == lengths:
            return False
        job, self._lengths = self._job, None
        scale = job.store.scale if lengths != job.architecture.lengths else job.store.full_scale
        network = job.architecture.without_values(scale, lengths)
        # decision 27: kept while lengths stay, because fresh pages cost more than values.
        self.network, self._lengths = to_empty(network, job.device).train(), dict(lengths)
        if issubclass(job.task, MultiLabel):
            defer(self.network)
        if self._sparse:
            for bag in find_bags(self.network):
                bag.sparse = True
                bag.register_forward_pre_hook(self._about_to_read, with_kwargs=True)
        return True

    def renew(self, steps: int) -> None:
        """Make a new optimizer with zero state. ``steps``: the number of steps that its state
        begins with."""
        if self._job.optimizer:
            self.optimizer = self._job.optimizer.make(self.network)
        else:
            self.optimizer = self.spec.make(self.network.parameters())
        self._move = self.optimizer.step
        self.tensors = {}
        for name, parameter in self.network.named_parameters():
            self.tensors[name] = parameter.detach()
            state = {slot: torch.zeros_like(parameter.detach()) for slot in self.spec.slots}
            self.tensors |= {Slot(name, slot): values for slot, values in state.items()}
            if state:
                self.optimizer.state[parameter] = self.spec.state(state, steps)
        if self._sparse:
            self._sparse_rows = SparseRows(self.network, self.optimizer, self._job.run.optimizer)

    def begin_step(self, number: int, rate: float, stochastic: bool) -> None:
        """Begin a local step: delete all gradients. ``rate``: learning rate of label layers that
        update themselves.

        ``number``: the step's number in the run. It seeds the random numbers of a ``stochastic``
        network (dropout).
        """
        job = self._job
        if stochastic:
            # torch.manual_seed would note a call, with its stack, for each kind of device that is
            # not in use.
            key = rng.key(job.run.train.seed, "dropout", job.communicator.rank, number) >> 1
            torch.default_generator.manual_seed(key)
            if job.device.type == "cuda":
                torch.cuda.manual_seed(key)
        if self._sparse and not job.run.optimizer.momentum:
            for layer in label_layers(self.network):
                layer.rate, layer.decay = rate, job.run.optimizer.weight_decay
        with self._calling("zero_grad"):
            self.optimizer.zero_grad(set_to_none=True)

    def end_step(self, number: int, rate: float) -> None:
        if self.clip:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        if self._job.optimizer:
            self._job.optimizer.schedule(self.optimizer, number)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        if self._sparse_rows:
            self._sparse_rows.step(rate)
        with self._calling("step"):
            self._move()

    def _calling(self, method: str) -> AbstractContextManager[None]:
        """Return a context in which a method of a user's optimizer runs: its errors name it."""
        is_own = bool(self._job.optimizer) or ":" in self.spec.name
        return calling(f"{self.spec.name}: {method}") if is_own else nullcontext()

    def settle(self) -> None:
        """Apply the postponed updates of embeddings' rows that the last steps did not read."""
        if self._sparse_rows:
            self._sparse_rows.finish()

    def release_gradients(self) -> None:
        release_gradients(self.network)

    def release(self) -> None:
        self.optimizer, self.tensors = None, {}

    def _about_to_read(
        self, bag: nn.EmbeddingBag, inputs: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        self._sparse_rows.settle_rows(bag.weight, inputs[0] if inputs else named["input"])


def _clip(job: Job) -> float:
    if job.run.optimizer.clip is not None:
        return job.run.optimizer.clip
    return CLIP_OF_REGRESSION if job.task.standardises and job.run.data.standardise else 0.0
