"""Exports a checkpoint's network: safetensors and npz are written in pieces, torch and ONNX by
PyTorch."""

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from istmpi.checkpoint.reader import MOMENTS, Checkpoint, open_checkpoint
from istmpi.checkpoint.state import stored_moments
from istmpi.data.moments import named
from istmpi.deploy.fitting import changed_source, runnable
from istmpi.deploy.layers import State, Values, chain_state, own_state
from istmpi.deploy.network import CalibratedNetwork, require_calibrated
from istmpi.deploy.program import onnx_of, program_of, require_onnx_exporter, save, whole_state
from istmpi.errors import ConfigError, did_you_mean
from istmpi.files import appearing, require_free
from istmpi.models.architecture import Architecture
from istmpi.tasks import OWN

Parts = Mapping[str, Callable[[BinaryIO], object]]
"""The files to write by their names, each with a function that writes it."""


@dataclass(frozen=True)
class Export:
    path: Path
    bytes: int
    beside: Path | None = None
    note: str = ""


@dataclass(frozen=True)
class Content:
    checkpoint: Checkpoint
    network: Architecture
    state: State

    def metadata(self, of_state: bool = False) -> dict[str, str]:
        """Return the texts to store with a program, or with a state if ``of_state``; all except
        "format" are JSON."""
        header = self.checkpoint.header
        values = {
            "layers": [[layer.name, layer.kind, layer.settings] for layer in self.state.layers],
            "classes": self.checkpoint.classes,
            "data": asdict(header.data),
            "round": header.round,
            "run": header.run.tree(),
            "versions": dict(header.versions),
        }
        if of_state and not self.network.stages:
            values |= {"ties": self.state.ties} if self.state.ties else {}
            if normalisation := self.checkpoint.normalisation:
                values["input"] = dict(
                    zip(MOMENTS, (values.tolist() for values in normalisation.whole))
                )
            if rescaling := self.checkpoint.rescaling:
                values["output"] = dict(
                    zip(("factor", "shift"), (values.tolist() for values in rescaling))
                )
        return {
            "format": "istmpi-export 1",
            **{name: json.dumps(value) for name, value in values.items()},
        }

    def require_state(self) -> None:
        if problem := self.state.problem:
            raise ConfigError(
                f"{self.checkpoint.path}: {problem}; a state dict cannot hold that. Use --to onnx."
            )


def export(
    path: str | os.PathLike,
    form: str,
    target: Path | None = None,
    calibrate_on: str | None = None,
    force: bool = False,
    model: str | None = None,
    with_changed_source: bool = False,
) -> Export:
    """Write a checkpoint's network as ``form``, next to the checkpoint unless a ``target`` is
    given.

    The torch form has no program if PyTorch cannot trace the network; the result's note then says
    why. ``calibrate_on`` and ``model`` are as for `CalibratedNetwork`. A class whose source has
    changed since training is refused unless ``with_changed_source``. Raises DataError for an
    unusable checkpoint or data, ConfigError if ``form`` does not fit, OutputError if a file cannot
    be written.
    """
    if form not in FORMS:
        raise ConfigError(f"--to {form} is not known{did_you_mean(form, FORMS)}")
    suffix, parts_of = FORMS[form]
    target = target or Path(path).parent / f"{Path(path).stem}{suffix}"
    require_free(target, force)
    if form == "onnx":
        require_onnx_exporter()
    with open_checkpoint(path) as checkpoint:
        if side := checkpoint.header.side:
            raise ConfigError(
                f"{path} was saved while training on images of side {side} (train.resolution). Export a "
                "full-size network from the end of the run."
            )
        _require_exact(checkpoint)
        network = runnable(checkpoint, model, runs=form == "onnx")
        note = changed_source(network)
        if note and not with_changed_source:
            raise ConfigError(
                f"--model {model}: {note}, but its computation may differ. Give the source it was trained "
                "with, or use this source with --changed-source."
            )
        state = _state(checkpoint, network, calibrate_on, model)
        parts, missing = parts_of(Content(checkpoint, network, state), target.name)
        files = [target.with_name(name) for name in parts]
        for file in files:
            require_free(file, force)
        with ExitStack() as stack:
            # The other files take their names before the first, which refers to them.
            opened = [stack.enter_context(appearing(file)) for file in files]
            for file, write in reversed([*zip(opened, parts.values(), strict=True)]):
                write(file)
    size = sum(file.stat().st_size for file in files)
    return Export(
        files[0],
        size,
        next(iter(files[1:]), None),
        " ".join(filter(None, [note and f"{note}.", missing])),
    )


