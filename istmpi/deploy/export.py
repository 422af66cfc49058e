"""A checkpoint's network for other programs: each format has a writer that streams where the format allows it."""

import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from istmpi.checkpoint.reader import MOMENTS, Checkpoint, open_checkpoint
from istmpi.checkpoint.state import stored_moments
from istmpi.deploy import to_onnx
from istmpi.deploy.code import changed_source, runnable
from istmpi.deploy.layers import Layer, Values, bytes_of, chunks, dtype_of, plain_layers, shape_of
from istmpi.deploy.network import CalibratedNetwork, require_calibrated
from istmpi.deploy.output import appearing, require_free
from istmpi.deploy.own_layers import own_layers
from istmpi.errors import ConfigError, did_you_mean
from istmpi.models.inferred import InferredNetwork


@dataclass(frozen=True)
class Export:
    """What was written."""

    path: Path
    bytes: int
    layers: list[Layer]
    beside: Path | None = None
    """A second file that the first one refers to."""
    note: str = ""
    """Something that the user should know."""


def export(
    path: str | os.PathLike,
    form: str,
    target: Path | None = None,
    calibrate_on: str | None = None,
    force: bool = False,
    model: str | None = None,
) -> Export:
    """Write a checkpoint's network as ``form``, beside the checkpoint unless a ``target`` is given.

    ``calibrate_on`` and ``model`` as for `CalibratedNetwork`, which needs the whole network in memory. Raises DataError
    for a checkpoint that cannot be used, ConfigError for a form or a target that cannot be, OutputError where writing
    fails.
    """
    if form not in FORMS:
        raise ConfigError(f"--to {form} is not known{did_you_mean(form, FORMS)}")
    suffix, write = FORMS[form]
    target = target or Path(path).with_suffix(suffix)
    require_free(target, force)
    if form == "onnx":
        to_onnx.require_library()
    with open_checkpoint(path) as checkpoint, ExitStack() as stack:
        network = runnable(checkpoint, model)
        if form == "onnx" and isinstance(network, InferredNetwork):
            raise ConfigError(
                f"--to onnx: the network in {path} is one of your own, {network.name}, which is exported to torch, "
                f"safetensors or npz so far. torch.onnx.export takes it from there."
            )
        if calibrate_on is None:
            require_calibrated(checkpoint)
            checkpoint.require_valid()
            moments = stored_moments(checkpoint)
        else:
            moments = CalibratedNetwork(checkpoint, calibrate_on, model).moments
        own = isinstance(network, InferredNetwork)
        layers = own_layers(checkpoint, moments, network) if own else plain_layers(checkpoint, moments)
        metadata = _metadata(checkpoint, layers)
        if own and checkpoint.normalisation:
            metadata["input"] = json.dumps(dict(zip(MOMENTS, (values.tolist() for values in checkpoint.normalisation))))
        beside = None
        if form == "onnx" and to_onnx.needs_second_file(layers):
            beside = target.with_name(f"{target.name}.data")
            require_free(beside, force)
            target.unlink(missing_ok=True)  # never an older network with the weights of this one
        # The second file takes its name before the first, which refers to it.
        file = stack.enter_context(appearing(target))
        if beside:
            to_onnx.write(layers, metadata, file, stack.enter_context(appearing(beside)), beside.name)
        else:
            write(layers, metadata, file)
    return Export(
        target, sum(one.stat().st_size for one in (target, beside) if one), layers, beside, changed_source(network)
    )


def _metadata(checkpoint: Checkpoint, layers: Sequence[Layer]) -> dict[str, str]:
    """What goes along with the weights: texts, all but one of them JSON."""
    header = checkpoint.header
    values = {
        "layers": [[layer.name, layer.kind, layer.settings] for layer in layers],
        "classes": checkpoint.classes,
        "data": asdict(header.data),
        "round": header.round,
        "run": header.run.tree(),
        "versions": dict(header.versions),
    }
    return {"format": "istmpi-export 1", **{name: json.dumps(value) for name, value in values.items()}}


def _state(layers: Sequence[Layer]) -> dict[str, Values]:
    """Every tensor by its name in the state of a Sequential of these layers."""
    return {f"{layer.name}.{kind}".lstrip("."): of for layer in layers for kind, of in layer.tensors.items()}


_SAFETENSORS = {"float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}
"""What the format calls the types of weights and buffers."""


def _safetensors(layers: Sequence[Layer], metadata: Mapping[str, str], file: BinaryIO) -> None:
    """The length of a JSON header, the header, the tensors one after the other."""
    header: dict[str, object] = {"__metadata__": metadata}
    state, end = _state(layers), 0
    for name, values in state.items():
        start, end = end, end + bytes_of(values)
        dtype = _SAFETENSORS[dtype_of(values)]
        header[name] = {"dtype": dtype, "shape": shape_of(values), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for values in state.values():
        for chunk in chunks(values):
            file.write(chunk)


def _npz(layers: Sequence[Layer], metadata: Mapping[str, str], file: BinaryIO) -> None:
    """One .npy for each tensor, and ``metadata``, a JSON text as bytes."""
    state = {"metadata": np.array(json.dumps(metadata).encode()), **_state(layers)}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, values in state.items():
            dtype = values.dtype if isinstance(values, np.ndarray) else np.dtype(dtype_of(values)).newbyteorder("<")
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape_of(values)}
            # The date is part of the entry: none, so that the same network gives the same file.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, header)
                for chunk in chunks(values):
                    entry.write(chunk)


def _torch(layers: Sequence[Layer], metadata: Mapping[str, str], file: BinaryIO) -> None:
    """``{"state_dict": ..., "metadata": ...}``; torch.save needs all of it in memory."""
    state = {}
    for name, values in _state(layers).items():
        content = np.concatenate(list(chunks(values))).view(dtype_of(values))
        state[name] = torch.from_numpy(content).view(shape_of(values))
    torch.save({"state_dict": state, "metadata": dict(metadata)}, file)


FORMS: dict[str, tuple[str, Callable[[Sequence[Layer], Mapping[str, str], BinaryIO], None]]] = {
    "safetensors": (".safetensors", _safetensors),
    "torch": (".pt", _torch),
    "onnx": (".onnx", to_onnx.write),
    "npz": (".npz", _npz),
}
