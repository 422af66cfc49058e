"""A checkpoint's network as a program.

It is a graph of PyTorch's operators that needs neither istmpi nor the class.
"""

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
from istmpi.foreign import reason
from istmpi.network.architecture import Architecture
from istmpi.optional import optional
from istmpi.outputs import join_outputs, list_outputs

if TYPE_CHECKING:
    from istmpi.outputs import Outputs

Pair = tuple[np.ndarray, np.ndarray]

EXAMPLES = 3
"""The number of examples in the traced pass. PyTorch would treat 1 as a constant."""
OPSET = 18
"""The version of ONNX's operators that exports use."""
FIXED = "Constraints violated (batch)"
"""torch.export's words if a forward works only for the traced number of examples."""
TOLERANCE = 1e-4
"""The largest difference of the program's outputs, relative to the network's largest output."""


class Normalising(nn.Module):
    """A network that normalises its examples and rescales its outputs.

    ``shape``: of an example. ``normalisation``: mean and standard deviation ``[features]``.
    ``rescaling``: factor and shift ``[outputs]``. None leaves the step out.
    """

    mean: torch.Tensor
    std: torch.Tensor
    factor: torch.Tensor
    shift: torch.Tensor

    def __init__(
        self,
        network: nn.Module,
        shape: Sequence[int],
        normalisation: Pair | None,
        rescaling: Pair | None,
    ):
        super().__init__()
        self.network = network
        self.normalised = normalisation is not None
        self.rescaled = rescaling is not None
        for name, values in zip(("mean", "std"), normalisation or ()):
            self.register_buffer(name, torch.from_numpy(values).view(*shape))
        for name, values in zip(("factor", "shift"), rescaling or ()):
            self.register_buffer(name, torch.from_numpy(values))

    def forward(self, input: torch.Tensor) -> Outputs:
        """Return the outputs for examples ``[b, *shape]`` as they are in the data."""
        if self.normalised:
            input = (input - self.mean) / self.std
        outputs = self.network(input)
        if not self.rescaled:
            return outputs
        rescaled = [values * self.factor + self.shift for values in list_outputs(outputs)]
        return rescaled[0] if isinstance(outputs, torch.Tensor) else tuple(rescaled)


def make_program(
    checkpoint: Checkpoint, network: Architecture, state: State
) -> torch.export.ExportedProgram:
    """Return the whole network as a program for examples as they are in the data.

    Raises ConfigError if that fails.
    """
    code = network.code
    tensors = whole_state(state)
    module: nn.Module
    # A chain's first and last layers normalise and rescale (`chain_state`).
    if state.module is None and network.stages:
        module = _make_chain(state, tensors)
        name = str(checkpoint.path)
    else:
        if code.sparse or code.graph:
            what = "sparse rows, of any length" if code.sparse else "a graph, of any size"
            raise ConfigError(
                f"{checkpoint.path}: a program needs examples of a single shape, but this network "
                f"takes {what}."
            )
        inner = state.module or _make_own_module(network, tensors, state)
        normalisation = checkpoint.normalisation.whole if checkpoint.normalisation else None
        module = Normalising(inner, network.example_shape, normalisation, checkpoint.rescaling)
        module = module.to(network.dtype)
        name = network.name
    x = code.examples(EXAMPLES, network.dtype)[0]
    return _trace(module.eval().requires_grad_(False), x, name)


