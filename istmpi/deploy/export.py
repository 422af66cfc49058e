"""Exports a checkpoint's network.

Safetensors and npz are written in pieces, torch and ONNX by PyTorch.
"""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from istmpi.checkpoint.reader import MOMENTS, Checkpoint
from istmpi.checkpoint.state import Moments, read_moments
from istmpi.data.moments import list_features
from istmpi.deploy.fitting import (
    assume_inputs,
    attach_code,
    find_last_deal,
    note_changed_source,
)
from istmpi.deploy.layers import State, Values, chain_state, collect_state
from istmpi.deploy.network import CalibratedNetwork, require_calibrated
from istmpi.deploy.opening import NetworkFile, NetworkPath
from istmpi.deploy.program import (
    make_onnx,
    make_program,
    require_onnx_exporter,
    save,
    whole_state,
)
from istmpi.engine.axes import narrow
from istmpi.errors import ConfigError, did_you_mean
from istmpi.files import appearing, require_free
from istmpi.network.architecture import Architecture
from istmpi.tasks import OWN

Parts = Mapping[str, Callable[[BinaryIO], object]]
"""The files to write by their names, each with a function that writes it."""


@dataclass(frozen=True)
class Export:
    path: Path
    bytes: int
    """The size of all files."""
    beside: Path | None = None
    """The program beside a torch file's weights, if there is one."""
    note: str = ""


@dataclass(frozen=True)
class Content:
    checkpoint: Checkpoint
    network: Architecture
    state: State

    def metadata(self, of_state: bool = False) -> dict[str, str]:
        """Return the texts to store with a program, or with a state if ``of_state``.

        All except "format" are JSON.
        """
        header = self.checkpoint.header.tree()
        values: dict[str, Any] = {
            "layers": [[layer.name, layer.kind, layer.settings] for layer in self.state.layers],
            "classes": self.checkpoint.classes,
            "data": header["data"],
            "round": header["round"],
            "run": header["run"],
            "versions": header["versions"],
        }
        # A chain has its normalisation and rescaling as layers; a program has both in its graph.
        if of_state and not self.network.stages:
            if self.state.ties:
                values["ties"] = self.state.ties
            if self.checkpoint.normalisation:
                moments = self.checkpoint.normalisation.whole
                values["input"] = dict(zip(MOMENTS, (array.tolist() for array in moments)))
            if self.checkpoint.rescaling:
                factor, shift = self.checkpoint.rescaling
                values["output"] = {"factor": factor.tolist(), "shift": shift.tolist()}
        texts = {name: json.dumps(value) for name, value in values.items()}
        return {"format": "istmpi-export 1", **texts}

    def require_state(self) -> None:
        if self.state.problem:
            cure = "Use --to onnx."
            if self.checkpoint.header.blocks:
                cure = "Use --to onnx or torch."
            raise ConfigError(
                f"{self.checkpoint.path}: {self.state.problem}; a state dict cannot hold that. "
                f"{cure}"
            )


def export(
    path: NetworkPath,
    form: str,
    target: Path | None = None,
    calibrate_on: str | None = None,
    force: bool = False,
    model: str | None = None,
    with_changed_source: bool = False,
) -> Export:
    """Write a checkpoint's network as ``form``, by default next to the checkpoint.

    The torch form has no program if PyTorch cannot trace the network; the result's note then says
    why. ``calibrate_on`` and ``model`` are as for `CalibratedNetwork`. A class whose source has
    changed since training is refused unless ``with_changed_source``. Raises DataError for an
    unusable checkpoint or data, ConfigError if ``form`` does not fit, OutputError if a file cannot
    be written.
    """
    suffix, make_parts = _find_form(form)
    file = NetworkFile.from_argument(path)
    target = target or file.path.with_name(f"{file.stem}{suffix}")
    require_free(target, force)  # before the network is read, which may take minutes
    with file.open(model) as checkpoint:
        calibrate_on = file.choose_calibration(checkpoint, calibrate_on)
        _require_exportable(checkpoint)
        network = _attach_code(checkpoint, form, model)
        note = note_changed_source(network)
        if not with_changed_source:
            _require_no_change(model, note)
        state = _state(checkpoint, network, calibrate_on, model)
        parts, missing = make_parts(Content(checkpoint, network, state), target.name)
        files = [target.with_name(name) for name in parts]
        _write(files, list(parts.values()), force)
    return Export(
        path=files[0],
        bytes=sum(file.stat().st_size for file in files),
        beside=files[1] if len(files) > 1 else None,
        note=" ".join(filter(None, [note and f"{note}.", missing])),
    )


@dataclass(frozen=True)
class Size:
    weights: int
    bytes: int
    """The bytes of the weights; a file has some kB more."""
    flops: int
    """The FLOPs of the products for one example."""


