"""A round of a user's own loop: the subnet, its optimizer, and the local steps that the loop
takes."""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import reduce
from math import floor
from typing import Any

import torch
from torch import nn

from istmpi.engine.group_calls import NextRound, Outcome, Step
from istmpi.errors import ConfigError
from istmpi.methods.joint import Joint
from istmpi.program.arguments import find_inputs, read_batch
from istmpi.program.epochs import count_epochs
from istmpi.program.guard import (
    Check,
    Contents,
    find_fault,
    find_fault_of_sum,
    find_fault_of_update,
    require_on,
)
from istmpi.program.in_group import Part
from istmpi.program.loaders import count_examples
from istmpi.program.protocols import Attempts, Job
from istmpi.program.sources import (
    Source,
    choose_source,
    find_place_in_pass,
    require_alone,
    require_in_pass,
    require_least,
)


class Round:
    """A round whose local steps the user's loop takes. Wrong use raises ConfigError."""

    def __init__(self, job: Job, training: Attempts):
        self.number = training.rounds_done + 1
        self._job = job
        self._training = training
        self._method = training.method
        self._attempt: Generator[int, None, bool] = training.attempt()
        """Yields the number of each local step; returns True if all ranks completed the round."""
        self._over = False
        self._committed = False
        self._part = Part(self._method.job.group)
        self._parts = 1
        """The number of batches of a local step."""
        self._losses: list[torch.Tensor] = []
        """The losses of the current local step's batches so far, if it has several."""
        self._local_step = 0
        self._step = 0
        """The current local step's number in the run."""
        self._taken = False
        """True if the loop has taken the current local step."""
        self._summed = False
        """True if the loop has asked for `outputs` in the current local step."""
        self._is_together = False  # True if the loop takes batches that all ranks have
        self._averaged = False
        """True if the gradients of the current local step are averaged."""
        self._in_steps = False
        self._noted = False
        self._method.reads_batches = False
        # A rank may stop early once it knows a step's time.
        self._method.seconds_a_step = 0.0
        self._part.tell(NextRound(training.rounds_done, self.local_steps))
        self._advance()

    @property
    def under_way(self) -> bool:
        return not self._over

    @property
    def module(self) -> nn.Module:
        """The network that this rank trains: of the user's class, with the widths that this rank
        was dealt. In a replica group it is wrapped by DistributedDataParallel."""
        return self._method.subnet.averaging

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The module's optimizer, whose ``step`` takes a local step. Raises ConfigError after the
        round's end."""
        if self._method.subnet.optimizer is None:
            raise self._error("its optimizer no longer exists; round.rate has the learning rate")
        return self._method.subnet.optimizer

    @property
    def device(self) -> torch.device:
        return self._method.job.device

    @property
    def rate(self) -> float:
        """The learning rate of the current local step; after the round, of the last one."""
        return self._method.rate(self._step)

    @property
    def local_steps(self) -> int:
        return self._method.steps(self.number - 1)

    @property
    def epoch(self) -> int:
        """The number of the epoch in which the round begins, from 1. Raises ConfigError unless
        `Distributed.epochs` counts."""
        return floor(count_epochs(self._training, self.number - 1)) + 1

    @property
    def ends_epoch(self) -> bool:
        """True if the last local step of an epoch, or of the run, is in this round."""
        after = floor(count_epochs(self._training, self.number))
        return after >= self.epoch or self.number >= self._training.course.rounds

    def outputs(self, returned: Any) -> Any:
        """Return what the loss takes, for the outputs that `module` has ``returned``.

        With method joint it is the sum of all subnets' outputs; with other methods, the outputs.
        """
        self._require_next()
        if self._method.spec.sums_outputs:
            fault = find_fault_of_sum(self._summed, self._is_together)
            if fault:
                raise self._error(fault)
        self._summed = True
        return self._method.assume(returned)

    def take(
        self,
        loader: Iterable[Any] | None = None,
        accumulate: int = 1,
        ahead: int = 0,
        local: bool = False,
        inputs: Callable[[Any], Any] | None = None,
    ) -> Iterator[Any]:
        """Yield the loader's next batch for each local step, or ``accumulate`` batches, whose
        gradients `step` adds up. Without a loader, take that of `Distributed.epochs`.

        ``ahead``: number of batches of a map-style data set that a thread reads during a step.
        Random numbers that the loop draws from Python or NumPy then do not repeat. ``local``: True
        if each rank has its own data set. `istmpi.program.streams.Stream` says which batches a rank
        gets. ``inputs``: a function that returns the inputs of `module` in a batch, as for
        ``example`` of `Distributed`; only method joint calls it. By default they are the batch's
        first element.
        """
        source = choose_source(loader, accumulate, local, self._job.passes, self.number)
        accumulate = source.accumulate
        require_least("ahead", ahead, 0, self.number)
        method = self._method
        require_in_pass(source, method)
        if method.spec.sums_outputs:
            yield from self._take_together(source, inputs or find_inputs)
            return
        with self._part.telling():
            stream = self._job.streams.find(source.loader, source.local)
        self._parts = accumulate
        for _ in self.steps():
            for part in range(accumulate):
                # Numbers count through the run, so a resumed run takes the batches that come next.
                place = find_place_in_pass(method, stream, self._step)
                batch = stream.at(self._step * accumulate + part, place, ahead)
                method.examples += count_examples(batch)
                yield self._part.take(batch)

    def _take_together(self, source: Source, inputs: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield the batches of a round whose outputs ranks add up: the same on all ranks."""
        method = self._method
        assert isinstance(method, Joint), "the only method that adds up outputs"
        require_alone(source, method.spec.name)
        stream = self._job.streams.find(source.loader, together=True)
        self._is_together = True
        first = method.find_batch(self._step)
        batches = [stream.at(first + place) for place in range(method.batches_in_a_round)]
        if method.needs_batches:
            dtype = method.job.architecture.dtype
            read = [read_batch(inputs, batch).to(self.device, dtype) for batch in batches]
            method.look_ahead(self.number - 1, read)
            # The first step draws the random numbers that it has just drawn.
            method.subnet.seed(first, stochastic=True)
        for _ in self.steps():
            batch = batches[method.place]
            method.examples += count_examples(batch)
            yield batch

    def steps(self) -> Iterator[int]:
        """Yield the number of each local step, from 0; the loop's body must take it."""
        # A second loop would take its steps out of the first one's.
        if self._in_steps:
            raise self._error(
                "round.take is called inside a loop over its local steps. Take a batch of a second "
                "loader by next(...)"
            )
        self._in_steps = True
        try:
            while not self._over:
                yield self._local_step
                if not self._taken:
                    raise self._error(
                        f"local step {self._local_step + 1} was not taken. Call round.step(loss), "
                        "or round.optimizer.step()"
                    )
                # Once in a round, because a comparison of all buffers costs more than a small step.
                is_last = self._local_step + 1 == self.local_steps
                change = self._contents.find_change() if is_last else ""
                if change:
                    raise self._error(change)
                self._advance()
        finally:
            self._in_steps = False

    def step(self, loss: torch.Tensor, scaler: torch.amp.GradScaler | None = None) -> None:
        """Take a local step: backward pass, mean over ranks if the method has one, clipping,
        optimizer, schedule.

        With ``accumulate`` of `take`, only a step's last call moves the weights, by the mean of the
        calls' losses. A resumed run gives ``scaler`` the state that it had. Raises ConfigError if
        the loss is not one number or has no gradient.
        """
        fault = find_fault(loss)
        if fault:
            raise self._error(fault)
        self._require_next()
        value = loss.detach().reshape(()) * self._part.share
        if self._parts > 1:
            self._losses.append(value)
            value = reduce(torch.add, self._losses) / self._parts
            # Gradients of the parts add up, so each part counts as its share of the mean.
            loss = loss / self._parts
        is_last = len(self._losses) % self._parts == 0
        # The method sends gradients during the backward pass once they are complete.
        self._method.hands_over = is_last
        weight = 1 / self._parts
        if scaler:
            # Before its first use: a resumed run goes on with the scale that it had.
            self._job.follow(scaler)
            loss = scaler.scale(loss)
            weight *= scaler.get_scale()
        self._part.go_back(loss, weight)
        self._method.hands_over = False
        if not is_last:
            return
        if scaler:
            self._step_with(scaler)
        else:
            self.optimizer.step()
        self._note(value)
        self._losses.clear()

    def _step_with(self, scaler: torch.amp.GradScaler) -> None:
        self.average_gradients()
        self._method.share_overflow()
        # After the mean over ranks, all ranks find the same overflows and skip the same steps.
        scaler.unscale_(self.optimizer)
        scaler.step(self.optimizer)  # skips a step whose gradients are not finite
        scaler.update()
        self._taken = True

    def note(self, loss: torch.Tensor | float) -> None:
        """Record the loss of a local step that the loop takes by hand, with
        round.optimizer.step()."""
        self._note(torch.as_tensor(loss) * self._part.share)

    def _note(self, loss: torch.Tensor) -> None:
        self._noted = True
        # `take` has counted the examples already.
        self._method.note_step(loss, 0)

    def average_gradients(self) -> None:
        """Average gradients over ranks, if the method does, before clipping. Raises ConfigError if
        none existed yet."""
        if not self._averaged:
            self._part.note_update()
            self._require_gradient()
            self._method.complete_gradients()
            self._averaged = True

    def skip(self) -> None:
        """Count the current local step as taken without an update, as a `GradScaler` skips it."""
        if not self._taken:
            self._taken = True
            self._method.skip_step()

    def finished(self) -> bool:
        """Return True if all ranks completed the round, False if dropped. Raises ConfigError if
        steps are left."""
        if not self._over:
            raise self._error(
                # `_taken` adds 1 if the loop took the current step and asked for no other.
                f"the loop ended after {self._local_step + self._taken} of {self.local_steps} "
                "local steps. Take all of them, like the other ranks"
            )
        if self._committed and not self._noted and self.local_steps:
            self._job.note_once(
                "no loss is recorded: call round.note(loss) after each round.optimizer.step()."
            )
        return self._committed

    @property
    def fate(self) -> str:
        """A sentence about this round if the program has left the loop."""
        place = f"the program left its loop in round {self.number}"
        if self._committed:
            return (
                f"{place}, after its last local step: the job keeps the round's weights, but no "
                "file has them."
            )
        return f"{place}: this round is discarded."

    def discard(self) -> None:
        """Restore the weights from before the round, unless all its local steps are done.
        Collective."""
        if not self._over:
            self._over = True
            self._part.release()
            # The attempt holds the clock's phases, which must end before the rollback.
            self._attempt.close()
            self._method.rollback()

    def _advance(self) -> None:
        """Begin the next local step, or end the round after the last one."""
        method = self._method
        try:
            self._local_step = next(self._attempt)
        except StopIteration as end:
            self._over = True
            self._part.release()
            self._committed = end.value
            self._part.tell(Outcome(end.value))
            return
        self._step = method.first_step(self.number - 1) + self._local_step
        self._taken = False
        self._summed = False
        self._averaged = False
        rate = method.rate(self._step)
        options = method.plan_options(self._step)
        self._part.tell(Step(self._step, self._local_step, rate, options, method.skipped))
        method.job.communicator.whereabouts.step(self._local_step + 1)
        method.hands_over = False  # a loop may call backward() several times in a step
        # A loop may draw random numbers that the inspection of the network has not seen.
        method.subnet.begin_step(method.find_batch(self._step), rate, stochastic=True)
        if self._local_step == 0:
            self._watch_subnet()

    def _watch_subnet(self) -> None:
        """Prepare the subnet's module and optimizer for the loop, and remember what it must not
        change."""
        # For this object alone: a GradScaler also calls its step, which is a whole local step.
        vars(self.optimizer)["step"] = self._update
        self.module.train()
        network = self._method.subnet.network
        self._contents = Contents(network, self._method.job.architecture.frozen)
        self._part.weigh(network)
        self._job.autocast.watch(network, self.device)
        self._job.guard.watch(network, Check(self._look_at))

    def _update(self, closure: None = None) -> None:
        """Take the current local step: the method ``step`` of `optimizer`."""
        self._require_next()
        method = self._method
        fault = find_fault_of_update(closure, method.spec.sums_outputs and not self._summed)
        if fault:
            raise self._error(fault)
        self.average_gradients()
        method.subnet.end_step(self._step, method.rate(self._step))
        self._taken = True

    def _require_next(self) -> None:
        self._require_under_way()
        if self._taken:
            raise self._error(
                f"local step {self._local_step + 1} was taken twice; take the next batch first"
            )

    def _require_under_way(self) -> None:
        if self._over:
            raise self._error(
                "its module and optimizer are used after its end. Use those of the current round"
            )

    def _look_at(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        # A rank that keeps the whole network keeps its module, too, from round to round.
        if not self._method.keeps_network:
            self._require_under_way()
        require_on(self._method.job.device, f"round {self.number}: round.module is", inputs, named)

    def _require_gradient(self) -> None:
        """Raise ConfigError if no parameter has a gradient in the job's first local step."""
        # Later steps may lack gradients, for example of a frozen part.
        if self._job.has_gradients:
            return
        parameters = [*self.module.parameters()]
        if parameters and all(values.grad is None for values in parameters):
            raise self._error(
                "no parameter of round.module got a gradient. Compute the loss from its outputs"
            )
        self._job.has_gradients = True

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"round {self.number}: {text}.")
