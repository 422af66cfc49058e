"""A checkpoint's whole network in one process, without MPI."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.state import Moments, fill, stored_moments
from istmpi.data.batch import Batch
from istmpi.data.graph.split import GraphSplit
from istmpi.data.images.split import examples_of, resized
from istmpi.data.moments import less
from istmpi.data.sparse.split import Ragged, SparseSplit
from istmpi.deploy.fitting import changed_source, deal_of, fitting_data, runnable
from istmpi.engine.store import ParameterStore
from istmpi.errors import DataError
from istmpi.evaluation import blocks
from istmpi.evaluation.sample import count_sampled, draw_calibration_rows
from istmpi.exits import outputs_of
from istmpi.models.leaves import prepare
from istmpi.models.norms import calibrate
from istmpi.trees import call

if TYPE_CHECKING:
    from istmpi.exits import Outputs


class CalibratedNetwork:
    """The whole network in memory. It scores each example by itself.

    ``calibrate_on``: data whose training split calibrates the network; DataError if a file without
    calibration has none. ``model``: the class of a user's own network; its code is run.
    """

    def __init__(
        self, checkpoint: Checkpoint, calibrate_on: str | None = None, model: str | None = None
    ):
        architecture = runnable(checkpoint, model)
        self.note = changed_source(architecture)
        if calibrate_on is None:
            require_calibrated(checkpoint)
        checkpoint.require_valid()
        store = ParameterStore(architecture.parameters, architecture.lengths, 1, 0)
        fill(checkpoint, store)
        header = checkpoint.header
        if header.blocks:
            self.module = blocks.with_values(
                architecture, deal_of(header, architecture), store.tensors
            )
            norms = self.module.layers
        else:
            self.module = architecture.without_values(store.full_scale).eval()
            for name, parameter in prepare(self.module, elsewhere=()).items():
                parameter.data = store.tensors[name]
            norms = architecture.batch_norm_layers(self.module)
        # The file may be closed by the time that examples come.
        self._path, self._header, self._architecture = (
            checkpoint.path,
            checkpoint.header,
            architecture,
        )
        self._normalisation, self._rescaling = checkpoint.normalisation, checkpoint.rescaling
        self._exact = checkpoint.target_offset is not None
        self.module.register_forward_hook(lambda _, __, returned: self._require_finite(returned))
        if calibrate_on is None:
            for name, moments in stored_moments(checkpoint).items():
                norms[name].moments = moments
        else:
            data = resized(fitting_data(checkpoint, calibrate_on), header.side)
            rows = draw_calibration_rows(
                header.run,
                len(data.train),
                count_sampled(header.run, checkpoint.architecture, data, header.ranks),
            )
            batch = data.reshaped(architecture.example_shape).train.batch(rows)
            calibrate(self.module, norms, batch.to("cpu", self._architecture.dtype).inputs)
        self.moments: Moments = {name: layer.moments for name, layer in norms.items()}

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return outputs ``[b, outputs]`` for examples ``[b, features]`` as they are in the data.

        Predicted numbers have the units of the data. A classifier's logits are divided by its
        temperature. Only the last exit's outputs are returned. Raises DataError for another form,
        or outputs that are not finite.
        """
        return self._rescaled(outputs_of(self.outputs(self.batch(x)))[-1].numpy())

    def _require_finite(self, returned: Outputs) -> None:
        for outputs in outputs_of(returned):
            if len(odd := outputs[~outputs.isfinite()]):
                raise DataError(
                    f"{self._path}: the outputs of its network are not finite ({odd[0].item()}). Give another "
                    "network, or other examples."
                )

    def _rescaled(self, outputs: np.ndarray) -> np.ndarray:
        if self._rescaling is None:
            return outputs
        dtype = np.float64 if self._exact else outputs.dtype
        factor, shift = (values.astype(dtype) for values in self._rescaling)
        return outputs * factor + shift

    def of_rows(self, rows: Ragged) -> torch.Tensor:
        none = Ragged(np.zeros(len(rows) + 1, np.int64), (np.empty(0, np.int32),))
        return outputs_of(self.outputs(SparseSplit(rows, none).batch(np.arange(len(rows)))))[-1]

    def of_graph(self, split: GraphSplit) -> np.ndarray:
        return outputs_of(self.outputs(split.batch(np.arange(1))))[-1].numpy()

    @torch.no_grad()
    def outputs(self, batch: Batch) -> Outputs:
        return call(self.module, batch.to("cpu", self._architecture.dtype).inputs)

    def batch(self, x: np.ndarray) -> Batch:
        data, normalisation = self._header.data, self._normalisation
        if x.ndim != 2 or x.shape[1] != prod(data.shape):
            raise DataError(
                f"examples of shape {x.shape} do not fit this network; give [examples, {prod(data.shape)}]."
            )
        if normalisation and normalisation.offset is not None:
            x = less(x, normalisation.offset)
        examples = examples_of(data.shape, x, np.full(len(x), -1), normalisation).resized(
            self._header.side
        )
        return examples.reshaped(self._architecture.example_shape).batch(np.arange(len(x)))


def require_calibrated(checkpoint: Checkpoint) -> None:
    if not checkpoint.calibrated:
        raise DataError(
            f"{checkpoint.path} was saved without calibration, so predictions would depend on the batch. Give "
            "its training data, --calibrate-on DATA, or use a run's network.h5."
        )