def _make_chain(state: State, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Return the layers of a state as plain layers of PyTorch, one after the other."""
    layers = OrderedDict()
    # Layers on the device meta have no memory; the tensors take their places.
    with torch.device("meta"):
        for layer in state.layers:
            layers[layer.name] = getattr(nn, layer.kind)(**layer.settings)
        module = nn.Sequential(layers)
    module.load_state_dict(tensors, assign=True)
    return module


def whole_state(state: State) -> dict[str, torch.Tensor]:
    """Return all tensors in memory, tied tensors by all of their names."""
    tensors = {}
    for name, values in state.tensors.items():
        content = np.concatenate(list(values.chunks())).view(values.dtype)
        tensors[name] = torch.from_numpy(content).view(values.shape)
    return tensors | {name: tensors[first] for name, first in state.ties.items()}


def _make_own_module(
    network: Architecture, tensors: Mapping[str, torch.Tensor], state: State
) -> nn.Module:
    """Return the plain class with a state, also where the class lacks a tensor or a factor."""
    module = network.plain()
    names_of_class = module.state_dict()
    for name, values in tensors.items():
        path, _, key = name.rpartition(".")
        if name not in names_of_class:
            # Of a batch normalisation that the class makes without running statistics.
            module.get_submodule(path).register_buffer(key, torch.empty_like(values))
    module.load_state_dict(tensors)
    if state.scale:
        state.scale(module)
    return module


def _trace(module: nn.Module, x: torch.Tensor, name: str) -> torch.export.ExportedProgram:
    """Return a module's program for any number of examples like ``x``.

    Raises ConfigError if that fails.
    """
    batch = torch.export.Dim("batch")
    try:
        with _silence():
            program = torch.export.export(module, (x,), dynamic_shapes=({0: batch},), strict=False)
            # One example, because PyTorch treats a length of 1 in its own way.
            same = all(
                _agree(program.module()(x[:count]), module(x[:count])) for count in (1, EXAMPLES)
            )
    except Exception as error:
        # torch.export has no class of its own for this error.
        if FIXED in str(error):
            raise ConfigError(
                f"{name}: its forward makes an integer of the number of examples, as len(x) and "
                "loops do, so torch.export cannot trace it. Write x.shape[0] in place of len(x)."
            ) from error
        raise ConfigError(
            f"{name}: torch.export cannot trace its forward: {reason(error)[:300]}. Remove "
            "branches on tensor values or on the number of examples (use torch.where)."
        ) from error
    if not same:
        raise ConfigError(
            f"{name}: its exported program has other outputs: its forward branches on the number "
            "of examples, or draws random numbers. Remove that."
        )
    return program


def _agree(returned: Outputs, expected: Outputs) -> bool:
    """Return True if outputs are equal but for rounding (`TOLERANCE`)."""
    # NaN differs from itself, but a program may return it where the network does.
    outputs = join_outputs(returned).nan_to_num()
    target = join_outputs(expected).nan_to_num()
    return bool((outputs - target).abs().max() <= TOLERANCE * target.abs().max())


def save(program: torch.export.ExportedProgram, metadata: Mapping[str, str], file: Any) -> None:
    """Write a program for ``torch.export.load(file, extra_files={"metadata": ""})``.

    Its metadata are one JSON text.
    """
    with _silence():
        torch.export.save(program, file, extra_files={"metadata": json.dumps(dict(metadata))})


def require_onnx_exporter() -> None:
    for package in ("onnx", "onnxscript"):
        optional(package, package, "exports to ONNX", "export")


def make_onnx(
    program: torch.export.ExportedProgram,
    metadata: Mapping[str, str],
    outputs: Sequence[str],
    name: str,
) -> bytes:
    """Return a program as the bytes of an ONNX file. Raises ConfigError if that fails."""
    try:
        with _silence():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=["input"],
                output_names=list(outputs),
                dynamic_shapes=({0: "batch"},),
                verbose=False,
            )
            assert exported is not None, "torch.onnx.export returns None only with a file"
            for node in exported.model.graph:
                node.metadata_props.clear()  # stack traces: paths of this machine
            exported.model.metadata_props.update(metadata)
            return exported.model_proto.SerializeToString(deterministic=True)
    except Exception as error:
        cause: BaseException = error
        # The exporter wraps errors several times; the innermost one says what is wrong.
        while cause.__cause__:
            cause = cause.__cause__
        raise ConfigError(
            f"{name}: torch.onnx.export cannot export it: {reason(cause)[:300]}. "
            "Use --to safetensors, npz or torch."
        ) from error


@contextmanager
def _silence() -> Iterator[None]:
    """Hide what PyTorch's exporters print, log and warn of; their errors are raised."""
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
