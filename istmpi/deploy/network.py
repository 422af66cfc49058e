"""A checkpoint's whole network in one process, without MPI."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.state import Moments, fill, read_moments, read_own
from istmpi.data.batch import Batch
from istmpi.data.graph.split import GraphSplit
from istmpi.data.images.split import make_examples, resize_images
from istmpi.data.moments import subtract
from istmpi.data.sparse.split import Ragged, SparseSplit
from istmpi.deploy.fitting import (
    attach_code,
    find_last_deal,
    note_changed_source,
    open_fitting_data,
)
from istmpi.engine.store import ParameterStore
from istmpi.errors import DataError
from istmpi.evaluation import blocks
from istmpi.evaluation.likelihood import choose_module
from istmpi.evaluation.planning import Evaluations
from istmpi.evaluation.sample import draw_calibration_rows
from istmpi.network.leaves import prepare
from istmpi.network.norms import Calibrated, calibrate
from istmpi.outputs import list_outputs, take_last
from istmpi.tasks import TASKS
from istmpi.trees import call

if TYPE_CHECKING:
    from istmpi.network.architecture import Architecture
    from istmpi.outputs import Outputs


class CalibratedNetwork:
    """The whole network in memory. It scores each example by itself.

    ``calibrate_on``: data whose training split calibrates the network; DataError if a file without
    calibration has none. ``model``: the class of a user's own network; its code is run.
    ``inputs``: those on which it is tried, if the data do not define them.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        calibrate_on: str | None = None,
        model: str | None = None,
        inputs: tuple[torch.Tensor] | None = None,
    ):
        architecture = attach_code(checkpoint, model, inputs)
        self.note = note_changed_source(architecture)
        if calibrate_on is None:
            require_calibrated(checkpoint)
        checkpoint.require_valid()
        header = checkpoint.header
        # The file may be closed by the time that examples come.
        self.path = checkpoint.path
        self._header = header
        self._architecture = architecture
        self._normalisation = checkpoint.normalisation
        self._rescaling = checkpoint.rescaling
        self._exact = checkpoint.target_offset is not None
        self.module, norms = _build(checkpoint, architecture)
        # A hook, because several callers use the module itself.
        self.module.register_forward_hook(lambda _, __, returned: self._require_finite(returned))
        if calibrate_on is None:
            for name, moments in read_moments(checkpoint).items():
                norms[name].moments = moments
        else:
            batch = _draw_sample(checkpoint, calibrate_on, architecture.example_shape)
            calibrate(self.module, norms, batch.to("cpu", architecture.dtype).inputs)
        moments_by_name = {}
        for name, layer in norms.items():
            if layer.moments is not None:
                moments_by_name[name] = layer.moments
        self.moments: Moments = moments_by_name

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return outputs ``[b, outputs]`` for examples ``[b, features]`` as they are in the data.

        Predicted numbers have the units of the data. A classifier's logits are divided by its
        temperature. Of several outputs, the last one is returned. Raises DataError for another
        form, or outputs that are not finite.
        """
        return self.compute_all(x)[-1]

    def compute_all(self, x: np.ndarray) -> list[np.ndarray]:
        """Return every output of the network, each as `__call__` returns the last one."""
        return self.compute_batch(self.batch(x))

    def compute_batch(self, batch: Batch) -> list[np.ndarray]:
        """Return every output of the network for examples as it takes them."""
        return [self._rescale(outputs.numpy()) for outputs in list_outputs(self.outputs(batch))]

    @property
    def example_shape(self) -> tuple[int, ...]:
        return self._architecture.example_shape

    @property
    def features(self) -> int:
        return prod(self._header.data.shape)

    @property
    def label_loss(self) -> str:
        """The loss of sparse rows with several labels (train.multi_label_loss)."""
        return self._header.run.train.multi_label_loss

    @property
    def one_class(self) -> bool:
        """True if the network is a classifier whose examples have one class each."""
        return TASKS[self._header.data.task].one_class

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the network's outputs, the last one's last."""
        return self._architecture.table.output_names

    def _require_finite(self, returned: Outputs) -> None:
        for outputs in list_outputs(returned):
            wrong = outputs[~outputs.isfinite()]
            if len(wrong):
                raise DataError(
                    f"{self.path}: the outputs of its network are not finite "
                    f"({wrong[0].item()}). Give another network, or other examples."
                )

    def _rescale(self, outputs: np.ndarray) -> np.ndarray:
        if self._rescaling is None:
            return outputs
        # An offset that float32 would round needs float64.
        dtype = np.float64 if self._exact else outputs.dtype
        factor, shift = (values.astype(dtype) for values in self._rescaling)
        return outputs * factor + shift

    def compute_rows(self, rows: Ragged) -> torch.Tensor:
        """Return the logits of sparse rows."""
        no_labels = Ragged(np.zeros(len(rows) + 1, np.int64), (np.empty(0, np.int32),))
        batch = SparseSplit(rows, no_labels).batch(np.arange(len(rows)))
        return take_last(self.outputs(batch))

    def compute_graph(self, split: GraphSplit) -> np.ndarray:
        """Return the logits of all nodes of a graph, which is one example."""
        return take_last(self.outputs(split.batch(np.arange(1)))).numpy()

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Outputs:
        return call(self.module, batch.to("cpu", self._architecture.dtype).inputs)

    def batch(self, x: np.ndarray) -> Batch:
        shape = self._header.data.shape
        features = self.features
        if x.ndim != 2 or x.shape[1] != features:
            raise DataError(
                f"examples of shape {x.shape} do not fit this network; give [examples, {features}]."
            )
        normalisation = self._normalisation
        if normalisation and normalisation.offset is not None:
            x = subtract(x, normalisation.offset)
        no_labels = np.full(len(x), -1)
        examples = make_examples(shape, x, no_labels, normalisation).resize(self._header.side)
        return examples.reshape(self._architecture.example_shape).batch(np.arange(len(x)))