def measure(path: NetworkPath, form: str, model: str | None = None) -> Size:
    """Return the size of the network that `export` would write; the arguments and errors are as
    for `export`."""
    _find_form(form)
    with NetworkFile.from_argument(path).open(model) as checkpoint:
        _require_exportable(checkpoint)
        network = _attach_code(checkpoint, form, model)
        parts = _list_parts(checkpoint, network)
    weights = 0
    nbytes = 0
    for parameter in network.parameters.values():
        # Subnets side by side have a copy each of what is not dealt out.
        count = sum(prod(parameter.pattern.shape(lengths)) for lengths in parts)
        weights += count
        nbytes += count * getattr(torch, parameter.dtype).itemsize
    flops = 0
    for operator in network.operators:
        flops += sum(int(operator.flops(lengths)[0]) for lengths in parts)
    return Size(weights, nbytes, flops)


def _attach_code(checkpoint: Checkpoint, form: str, model: str | None) -> Architecture:
    is_program = form == "onnx"
    inputs = None
    # A state dict needs no pass of the network.
    if is_program or checkpoint.header.blocks:
        inputs = assume_inputs(checkpoint)
    try:
        return attach_code(checkpoint, model, inputs, runs=is_program)
    except ConfigError as error:
        if inputs is None:
            raise
        raise ConfigError(f"{error} An export gives the network a single tensor.") from error


def _list_parts(checkpoint: Checkpoint, network: Architecture) -> list[dict[str, int]]:
    """Return the lengths of the network; those of each if it is several side by side."""
    side_by_side = checkpoint.header.blocks
    if not side_by_side:
        return [dict(network.lengths)]
    deal = find_last_deal(checkpoint.header, network)
    held = [deal.held(rank) for rank in range(side_by_side)]
    return [narrow(network.lengths, network.parameters, units) for units in held]


def _require_no_change(model: str | None, note: str) -> None:
    """Raise ConfigError if there is a ``note`` that the class's source has changed."""
    # Changed code may compute something else from the same parameters.
    if note:
        raise ConfigError(
            f"--model {model}: {note}, but its computation may differ. Give the source it was "
            "trained with, or use this source with --changed-source."
        )


def _write(
    files: Sequence[Path], writers: Sequence[Callable[[BinaryIO], object]], force: bool
) -> None:
    """Write all files; each takes its name only when all are complete. Raises OutputError for a
    file that exists, unless ``force``."""
    for path in files:
        require_free(path, force)
    with ExitStack() as stack:
        # The other files take their names before the first, which refers to them.
        opened = [stack.enter_context(appearing(path)) for path in files]
        for file, write in reversed(list(zip(opened, writers, strict=True))):
            write(file)


def _require_exportable(checkpoint: Checkpoint) -> None:
    _require_exact(checkpoint)
    side = checkpoint.header.side
    if side:
        raise ConfigError(
            f"{checkpoint.path} was saved while training on images of side {side} "
            "(train.resolution). Export a full-size network from the end of the run."
        )


def _state(
    checkpoint: Checkpoint, network: Architecture, calibrate_on: str | None, model: str | None
) -> State:
    """Return what to export. ``calibrate_on``: data for new moments; None takes the file's."""
    subnets = checkpoint.header.blocks
    if subnets:
        # Joined outputs of several subnets are of no plain class, so they have no state.
        inputs = assume_inputs(checkpoint)
        module = CalibratedNetwork(checkpoint, calibrate_on, model, inputs).module
        # A program cannot branch on values, for example if they are not finite.
        module._forward_hooks.clear()
        problem = f"its network is {subnets} subnets side by side (evaluate.form)"
        return State([], problem=problem, module=module)
    moments: Moments
    if calibrate_on is None:
        require_calibrated(checkpoint)
        checkpoint.require_valid()
        moments = read_moments(checkpoint)
    else:
        moments = CalibratedNetwork(checkpoint, calibrate_on, model).moments
    if network.stages:
        return chain_state(checkpoint, moments)
    return collect_state(checkpoint.tensors, checkpoint.header.full_scale, moments, network)


def _require_exact(checkpoint: Checkpoint) -> None:
    """Raise ConfigError if float32 would round away what an offset kept apart."""
    offsets = {
        "feature": checkpoint.normalisation and checkpoint.normalisation.offset,
        "output": checkpoint.target_offset,
    }
    narrow = []
    for what, offset in offsets.items():
        if offset is not None:
            narrow.append(list_features(np.flatnonzero(offset), what))
    if narrow and checkpoint.dtype != np.float64:
        raise ConfigError(
            f"{checkpoint.path}: values of {' and '.join(narrow)} are too close together for an "
            "export's float32; istmpi subtracts an offset in float64. Use istmpi predict, "
            "--set model.dtype=float64 in training, or subtract a number from the data."
        )


