"""A user's program in replica groups: what a leader tells the other members, and which part of a
batch a member takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from istmpi.comm import Communicator
from istmpi.comm.groups import Help, Membership
from istmpi.data.batch import Batch
from istmpi.data.callable.halves import take_part
from istmpi.engine.replica_group import ReplicaGroup
from istmpi.errors import ConfigError
from istmpi.models.moe import weighing_inner_losses
from istmpi.program.loaders import count_examples
from istmpi.training.best import Best

T = TypeVar("T")
P = ParamSpec("P")


class Place:
    """A process's place in a program's job, whose processes may be members of replica groups.
    Creation is collective.

    ``settings``: those of the program, of which only the size of groups is read.
    """

    def __init__(self, communicator: Communicator, settings: Mapping[str, Any]):
        size = settings.get("train_group_size", settings.get("group_size", 1))
        self.membership: Membership | None = None
        # `build_run` refuses other values.
        if isinstance(size, int) and size != 1:
            self.membership = Membership(communicator, size)
            communicator = self.membership.communicator
        self.communicator = communicator
        self._answers = False
        """True while a leader is in a call whose result its members wait for."""

    @property
    def leads(self) -> bool:
        """True for a rank: a leader, or a process without other members."""
        return self.membership is None or self.membership.leads

    def telling(self) -> AbstractContextManager[None]:
        """Open a context in which members hear what leaders agree on."""
        if self.membership is None:
            return nullcontext()
        return self.membership.telling()

    def tell(self, message: object) -> None:
        if self.membership:
            self.membership.tell(message)

    def answer(self, call: str, work: Callable[[], T], help: Help | None = None) -> T:
        """Return the result of ``work``, which ranks do; other members get it from their leader,
        and ``help`` with its messages before."""
        # A call that another one makes answers no one.
        if self.membership is None or self._answers:
            return work()
        self._answers = True
        try:
            return self.membership.answer(call, work, help)
        finally:
            self._answers = False


class HasPlace(Protocol):
    place: Place
    best: Best | None


S = TypeVar("S", bound=HasPlace)


def answered(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Let only ranks do a method of a job; other members of groups get its result, and the job's
    best score."""

    @wraps(method)
    def call(self: S, *arguments: P.args, **named: P.kwargs) -> T:
        def work() -> tuple[T, Best | None]:
            return method(self, *arguments, **named), self.best

        result, self.best = self.place.answer(method.__name__, work)
        return result

    return call


class Part:
    """This process's part of the batches of a round: all of them without a replica group."""

    def __init__(self, group: ReplicaGroup | None):
        self._group = group
        self.share = 1.0
        """The part of the current batch that this process has taken."""
        if group:
            self.share /= group.size
        self._hooks: list[RemovableHandle] = []
        self._averaged: set[torch.Tensor] = set()
        """The parameters whose gradients members have averaged since the last forward pass."""
        self._parameters: list[nn.Parameter] = []
        self._went_back = False
        """True if `go_back` has computed gradients of the current local step."""
        self._is_weighed = False
        """True in a backward pass whose loss is weighed."""
        self._adds_up = False
        """True if the network's normalisations add up gradients over members."""

    def tell(self, message: object) -> None:
        """Tell the other members of the replica group, if this process leads one."""
        if self._group and self._group.leads:
            self._group.membership.tell(message)

    def telling(self) -> AbstractContextManager[None]:
        if self._group is None:
            return nullcontext()
        return self._group.membership.telling()

    def take(self, batch: Any) -> Any:
        """Return this member's part of a batch. Raises ConfigError if it cannot be divided."""
        if self._group is None:
            return batch
        examples = count_examples(batch)
        rows = self._group.take_part(examples)
        self.share = (rows.stop - rows.start) / examples
        if not self.share:
            # A member without an example takes part in the mean of gradients, with zeros.
            rows = slice(0, 1)
        part = take_part(Batch((), batch, examples), rows)
        if part is None:
            raise ConfigError(
                "a batch has a tensor without a row for each example, so a replica group cannot "
                "divide it. Leave group_size out."
            )
        return part.targets

    def go_back(self, loss: torch.Tensor, weight: float) -> None:
        """Compute the gradients of a loss that was multiplied by ``weight``; in a group, their mean
        over members."""
        if self._group is None:
            with weighing_inner_losses(weight):
                loss.backward()
            return
        self._went_back = True
        # Normalisations over the whole batch add up gradients on the way: they are weighed before.
        self._is_weighed = True
        try:
            with self._group.averaging(), weighing_inner_losses(weight * self._factor):
                (loss * self._factor).backward()
        finally:
            self._is_weighed = False

    @property
    def _factor(self) -> float:
        """The weight of this member's part in the mean over members, times their number, by which
        the mean divides."""
        assert self._group is not None, "a rank alone has whole batches"
        return self.share * self._group.size

    def weigh(self, network: nn.Module) -> None:
        """Weigh the gradients of each backward pass by this member's part of the batch, until
        `release`. The loop may call ``loss.backward()`` itself."""
        if self._group is None:
            return
        self._adds_up = any(getattr(layer, "members", None) for layer in network.modules())
        self._parameters = [values for values in network.parameters() if values.requires_grad]
        self._hooks.append(network.register_forward_pre_hook(self._begin_pass))
        for parameter in self._parameters:
            # Before DistributedDataParallel takes the gradient.
            self._hooks.append(parameter.register_hook(self._weigh))
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._note_gradient))

    def _begin_pass(self, network: nn.Module, inputs: object) -> None:
        # A pass without gradients has no backward pass, for which DistributedDataParallel prepares.
        if torch.is_grad_enabled():
            self._averaged.clear()

    def _note_gradient(self, parameter: torch.Tensor) -> None:
        """Raise ConfigError in a second backward pass, which members do not average."""
        if parameter in self._averaged:
            raise ConfigError(
                "a second backward pass follows a call of round.module, and a replica group "
                "averages only the first. Add up the losses and call backward() once, or call "
                "round.module before each backward pass."
            )
        self._averaged.add(parameter)

    def _weigh(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._is_weighed or self._factor == 1.0:
            return gradient
        if self._adds_up:
            raise ConfigError(
                "this batch is divided into unequal parts, and a batch normalisation takes the "
                "moments of the whole batch. Call round.step(loss) instead of loss.backward()."
            )
        return gradient * self._factor

    def release(self) -> None:
        """Leave the gradients of the network as they are."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._averaged.clear()

    def note_update(self) -> None:
        """Note that the optimizer moves the weights. Count the bytes of a backward pass that the
        loop has called itself. Raises ConfigError if members have gradients of their own."""
        if self._group and not self._went_back:
            if not self._averaged and any(values.grad is not None for values in self._parameters):
                raise ConfigError(
                    "the gradients do not come from loss.backward(), so they differ between the "
                    "processes of a replica group. Call round.step(loss) or loss.backward()."
                )
            self._group.count_averaging()
        self._averaged.clear()
        self._went_back = False