def _build(
    checkpoint: Checkpoint, architecture: Architecture
) -> tuple[nn.Module, Mapping[str, Calibrated]]:
    """Return the module with a checkpoint's weights, and its batch normalisations by name."""
    store = ParameterStore(architecture.parameters, architecture.lengths, 1, 0)
    fill(checkpoint, store)
    if checkpoint.header.blocks:
        deal = find_last_deal(checkpoint.header, architecture)
        values_of = read_own(checkpoint)
        columns = checkpoint.header.data.columns
        build = choose_module(checkpoint.header.run.evaluate.form)
        subnets = blocks.with_values(architecture, deal, store, values_of, columns, build)
        return subnets, subnets.layers
    module = architecture.without_values(store.full_scale).eval()
    for name, parameter in prepare(module, elsewhere=()).items():
        parameter.data = store.tensors[name]  # not a copy: the network is in memory once
    return module, architecture.batch_norm_layers(module)


def _draw_sample(checkpoint: Checkpoint, source: str, shape: tuple[int, ...]) -> Batch:
    """Return the examples of a ``shape`` on which training calibrates, from other data."""
    header = checkpoint.header
    data = resize_images(open_fitting_data(checkpoint, source), header.side)
    evaluations = Evaluations.in_training(header.run, checkpoint.architecture, data, header.ranks)
    seed = header.run.train.seed
    rows = draw_calibration_rows(seed, len(data.train), evaluations.sampled)
    return data.reshape(shape).train.batch(rows)


def require_calibrated(checkpoint: Checkpoint) -> None:
    if not checkpoint.calibrated:
        raise DataError(
            f"{checkpoint.path} was saved without calibration, so predictions would depend on the "
            "batch. Give its training data, --calibrate-on DATA, or use a run's network.h5."
        )
