"""Synchronous data parallel training: every rank has the whole network, gradients are averaged in every step."""

from collections.abc import Callable, Mapping

import torch

from istmpi.comm.allreduce import MeanOverRanks
from istmpi.data.batch import Batch
from istmpi.methods.base import InterruptedRound, Job
from istmpi.methods.replicated import ReplicatedMethod
from istmpi.models.linear import linear_layers


class DataParallel(ReplicatedMethod):
    """Gradients are on their way to be averaged as soon as the backward pass has made them.

    The optimizer's state is never reset.
    """

    averages_gradients = True

    def __init__(self, job: Job):
        super().__init__(job)
        self._mean: MeanOverRanks | None = None
        self._vote: Callable[[], int] | None = None

    def begin(self, round: int, resume_from: InterruptedRound) -> None:
        super().begin(round, resume_from)
        if self._mean is None:
            self._mean = self._hand_over_gradients()

    def end(self, round: int) -> None:
        self.store_rows()

    def suspend(self, round: int) -> Mapping[str, torch.Tensor]:
        self.store_rows()
        return {}

    def asked_to_stop(self, local_step: int) -> bool:
        """All ranks leave before the same step: they ask each other in one what they will do before the next."""
        stop = self._vote is not None and bool(self._vote())
        last = local_step + 1 == self.job.run.method.local_steps
        self._vote = None if stop or last else self.job.communicator.start_allreduce_max(self.job.stop.asked())
        return stop

    def batch(self, step: int) -> Batch:
        wire = self.wire(step, "gradient")
        self._mean.key = wire.key if wire else 0
        return super().batch(step)

    def _hand_over_gradients(self) -> MeanOverRanks:
        """Have every gradient handed over as soon as it is made, large ones in parts."""
        parameters = dict(self.network.named_parameters())
        nbytes = {name: values.nbytes for name, values in parameters.items()}
        mean = MeanOverRanks(nbytes, self.job.communicator, self.forms(parameters))
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(lambda values, name=name: mean.add(name, values.grad))
        for name, layer in linear_layers(self.network):
            layer.made = lambda made, name=f"{name}.weight", weight=layer.weight: mean.add(name, weight.grad, made)
        return mean

    def before_update(self) -> None:
        for name, parameter in self.network.named_parameters():
            if parameter.grad is None:  # a network of one's own may not have used it in this step
                parameter.grad = torch.zeros_like(parameter)
                self._mean.add(name, parameter.grad)
        with self.job.clock("all-reduce"):
            self._mean.finish()
