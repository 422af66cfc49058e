"""The full network, evaluated where its weights lie: a chain of stages, of which no rank ever has the whole.

Every rank has its owned rows of each stage's product. Where all ranks can read the examples, every rank computes its
slice of the outputs and the activations are gathered. Where examples must not leave their rank, the rows come to them
instead, one owner's at a time. Either way a rank needs memory for |W|/P weights and one batch of activations.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from istmpi.comm import Communicator
from istmpi.devices import to_empty
from istmpi.engine.store import ParameterStore
from istmpi.models.architecture import Chain
from istmpi.models.norms import BatchNorm


class ShardedNetwork:
    """The full network over the ranks' stores; it follows the store as training goes on. Every method is collective.

    ``local_examples``: the ranks' examples differ and stay where they are. Else all ranks pass the same ones.
    """

    collective = True
    """All ranks run it together."""

    def __init__(
        self,
        architecture: Chain,
        store: ParameterStore,
        communicator: Communicator,
        local_examples: bool = False,
    ):
        self._architecture, self._store, self._communicator = architecture, store, communicator
        self._local_examples = local_examples
        self._products: list[nn.Module | None] = []
        for name in architecture.stages:
            if not self._rows(name)[store.rank]:
                self._products.append(None)  # more ranks than units
                continue
            product = self._product(name, store.rank)
            _assign(product, {key: store.tensors[f"{name}.{key}"] for key in product.state_dict()})
            self._products.append(product)

    @torch.no_grad()
    def calibrate(self, x: torch.Tensor) -> None:
        """Take the moments of every batch normalisation on examples ``[batch, features]``, at the present weights."""
        self._behind = [self._layers_behind(name) for name in self._architecture.stages]
        for stage, layers in enumerate(self._behind):
            x = self._multiply(stage, x)
            for layer in layers:
                if isinstance(layer, BatchNorm):
                    layer.moments = self._moments(x)
                x = layer(x)

    def load_moments(self, moments: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take the present weights and these moments, mean and variance by stage, in place of a calibration."""
        self._behind = [self._layers_behind(name) for name in self._architecture.stages]
        for name, layers in zip(self._architecture.stages, self._behind, strict=True):
            for layer in layers:
                if isinstance(layer, BatchNorm):
                    layer.moments = moments[name]

    @torch.no_grad()
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs ``[batch, labels]`` for examples ``[batch, features]``, at the weights last calibrated for."""
        for stage, layers in enumerate(self._behind):
            x = layers(self._multiply(stage, x))
        return x

    @property
    def moments(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Mean and variance of every unit of the stages that normalise over the batch, as last calibrated."""
        return {
            name: layer.moments
            for name, layers in zip(self._architecture.stages, self._behind, strict=True)
            for layer in layers
            if isinstance(layer, BatchNorm)
        }

    def _multiply(self, stage: int, x: torch.Tensor) -> torch.Tensor:
        """A stage's product for all its units: ``[batch, units]``."""
        name, lengths = self._architecture.stages[stage], self._architecture.lengths
        counts = self._rows(name)
        if (factor := self._architecture.factor(name, lengths, self._store.scale)) != 1:
            x = x * factor
        if self._local_examples:
            return torch.cat(
                [self._products_of(stage, owner)(x) for owner in range(len(counts)) if counts[owner]], dim=1
            )
        mine = self._products[stage](x) if counts[self._store.rank] else x.new_empty(len(x), 0)
        per_rank = self._communicator.allgatherv(mine.T.contiguous().view(-1).numpy(), [n * len(x) for n in counts])
        return torch.from_numpy(per_rank).view(-1, len(x)).T

    def _products_of(self, stage: int, owner: int) -> nn.Module:
        """An owner's rows of a stage's product, brought to every rank."""
        product = self._products[stage]
        if owner != self._store.rank:
            product = to_empty(self._product(self._architecture.stages[stage], owner), "cpu")
        for values in product.state_dict().values():
            self._communicator.broadcast(values.numpy(), owner)
        return product

    def _moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of every unit over all examples."""
        if not self._local_examples:
            variance, mean = torch.var_mean(x, dim=0, correction=0)
            return mean, variance
        examples = float(self._communicator.allreduce_sum(np.array(len(x))))
        mean = torch.from_numpy(self._communicator.allreduce_sum(x.sum(dim=0).numpy())) / examples
        variance = torch.from_numpy(self._communicator.allreduce_sum(((x - mean) ** 2).sum(dim=0).numpy())) / examples
        return mean, variance

    def _layers_behind(self, name: str) -> nn.Sequential:
        """The layers behind a stage's product, with their parameters, a number or two for each unit, on every rank."""
        layers = self._stage(name, self._architecture.lengths[name])[1:]
        counts = self._rows(name)
        tensors = {}
        for key in layers.state_dict():
            mine = self._store.tensors[f"{name}.{key}"].numpy()
            tensors[key] = torch.from_numpy(self._communicator.allgatherv(mine, counts))
        return _assign(layers, tensors)

    def _product(self, name: str, rank: int) -> nn.Sequential:
        """The product of a stage with a rank's owned rows, without values."""
        return self._stage(name, self._rows(name)[rank])[:1]

    def _stage(self, name: str, units: int) -> nn.Sequential:
        with torch.device("meta"):
            return self._architecture.stage(name, {**self._architecture.lengths, name: units}).eval()

    def _rows(self, name: str) -> list[int]:
        """How many of a stage's units each rank owns."""
        owners, length = self._store.owners, self._architecture.lengths[name]
        return [len(owners.rows(length, rank)) for rank in range(owners.ranks)]


def _assign(module: nn.Sequential, tensors: dict[str, torch.Tensor]) -> nn.Sequential:
    """Let a module's parameters be these very tensors."""
    module.load_state_dict(tensors, assign=True)
    return module.requires_grad_(False)
