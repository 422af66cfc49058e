"""The full network, evaluated: a chain of stages where its weights lie, so that no rank ever has it whole.

Any other network is gathered (`istmpi.gathered`). Of a chain every rank has its owned rows of each stage's product.
Where all ranks can read the examples, every rank computes its slice of the outputs and the activations are gathered.
Where examples must not leave their rank, the rows come to them instead, one owner's at a time. Either way a rank needs
memory for |W|/P weights and one batch of activations.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import nn

from istmpi import rng
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.dataset import Dataset, Split
from istmpi.devices import materialise
from istmpi.gathered import GatheredNetwork
from istmpi.models.architecture import Architecture, Chain
from istmpi.models.losses import TASKS
from istmpi.models.norms import BatchNorm
from istmpi.store import ParameterStore


@dataclass(frozen=True)
class Score:
    """What the full network achieves on a split: mean loss, mean score (accuracy, say) and the number of examples."""

    loss: float
    score: float
    examples: int


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
            _adopt(product, {key: store.tensors[f"{name}.{key}"] for key in product.state_dict()})
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

    def adopt(self, moments: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
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
        everyones = self._communicator.allgather(mine.T.contiguous().view(-1).numpy(), [n * len(x) for n in counts])
        return torch.from_numpy(everyones).view(-1, len(x)).T

    def _products_of(self, stage: int, owner: int) -> nn.Module:
        """An owner's rows of a stage's product, brought to every rank."""
        product = self._products[stage]
        if owner != self._store.rank:
            product = materialise(self._product(self._architecture.stages[stage], owner), "cpu")
        for values in product.state_dict().values():
            self._communicator.broadcast(values.numpy(), owner)
        return product

    def _moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of every unit over all examples."""
        if not self._local_examples:
            variance, mean = torch.var_mean(x, dim=0, correction=0)
            return mean, variance
        examples = float(self._communicator.sum(np.array(len(x))))
        mean = torch.from_numpy(self._communicator.sum(x.sum(dim=0).numpy())) / examples
        variance = torch.from_numpy(self._communicator.sum(((x - mean) ** 2).sum(dim=0).numpy())) / examples
        return mean, variance

    def _layers_behind(self, name: str) -> nn.Sequential:
        """The layers behind a stage's product, with their parameters, a number or two for each unit, on every rank."""
        layers = self._stage(name, self._architecture.lengths[name])[1:]
        counts = self._rows(name)
        tensors = {}
        for key in layers.state_dict():
            mine = self._store.tensors[f"{name}.{key}"].numpy()
            tensors[key] = torch.from_numpy(self._communicator.allgather(mine, counts))
        return _adopt(layers, tensors)

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


class Evaluator:
    """Scores the full network on the test split, after calibrating it on a sample of the training data. Collective."""

    def __init__(
        self,
        run: Run,
        architecture: Architecture,
        dataset: Dataset,
        store: ParameterStore,
        communicator: Communicator,
    ):
        self._run, self._dataset, self._communicator = run, dataset, communicator
        self._local = run.data.placement == "local"
        self._task = TASKS[dataset.task]
        self._dtype = getattr(torch, run.model.dtype)
        kind = ShardedNetwork if isinstance(architecture, Chain) else GatheredNetwork
        self.network = kind(architecture, store, communicator, self._local)

    def score(self) -> Score:
        """The score on the whole test split, at the store's present weights."""
        self.calibrate()
        return self.measure(self._dataset.test)

    def measure(self, split: Split) -> Score:
        """The score on a whole split, with the normalisation as it is."""
        totals = np.zeros(3)
        spread = not self._local and not self.network.collective
        first, step = (self._communicator.rank, self._communicator.size) if spread else (0, 1)
        for rows in islice(self._batches(len(split)), first, None, step):
            x, y = split.rows(rows)
            outputs, y = self.network(self._tensor(x)), torch.from_numpy(y)
            if len(rows):
                totals += float(self._task.loss(outputs, y, "sum")), self._task.points(outputs, y), len(rows)
        if self._local or spread:
            totals = self._communicator.sum(totals)
        loss, points, examples = totals.tolist()
        return Score(loss / examples, points / examples, int(examples))

    def calibrate(self) -> None:
        """Take the normalisations' moments at the store's present weights."""
        self.network.calibrate(self._tensor(self._dataset.train.rows(self._sample())[0]))

    def _sample(self) -> np.ndarray:
        """The training rows to calibrate on: the same on all ranks, or with local examples a share of each rank's."""
        share, stream = 1, 0
        if self._local:
            share, stream = self._communicator.size, self._communicator.rank
        return calibration_rows(self._run, len(self._dataset.train), share, stream)

    def _batches(self, length: int) -> Iterator[np.ndarray]:
        """The rows of a split, as many batches on every rank where all run the network together."""
        batch = self._run.evaluate.batch
        batches = -(-length // batch)
        if self._local and self.network.collective:
            batches = self._communicator.maximum(batches)
        for number in range(batches):
            yield np.arange(min(number * batch, length), min((number + 1) * batch, length))

    def _tensor(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(x).to(self._dtype)


def calibration_rows(run: Run, length: int, share: int = 1, stream: int = 0) -> np.ndarray:
    """The rows of a training split of some length to calibrate on, or one of so many equal shares of them; sorted."""
    wanted = run.evaluate.calibration_examples
    order = rng.permutation(length, rng.key(run.train.seed, "calibration", stream))
    return np.sort(order[: wanted if share == 1 else max(wanted // share, 2)])


def _adopt(module: nn.Sequential, tensors: dict[str, torch.Tensor]) -> nn.Sequential:
    """Let a module's parameters be these very tensors."""
    module.load_state_dict(tensors, assign=True)
    return module.requires_grad_(False)
