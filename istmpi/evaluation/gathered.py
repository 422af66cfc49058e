"""The full network, put together on every rank for an evaluation: any module, run by its own ``forward``.

Every rank needs memory for all weights, and runs the examples that it is given: they may be others on each rank.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from istmpi.comm import Communicator
from istmpi.engine.store import ParameterStore
from istmpi.models.architecture import Architecture
from istmpi.models.inferred import fill
from istmpi.models.norms import calibrate, moments_of


class GatheredNetwork:
    """The full network of the ranks' stores, as they were when it was last calibrated.

    ``local_examples``: in a calibration the ranks' examples differ, and the moments are those of all of them.
    """

    collective = False
    """Ranks may run it on as many examples as they like."""

    def __init__(
        self,
        architecture: Architecture,
        store: ParameterStore,
        communicator: Communicator,
        local_examples: bool = False,
    ):
        self._architecture, self._store, self._communicator = architecture, store, communicator
        self._moments_of = self._moments_over_ranks if local_examples else moments_of
        self._network: nn.Module | None = None
        self.moments: Mapping[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """Mean and variance of every unit of the batch normalisations, as last calibrated."""

    def calibrate(self, *inputs: torch.Tensor) -> None:
        """Take the present weights, and the normalisations' moments on the inputs of a batch. Collective."""
        layers = self._gather()
        calibrate(self._network, layers, inputs, self._moments_of)
        self.moments = {name: layer.moments for name, layer in layers.items()}

    def load_moments(self, moments: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take the present weights, and these moments in place of a calibration. Collective."""
        for name, layer in self._gather().items():
            layer.moments = moments[name]
        self.moments = moments

    @torch.no_grad()
    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The outputs ``[b, outputs]`` for the inputs of a batch."""
        return self._network(*inputs)

    def _gather(self) -> dict[str, nn.Module]:
        """Have the network with the stores' weights; returns its batch normalisations, without moments. Collective."""
        lengths = self._architecture.lengths
        if self._network is None:
            self._network = self._architecture.build(lengths, self._store.scale).eval()
        owners, whole = self._store.owners, {}
        for name, parameter in self._architecture.parameters.items():
            rows, *rest = shape = parameter.pattern.shape(lengths)
            counts = [len(owners.rows(rows, rank)) * int(np.prod(rest)) for rank in range(owners.ranks)]
            mine = self._store.tensors[name].reshape(-1).numpy()
            whole[name] = torch.from_numpy(self._communicator.allgatherv(mine, counts)).view(shape)
        fill(self._network.requires_grad_(False), whole)
        layers = self._architecture.batch_norm_layers(self._network)
        for layer in layers.values():
            layer.moments = None
        return layers

    def _moments_over_ranks(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of every unit over all ranks' examples. Collective."""
        axes, add_up = [0, *range(2, x.ndim)], self._communicator.allreduce_sum
        count = float(add_up(np.array(x.numel() // x.shape[1])))
        mean = torch.from_numpy(add_up(x.sum(dim=axes).numpy())) / count
        centred = x - mean.view(-1, *[1] * (x.ndim - 2))
        return mean, torch.from_numpy(add_up((centred**2).sum(dim=axes).numpy())) / count
