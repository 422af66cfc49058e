"""Data, predictions and plain networks to hold exported files against."""

from collections import OrderedDict

import numpy as np
import pytest
from batches import examples_of
from torch import nn

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.data.sources import open_dataset
from istmpi.deploy.network import CalibratedNetwork


def raw(source, split="test"):
    """The features of a split as they are in the data."""
    rows = open_dataset(source).splits[split].with_normalisation(None)
    return examples_of(rows, np.arange(len(rows)))[0]


def open_network(path, calibrate_on=None, model=None):
    """The network of a checkpoint, with its stored moments or with those of data."""
    with open_checkpoint(path) as checkpoint:
        return CalibratedNetwork(checkpoint, calibrate_on, model)


def predicted(path, x, calibrate_on=None):
    return open_network(path, calibrate_on)(x.copy())


def run_onnx(path, x):
    """The outputs of an ONNX file, each an array."""
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"input": x})


def sequential(layers, state):
    """The recipe of docs/formats.md."""
    network = nn.Sequential(OrderedDict((name, getattr(nn, kind)(**settings)) for name, kind, settings in layers))
    network.to(next(iter(state.values())).dtype).load_state_dict(state, strict=True)
    return network.eval()
