"""A checkpoint's whole network in one process, without MPI."""

import numpy as np
import torch

from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.state import Moments, fill, stored_moments
from istmpi.data.dataset import normalise
from istmpi.data.sources import open_dataset
from istmpi.deploy.scoring import require_fitting
from istmpi.errors import DataError
from istmpi.evaluate import calibration_rows
from istmpi.models.norms import BatchNorm
from istmpi.store import ParameterStore


class CalibratedNetwork:
    """Scores examples, each by itself; whole in memory.

    Every byte of the checkpoint is checked. Where it was saved without calibration, ``calibrate_on`` names the data
    whose training split stands in; without it a DataError says so.
    """

    def __init__(self, checkpoint: Checkpoint, calibrate_on: str | None = None):
        architecture = checkpoint.architecture
        if calibrate_on is None:
            require_calibrated(checkpoint)
        checkpoint.require_valid()
        store = ParameterStore(architecture.parameters, architecture.lengths, 1, 0)
        fill(checkpoint, store)
        with torch.device("meta"):
            self._network = architecture.build(architecture.lengths).eval()
        self._network.load_state_dict(store.tensors, assign=True)
        self._dtype = getattr(torch, checkpoint.header.run.model.dtype)
        self._normalisation = checkpoint.normalisation
        if calibrate_on is None:
            self._adopt(stored_moments(checkpoint))
        else:
            self._calibrate(checkpoint, calibrate_on)

    @torch.no_grad()
    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The outputs ``[b, outputs]`` for examples ``[b, features]`` float32, which are normalised in place."""
        if self._normalisation:
            normalise(x, *self._normalisation)
        return self._network(torch.from_numpy(x).to(self._dtype)).numpy()

    @property
    def moments(self) -> Moments:
        """Mean and variance of every unit of the stages that normalise over the batch."""
        return {stage: layer.moments for stage, layer in self._norms()}

    def _norms(self) -> list[tuple[str, BatchNorm]]:
        stages = self._network.named_children()
        return [(stage, layer) for stage, layers in stages for layer in layers if isinstance(layer, BatchNorm)]

    def _adopt(self, moments: Moments) -> None:
        for stage, layer in self._norms():
            layer.moments = moments[stage]

    @torch.no_grad()
    def _calibrate(self, checkpoint: Checkpoint, source: str) -> None:
        """Take the moments on the same examples as training would."""
        data = open_dataset(source)
        require_fitting(data, checkpoint)
        train = data.normalised_by(checkpoint.normalisation).train
        x = torch.from_numpy(train.rows(calibration_rows(checkpoint.header.run, len(train)))[0]).to(self._dtype)
        for layer in (layer for stage in self._network for layer in stage):
            if isinstance(layer, BatchNorm):
                variance, mean = torch.var_mean(x, dim=0, correction=0)
                layer.moments = mean, variance
            x = layer(x)


def require_calibrated(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose network cannot score a single example."""
    if not checkpoint.calibrated:
        raise DataError(
            f"{checkpoint.path} was saved without calibration; a prediction would depend on its batch mates. "
            f"Give --calibrate-on DATA, the data that it was trained on, or take a run's network.h5."
        )
