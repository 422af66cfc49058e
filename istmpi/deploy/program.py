"""A checkpoint's network as a program: a graph of PyTorch's operators that needs neither istmpi nor
the class."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from istmpi.checkpoint.reader import Checkpoint
from istmpi.deploy.layers import State
from istmpi.errors import ConfigError
from istmpi.exits import joined, outputs_of
from istmpi.foreign import reason
from istmpi.models.architecture import Architecture
from istmpi.models.scaling import multiply_sums
from istmpi.optional import optional

if TYPE_CHECKING:
    from istmpi.exits import Outputs

Pair = tuple[np.ndarray, np.ndarray]

EXAMPLES = 3
"""The number of examples in the traced pass. PyTorch would treat 1 as a constant."""
OPSET = 18
FIXED = "Constraints violated (batch)"
"""torch.export's words if a forward works only for the number of examples that it was traced
with."""
TOLERANCE = 1e-4
"""The largest difference between the program's outputs and the network's, relative to the largest
output."""


class Normalising(nn.Module):
    """A network with the normalisation of its examples before it, and the rescaling of its outputs
    after it."""

    def __init__(
        self,
        network: nn.Module,
        shape: Sequence[int],
        normalisation: Pair | None,
        rescaling: Pair | None,
    ):
        super().__init__()
        self.network = network
        self.normalised, self.rescaled = normalisation is not None, rescaling is not None
        for name, values in zip(("mean", "std"), normalisation or ()):
            self.register_buffer(name, torch.from_numpy(values).view(*shape))
        for name, values in zip(("factor", "shift"), rescaling or ()):
            self.register_buffer(name, torch.from_numpy(values))

    def forward(self, input: torch.Tensor) -> Outputs:
        """Return the outputs for examples ``[b, *shape]`` as they are in the data."""
        outputs = self.network((input - self.mean) / self.std if self.normalised else input)
        if not self.rescaled:
            return outputs
        several = [each * self.factor + self.shift for each in outputs_of(outputs)]
        return several[0] if isinstance(outputs, torch.Tensor) else tuple(several)


def program_of(
    checkpoint: Checkpoint, network: Architecture, state: State
) -> torch.export.ExportedProgram:
    """Return the whole network as a program for examples as they are in the data. ConfigError if
    that fails."""
    tensors, code, name = whole_state(state), network.code, network.name
    if state.module or not network.stages:
        if code.sparse or code.graph:
            what = "sparse rows, of any length" if code.sparse else "a graph, of any size"
            raise ConfigError(
                f"{checkpoint.path}: a program needs examples of a single shape, but this network takes {what}."
            )
        plain, normalisation = (
            state.module or _own_module(network, tensors, state),
            checkpoint.normalisation,
        )
        around = normalisation and normalisation.whole, checkpoint.rescaling
        module = Normalising(plain, network.example_shape, *around).to(network.dtype)
    else:
        with torch.device("meta"):
            module = nn.Sequential(
                OrderedDict(
                    (layer.name, getattr(nn, layer.kind)(**layer.settings))
                    for layer in state.layers
                )
            )
        module.load_state_dict(tensors, assign=True)
        name = str(checkpoint.path)
    x = code.examples(EXAMPLES, network.dtype)[0]
    return _traced(module.eval().requires_grad_(False), x, name)


def whole_state(state: State) -> dict[str, torch.Tensor]:
    """Return all tensors in memory, tied tensors by all of their names."""
    tensors = {}
    for name, values in state.tensors.items():
        content = np.concatenate(list(values.chunks())).view(values.dtype)
        tensors[name] = torch.from_numpy(content).view(values.shape)
    return tensors | {name: tensors[first] for name, first in state.ties.items()}


def _own_module(
    network: Architecture, tensors: Mapping[str, torch.Tensor], state: State
) -> nn.Module:
    module = network.plain()
    names = module.state_dict()
    for name, values in tensors.items():
        path, _, key = name.rpartition(".")
        if name in state.untied:
            setattr(module.get_submodule(path), key, nn.Parameter(torch.empty_like(values)))
        elif (
            name not in names
        ):  # of a batch normalisation that the class makes without running statistics
            module.get_submodule(path).register_buffer(key, torch.empty_like(values))
    module.load_state_dict(tensors)
    if state.calls:
        multiply_sums(module, lambda: (state.calls, {}))
    return module


def _traced(module: nn.Module, x: torch.Tensor, name: str) -> torch.export.ExportedProgram:
    """Return a module's program for any number of examples like ``x``. ConfigError if that
    fails."""
    batch = torch.export.Dim("batch")
    try:
        with _quietly():
            program = torch.export.export(module, (x,), dynamic_shapes=({0: batch},), strict=False)
            same = all(
                _agree(program.module()(x[:count]), module(x[:count])) for count in (1, EXAMPLES)
            )
    except Exception as error:
        if FIXED in str(error):
            raise ConfigError(
                f"{name}: its forward makes an integer of the number of examples, as len(x) and loops do, so "
                "torch.export cannot trace it. Write x.shape[0] in place of len(x)."
            ) from error
        raise ConfigError(
            f"{name}: torch.export cannot trace its forward: {reason(error)[:300]}. Remove branches on tensor "
            "values or on the number of examples (use torch.where)."
        ) from error
    if not same:
        raise ConfigError(
            f"{name}: its exported program has other outputs: its forward branches on the number of examples, "
            "or draws random numbers. Remove that."
        )
    return program


def _agree(returned: Outputs, expected: Outputs) -> bool:
    outputs, expected = joined(returned).nan_to_num(), joined(expected).nan_to_num()
    return bool((outputs - expected).abs().max() <= TOLERANCE * expected.abs().max())


def save(program: torch.export.ExportedProgram, metadata: Mapping[str, str], file: Any) -> None:
    """Write a program for ``torch.export.load(file, extra_files={"metadata": ""})``, its metadata
    as one JSON text."""
    with _quietly():
        torch.export.save(program, file, extra_files={"metadata": json.dumps(dict(metadata))})


def require_onnx_exporter() -> None:
    for package in ("onnx", "onnxscript"):
        optional(package, package, "exports to ONNX", "export")


def onnx_of(
    program: torch.export.ExportedProgram, metadata: Mapping[str, str], exits: int, name: str
) -> bytes:
    try:
        with _quietly():
            made = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=["input"],
                output_names=[*(f"exit{number}" for number in range(1, exits)), "output"],
                dynamic_shapes=({0: "batch"},),
                verbose=False,
            )
            for node in made.model.graph:
                node.metadata_props.clear()  # stack traces: paths of this machine
            made.model.metadata_props.update(metadata)
            return made.model_proto.SerializeToString(deterministic=True)
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        raise ConfigError(
            f"{name}: torch.onnx.export cannot export it: {reason(cause)[:300]}. Use --to safetensors, npz or torch."
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
