"""Answers that leave a network at an early exit (DDNN, arXiv 1709.01921).

An example leaves at the first exit at which the normalised entropy of its probabilities, 0 (sure)
to 1 (all classes alike), is at most a threshold; otherwise at the last. A device that stops there
has computed the exit's FLOPs. Here all exits of a batch are computed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from istmpi.data.decoder import Block
from istmpi.data.images.split import resize_images
from istmpi.deploy.fitting import open_fitting_data, require_source
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.opening import NetworkFile, NetworkPath
from istmpi.deploy.prediction import BATCH, Predictions, split_blocks
from istmpi.errors import ConfigError
from istmpi.outputs import list_outputs
from istmpi.trees import list_tensors

COLUMNS = ("exit", "flops")
THRESHOLDS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Leaving:
    """The cost of a threshold, and how right its answers are."""

    threshold: float
    accuracy: float
    flops: float
    """The mean FLOPs of an example."""
    shares: tuple[float, ...]
    """The shares of examples that leave at each exit."""


def predict_early(
    network: CalibratedNetwork, blocks: Iterable[Block], threshold: float
) -> Iterator[Predictions]:
    """Yield blocks with the outputs of the exit at which each example leaves, its number from 1,
    and its FLOPs. Raises ConfigError for a network without early exits."""
    flops = count_flops(network)
    for names, x, true in split_blocks(blocks):
        outputs = np.stack(network.compute_all(x))
        exits = choose_exits(outputs, threshold)
        added = [(number + 1, flops[number]) for number in exits.tolist()]
        yield Predictions(names, outputs[exits, np.arange(len(x))], true, added)


def choose_exits(outputs: np.ndarray, threshold: float) -> np.ndarray:
    """Return the exit, counted from 0, at which each example leaves: ``[b]`` int64.

    ``outputs``: logits ``[exits, b, classes]``.
    """
    leaves = measure_entropy(outputs) <= threshold
    # At the last exit all leave; the first True counts.
    leaves[-1] = True
    return leaves.argmax(axis=0)


def measure_entropy(logits: np.ndarray) -> np.ndarray:
    """Return the entropy of probabilities, from logits ``[..., classes]``, divided by that of equal
    probabilities."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    odds = np.exp(shifted)
    total = odds.sum(axis=-1)
    entropy = np.log(total) - (odds * shifted).sum(axis=-1) / total
    return entropy / log(logits.shape[-1])


class _Recorder(TorchDispatchMode):
    """Notes the FLOPs that were counted when a tensor was computed."""

    def __init__(self, counter: FlopCounterMode):
        super().__init__()
        self._counter = counter
        self._seen: list[tuple[torch.Tensor, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        flops = self._counter.get_total_flops()
        self._seen += [(tensor, flops) for tensor in list_tensors(result)]
        return result

    def flops_until(self, outputs: torch.Tensor) -> int:
        """Return the FLOPs up to ``outputs``; a tensor that no call made counts all."""
        for tensor, flops in self._seen:
            if tensor.data_ptr() == outputs.data_ptr():
                return flops
        return self._counter.get_total_flops()


def require_exits(network: CalibratedNetwork) -> None:
    """Raise ConfigError unless the network is a classifier with early exits."""
    if not network.one_class or len(network.output_names) == 1:
        raise ConfigError(
            f"{network.path} is not a classifier with early exits. Train such a network, as with "
            "--model resnet --set model.exits=[1], or leave the option for exits out."
        )


def count_flops(network: CalibratedNetwork) -> list[int]:
    """Return the FLOPs of an example up to each exit, in the order in which the network computes.

    Raises ConfigError unless the network is a classifier with early exits.
    """
    require_exits(network)
    batch = network.batch(np.zeros((1, network.features), np.float32))
    with FlopCounterMode(display=False) as counter, _Recorder(counter) as recorder:
        outputs = list_outputs(network.outputs(batch))
    return [recorder.flops_until(tensor) for tensor in outputs]


def score_exits(
    path: NetworkPath,
    source: str | None = None,
    split: str = "test",
    calibrate: bool = False,
    model: str | None = None,
) -> list[Leaving]:
    """Return accuracy and mean cost of a classifier for each of `THRESHOLDS`, in this process.

    Arguments are as for `istmpi.deploy.scoring.evaluate`. Raises ConfigError for a network without
    early exits, DataError if checkpoint or data cannot be used.
    """
    file = NetworkFile.from_argument(path)
    with file.open(model) as checkpoint:
        source = source or require_source(checkpoint)
        calibrate_on = file.choose_calibration(checkpoint, source if calibrate else None)
        network = CalibratedNetwork(checkpoint, calibrate_on, model)
        flops = count_flops(network)
        data = resize_images(open_fitting_data(checkpoint, source), checkpoint.header.side)
    data.require_split(split, source)
    examples = data.reshape(network.example_shape).splits[split]
    logits = []
    labels = []
    for start in range(0, len(examples), BATCH):
        batch = examples.batch(np.arange(start, min(start + BATCH, len(examples))))
        logits.append(np.stack(network.compute_batch(batch)))
        labels.append(batch.targets.numpy())
    return list_leavings(np.concatenate(logits, axis=1), np.concatenate(labels), flops)


def list_leavings(logits: np.ndarray, labels: np.ndarray, flops: Sequence[int]) -> list[Leaving]:
    """Return the outcome of each of `THRESHOLDS`, from logits ``[exits, n, classes]``."""
    right = logits.argmax(axis=-1) == labels
    outcomes = []
    for threshold in THRESHOLDS:
        exits = choose_exits(logits, threshold)
        shares = np.bincount(exits, minlength=len(flops)) / len(labels)
        outcomes.append(
            Leaving(
                threshold=threshold,
                accuracy=float(right[exits, np.arange(len(labels))].mean()),
                flops=float(shares @ np.array(flops)),
                shares=tuple(shares.tolist()),
            )
        )
    return outcomes