_FLOATS = {"float64": "F64", "float32": "F32", "float16": "F16", "complex64": "C64"}
_SAFETENSORS = _FLOATS | {
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}

ONNX_LIMIT = 2**31 - 2**20
"""The most bytes of tensors in an ONNX file: it is one message of at most 2 GiB, with the graph."""


def _safetensors(content: Content, name: str) -> tuple[Parts, str]:
    """Return a file whose JSON header, with the place of each tensor, comes first."""
    content.require_state()
    for key, values in content.state.tensors.items():
        if values.dtype not in _SAFETENSORS:
            raise ConfigError(
                f"{content.checkpoint.path}: {key} is of {values.dtype}, which safetensors does "
                "not support. Use --to npz or torch."
            )
    header: dict[str, object] = {"__metadata__": content.metadata(of_state=True)}
    end = 0
    for key, values in content.state.tensors.items():
        # The format counts bytes from the end of the header.
        start = end
        end += values.nbytes
        header[key] = {
            "dtype": _SAFETENSORS[values.dtype],
            "shape": values.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    # The format wants tensors at multiples of 8 bytes.
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in content.state.tensors.values():
            for chunk in values.chunks():
                file.write(chunk.data)

    return {name: write}, ""


def _npz(content: Content, name: str) -> tuple[Parts, str]:
    """Return a .zip file with an .npy for each tensor; they are never all in memory."""
    content.require_state()
    metadata = np.array(json.dumps(content.metadata(of_state=True)).encode())
    arrays = {"metadata": Values(metadata), **content.state.tensors}

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for key, values in arrays.items():
                descr = np.dtype(values.dtype).newbyteorder("<").str
                header = {"descr": descr, "fortran_order": False, "shape": values.shape}
                # The date is part of the entry: none, so that the same network gives the same file.
                with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_1_0(entry, header)
                    for chunk in values.chunks():
                        entry.write(chunk.data)

    return {name: write}, ""


def _torch(content: Content, name: str) -> tuple[Parts, str]:
    """Return a file of weights and, if the network can be traced, one of its program; subnets side
    by side have the program alone."""
    beside = f"{name.removesuffix('.pt').removesuffix('.pt2')}.pt2"
    if content.checkpoint.header.blocks:
        # No plain class has their weights.
        joined = make_program(content.checkpoint, content.network, content.state)
        return {beside: lambda file: save(joined, content.metadata(), file)}, ""
    content.require_state()
    saved = {"state_dict": whole_state(content.state), "metadata": content.metadata(of_state=True)}
    parts: Parts = {name: lambda file: torch.save(saved, file)}
    if content.checkpoint.header.data.task == OWN:
        return parts, ""  # only the data's code knows the inputs to trace with
    try:
        program = make_program(content.checkpoint, content.network, content.state)
    except ConfigError as error:
        return parts, f"{name} has the weights, but there is no program {beside}: {error}"
    return {**parts, beside: lambda file: save(program, content.metadata(), file)}, ""


def _onnx(content: Content, name: str) -> tuple[Parts, str]:
    """Return a file of the program, with its weights. Raises ConfigError above `ONNX_LIMIT`."""
    path = content.checkpoint.path
    size = sum(values.nbytes for values in content.state.tensors.values())
    if size > ONNX_LIMIT:
        raise ConfigError(
            f"{path}: {size / 2**30:.1f} GiB of weights exceed the 2 GiB of an ONNX file. "
            "Use --to safetensors."
        )
    try:
        program = make_program(content.checkpoint, content.network, content.state)
    except ConfigError as error:
        raise ConfigError(
            f"{error} Or use --to torch, safetensors or npz, which have the weights."
        ) from error
    model = make_onnx(program, content.metadata(), content.network.table.output_names, str(path))
    return {name: lambda file: file.write(model)}, ""


FORMS: dict[str, tuple[str, Callable[[Content, str], tuple[Parts, str]]]] = {
    "safetensors": (".safetensors", _safetensors),
    "torch": (".pt", _torch),
    "onnx": (".onnx", _onnx),
    "npz": (".npz", _npz),
}
"""The suffix of each form, and a function that returns its files and a note on what they lack."""


def _find_form(form: str) -> tuple[str, Callable[[Content, str], tuple[Parts, str]]]:
    """Return the entry of `FORMS`. Raises ConfigError if it is not known, or lacks a package."""
    if form not in FORMS:
        raise ConfigError(f"--to {form} is not known{did_you_mean(form, FORMS)}")
    if form == "onnx":
        require_onnx_exporter()
    return FORMS[form]
