"""Consensus ADMM (Boyd et al. 2011, section 7), with local steps in place of an exact minimum.

x_i <- J steps on  loss_i(x) + rho/2 |x - z + u_i|^2      the rank's own weights
z   <- mean over ranks of  x_i + u_i                      the consensus, which is evaluated
u_i <- u_i + x_i - z                                      the rank's own scaled dual
"""

import torch

from istmpi.engine.slots import Slot, select_weights
from istmpi.engine.store import Tensors
from istmpi.methods.replicated import ReplicatedMethod


class ADMM(ReplicatedMethod):
    """A method in which every rank has its own weights and dual; `publish` stores the consensus."""

    def after_fetch(self) -> None:
        tensors = self.subnet.tensors
        self._consensus = {name: tensors[name].clone() for name in select_weights(tensors)}
        self._duals = {name: torch.zeros_like(values) for name, values in self._consensus.items()}

    def each_rank(self) -> dict[str, torch.Tensor]:
        return super().each_rank() | {
            Slot(name, "dual"): dual for name, dual in self._duals.items()
        }

    @torch.no_grad()
    def before_update(self) -> None:
        for name, parameter in self.subnet.network.named_parameters():
            if parameter.grad is not None:
                # The gradient of rho/2 |x - z + u|^2 is rho (x - z + u).
                apart = parameter - self._consensus[name] + self._duals[name]
                parameter.grad.add_(apart, alpha=self.settings.penalty)

    def exchange(self, number: int) -> None:
        weights = {name: self.subnet.tensors[name] for name in self._duals}
        self._consensus = {name: values + self._duals[name] for name, values in weights.items()}
        self.shards.average(self._consensus)
        for name, dual in self._duals.items():
            dual += weights[name] - self._consensus[name]

    def fill_store(self) -> None:
        self.shards.keep(self._consensus)

    def values_on_all_ranks(self) -> Tensors:
        # Before the first round of a job, only the owners have values.
        if not self.subnet.tensors:
            return {}
        return self._consensus
