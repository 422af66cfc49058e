"""A checkpoint's whole network in one process, without MPI."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.state import Moments, fill, stored_moments
from istmpi.data.graph.split import GraphSplit
from istmpi.data.images.split import examples_of, resized
from istmpi.data.offsets import less
from istmpi.data.sources import open_dataset
from istmpi.data.sparse.split import Ragged, SparseSplit
from istmpi.deploy.code import changed_source, runnable
from istmpi.deploy.scoring import require_fitting
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError, DataError
from istmpi.evaluation.sample import calibration_rows, sampled_of
from istmpi.exits import entropies, exit_taken, outputs_of
from istmpi.models.architecture import Architecture
from istmpi.models.leaves import prepare
from istmpi.models.norms import calibrate, moments_of
from istmpi.tasks import TASKS

if TYPE_CHECKING:
    from torch import nn

    from istmpi.exits import Outputs


class CalibratedNetwork:
    """Scores examples, each by itself; whole in memory.

    Every byte of the checkpoint is checked. Where it was saved without calibration, ``calibrate_on`` names the data
    whose training split stands in; without it a DataError says so. ``model`` names the class of a network of one's own,
    which is then run.
    """

    def __init__(self, checkpoint: Checkpoint, calibrate_on: str | None = None, model: str | None = None):
        architecture = runnable(checkpoint, model)
        self.note = changed_source(architecture)
        """Something that the user should know; empty where there is nothing."""
        if calibrate_on is None:
            require_calibrated(checkpoint)
        checkpoint.require_valid()
        store = ParameterStore(architecture.parameters, architecture.lengths, 1, 0)
        fill(checkpoint, store)
        self.module = with_values(architecture, store)
        """The network itself, for examples as its ``forward`` takes them."""
        self._path, self._exits = checkpoint.path, architecture.exits
        self._norms = architecture.batch_norm_layers(self.module)
        self._dtype = getattr(torch, checkpoint.header.run.model.dtype)
        self._data, self._example_shape = checkpoint.header.data, architecture.example_shape
        self._rescaling, self._exact = checkpoint.rescaling, checkpoint.target_offset is not None
        self.module.register_forward_hook(self._require_finite)
        self._normalisation, self._side = checkpoint.normalisation, checkpoint.header.side
        if calibrate_on is None:
            self._adopt(stored_moments(checkpoint))
        else:
            self._calibrate(checkpoint, calibrate_on)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The outputs ``[b, outputs]`` for examples ``[b, features]`` as they are in the data; DataError for others.

        In the units of the data where these are numbers to predict, logits divided by the temperature of a classifier;
        of a network with several exits, the last one's.
        """
        return self._rescaled(outputs_of(self._run(x))[-1].numpy())

    def _require_finite(self, module: nn.Module, inputs: tuple[torch.Tensor, ...], returned: Outputs) -> None:
        for outputs in outputs_of(returned):
            if not outputs.isfinite().all():
                odd = outputs[~outputs.isfinite()][0].item()
                raise DataError(
                    f"{self._path}: the outputs of its network are not finite ({odd}). Give another network, or other "
                    f"examples."
                )

    def _rescaled(self, outputs: np.ndarray) -> np.ndarray:
        if self._rescaling is None:
            return outputs
        dtype = np.float64 if self._exact else outputs.dtype
        factor, shift = (values.astype(dtype) for values in self._rescaling)
        return outputs * factor + shift

    @torch.no_grad()
    def of_rows(self, rows: Ragged) -> torch.Tensor:
        """The outputs ``[b, outputs]`` for sparse rows."""
        none = Ragged(np.zeros(len(rows) + 1, np.int64), (np.empty(0, np.int32),))
        batch = SparseSplit(rows, none).batch(np.arange(len(rows)))
        return outputs_of(self.module(*batch.to("cpu", self._dtype).inputs))[-1]

    @torch.no_grad()
    def of_graph(self, split: GraphSplit) -> np.ndarray:
        """The outputs ``[n, outputs]`` for all nodes of a graph."""
        batch = split.batch(np.arange(1)).to("cpu", self._dtype)
        return outputs_of(self.module(*batch.inputs))[-1].numpy()

    def leaving_early(self, x: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
        """The outputs of the exit at which each example leaves, and the number of this exit, from 1.

        An example leaves at the first exit whose normalised entropy is below the threshold, else at the last. The
        network must have passed `require_early_exits`.
        """
        returned = self._run(x)
        taken = exit_taken(entropies(returned), threshold)
        outputs = torch.stack(outputs_of(returned))[taken, torch.arange(len(taken))]
        return self._rescaled(outputs.numpy()), taken.numpy() + 1

    def require_early_exits(self) -> None:
        """Refuse, with a ConfigError, a network that no example can leave early."""
        subject = f"--exit-threshold is for classifiers with several exits; {self._path}"
        if not TASKS[self._data.task].one_class:
            raise ConfigError(f"{subject} has a network for {self._data.task}. Leave it out.")
        if self._exits == 1:
            raise ConfigError(f"{subject} has a network with one. Leave it out.")

    @torch.no_grad()
    def _run(self, x: np.ndarray) -> Outputs:
        if x.ndim != 2 or x.shape[1] != prod(self._data.shape):
            raise DataError(
                f"examples of shape {x.shape} do not fit this network: it takes [examples, {prod(self._data.shape)}], "
                f"one row of numbers for each."
            )
        if self._normalisation and self._normalisation.offset is not None:
            x = less(x, self._normalisation.offset)
        unknown = np.full(len(x), -1)
        examples = examples_of(self._data.kind, self._data.shape, x, unknown, self._normalisation).resized(self._side)
        batch = examples.reshaped(self._example_shape).batch(np.arange(len(x)))
        return self.module(*batch.to("cpu", self._dtype).inputs)

    @property
    def moments(self) -> Moments:
        """Mean and variance of every unit of what normalises over the batch."""
        return {name: layer.moments for name, layer in self._norms.items()}

    def _adopt(self, moments: Moments) -> None:
        for name, layer in self._norms.items():
            layer.moments = moments[name]

    def _calibrate(self, checkpoint: Checkpoint, source: str) -> None:
        inputs = calibration_inputs(checkpoint, source, self._example_shape)
        calibrate(self.module, self._norms, inputs, moments_of)


def with_values(architecture: Architecture, store: ParameterStore) -> nn.Module:
    """The full network with the weights and the scale of a store that has all rows."""
    network = architecture.without_values(store.full_scale).eval()
    for name, parameter in prepare(network, elsewhere=()).items():
        parameter.data = store.tensors[name]
    return network


def calibration_inputs(checkpoint: Checkpoint, source: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """The inputs, examples of a shape, of those training examples of some data that training would calibrate on."""
    run, side = checkpoint.header.run, checkpoint.header.side
    data = open_dataset(source, length=run.data.length)
    if "validation" not in data.splits:
        data = data.with_validation(run.data.validation, run.train.seed)
    require_fitting(data, checkpoint)
    train = resized(data.normalised_by(checkpoint.normalisation), side).reshaped(shape).train
    sampled = sampled_of(run, checkpoint.architecture, data, checkpoint.header.ranks)
    return train.batch(calibration_rows(run, len(train), sampled)).to("cpu", getattr(torch, run.model.dtype)).inputs


def require_calibrated(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose network cannot score a single example."""
    if not checkpoint.calibrated:
        raise DataError(
            f"{checkpoint.path} was saved without calibration; a prediction would depend on the other examples of its "
            f"batch. Give --calibrate-on DATA, the data that it was trained on, or take a run's network.h5."
        )