def _state(
    checkpoint: Checkpoint, network: Architecture, calibrate_on: str | None, model: str | None
) -> State:
    if count := checkpoint.header.blocks:
        module = CalibratedNetwork(checkpoint, calibrate_on, model).module
        module._forward_hooks.clear()  # a program cannot branch on values, for example if they are not finite
        return State(
            [], problem=f"its network is {count} averaged subnets (evaluate.form)", module=module
        )
    if calibrate_on is None:
        require_calibrated(checkpoint)
        checkpoint.require_valid()
        moments = stored_moments(checkpoint)
    else:
        moments = CalibratedNetwork(checkpoint, calibrate_on, model).moments
    if network.stages:
        return chain_state(checkpoint, moments)
    return own_state(checkpoint.tensors, checkpoint.header.full_scale, moments, network)


def _require_exact(checkpoint: Checkpoint) -> None:
    offsets = {"feature": checkpoint.normalisation and checkpoint.normalisation.offset}
    offsets["output"] = checkpoint.target_offset
    narrow = [
        named(np.flatnonzero(offset), what)
        for what, offset in offsets.items()
        if offset is not None
    ]
    if narrow and checkpoint.header.run.model.dtype != "float64":
        raise ConfigError(
            f"{checkpoint.path}: values of {' and '.join(narrow)} are too close together for an export's "
            "float32; istmpi subtracts an offset in float64. Use istmpi predict, --set model.dtype=float64 "
            "in training, or subtract a number from the data."
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
"""The most bytes of tensors in an ONNX file, which is one message of at most 2 GiB with its
graph."""


def _safetensors(content: Content, name: str) -> tuple[Parts, str]:
    content.require_state()
    for key, values in content.state.tensors.items():
        if values.dtype not in _SAFETENSORS:
            raise ConfigError(
                f"{content.checkpoint.path}: {key} is of {values.dtype}, which safetensors does not support. "
                "Use --to npz or torch."
            )
    header: dict[str, object] = {"__metadata__": content.metadata(of_state=True)}
    end = 0
    for key, values in content.state.tensors.items():
        start, end = end, end + values.nbytes
        header[key] = {
            "dtype": _SAFETENSORS[values.dtype],
            "shape": values.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in content.state.tensors.values():
            for chunk in values.chunks():
                file.write(chunk)

    return {name: write}, ""


def _npz(content: Content, name: str) -> tuple[Parts, str]:
    content.require_state()
    metadata = np.array(json.dumps(content.metadata(of_state=True)).encode())

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for key, values in {"metadata": Values(metadata), **content.state.tensors}.items():
                descr = np.dtype(values.dtype).newbyteorder("<").str
                header = {"descr": descr, "fortran_order": False, "shape": values.shape}
                # The date is part of the entry: none, so that the same network gives the same file.
                with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_1_0(entry, header)
                    for chunk in values.chunks():
                        entry.write(chunk)

    return {name: write}, ""


def _torch(content: Content, name: str) -> tuple[Parts, str]:
    content.require_state()
    saved = {"state_dict": whole_state(content.state), "metadata": content.metadata(of_state=True)}
    parts: Parts = {name: lambda file: torch.save(saved, file)}
    if content.checkpoint.header.data.task == OWN:
        return parts, ""
    beside = f"{name.removesuffix('.pt')}.pt2"
    try:
        program = program_of(content.checkpoint, content.network, content.state)
    except ConfigError as error:
        return parts, f"{name} has the weights, but there is no program {beside}: {error}"
    return {**parts, beside: lambda file: save(program, content.metadata(), file)}, ""


def _onnx(content: Content, name: str) -> tuple[Parts, str]:
    path, size = (
        content.checkpoint.path,
        sum(values.nbytes for values in content.state.tensors.values()),
    )
    if size > ONNX_LIMIT:
        raise ConfigError(
            f"{path}: {size / 2**30:.1f} GiB of weights exceed the 2 GiB of an ONNX file. Use --to safetensors."
        )
    try:
        program = program_of(content.checkpoint, content.network, content.state)
    except ConfigError as error:
        raise ConfigError(
            f"{error} Or use --to torch, safetensors or npz, which have the weights."
        ) from error
    model = onnx_of(program, content.metadata(), content.network.exits, str(path))
    return {name: lambda file: file.write(model)}, ""


FORMS: dict[str, tuple[str, Callable[[Content, str], tuple[Parts, str]]]] = {
    "safetensors": (".safetensors", _safetensors),
    "torch": (".pt", _torch),
    "onnx": (".onnx", _onnx),
    "npz": (".npz", _npz),
}
"""The suffix of each form, and the function that returns its files and a note about what they
lack."""
