"""Weights to begin with: of a network of istmpi's, of a file of safetensors, or of a state dict that torch saved.

What has the name and the shape of a parameter is taken; all else begins as it would have. A file of another program
has the weights of the full network as they stand, one of istmpi's those that `istmpi.models.architecture` scales: they
are taken so that the full network makes of them what it made there.
"""

from __future__ import annotations

import json
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.engine.slots import weights_among
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError, DataError, kind_of
from istmpi.foreign import printable, reading
from istmpi.models.architecture import Architecture
from istmpi.models.inferred import InferredNetwork

CURE = "Give a network.h5 of istmpi, .safetensors, or a state dict that torch.save wrote."
SHOWN = 6
"""Names that a line lists at most."""
_SAFETENSORS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_LONGEST_HEADER = 10**8
_INSIDE = ("state_dict", "model_state_dict", "model")
"""Where other programs keep a state dict among other things."""


class _File(ABC):
    """The tensors of a file, of which rows are read one by one."""

    shapes: Mapping[str, tuple[int, ...]]

    @abstractmethod
    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        """Rows of a tensor."""

    def factor(self, name: str) -> float:
        """What the network that it is of multiplies by what a parameter makes."""
        return 1.0


class _OfIstmpi(_File):
    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint
        names = weights_among(checkpoint.tensors)
        self.shapes = {name: checkpoint.tensors[name].shape for name in names}

    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        return torch.from_numpy(self._checkpoint.tensors[name].rows(first, last))

    def factor(self, name: str) -> float:
        return factor_of(self._checkpoint.architecture, name, self._checkpoint.header.full_scale)


class _Safetensors(_File):
    def __init__(self, path: Path):
        data = np.memmap(path, np.uint8, "r")
        length = int.from_bytes(data[:8].tobytes(), "little")
        if not 0 < length <= min(_LONGEST_HEADER, len(data) - 8):
            raise ValueError("its header is longer than the file")
        header = json.loads(data[8 : 8 + length].tobytes())
        self._data = data[8 + length :]
        self._entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        for name, entry in self._entries.items():
            first, last = entry["data_offsets"]
            of = _SAFETENSORS.get(entry["dtype"])
            wrong = of and last - first != prod(entry["shape"]) * of.itemsize
            if wrong or not 0 <= first <= last <= len(self._data):
                raise ValueError(f"{printable(name)} does not lie where its header says")
        self.shapes = {name: tuple(of["shape"]) for name, of in self._entries.items() if of["dtype"] in _SAFETENSORS}

    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        entry, shape = self._entries[name], self.shapes[name]
        dtype = _SAFETENSORS[entry["dtype"]]
        row, begin = prod(shape[1:]) * dtype.itemsize, entry["data_offsets"][0]
        values = np.array(self._data[begin + first * row : begin + last * row])
        return torch.from_numpy(values).view(dtype).view(last - first, *shape[1:])


class _StateDict(_File):
    def __init__(self, path: Path):
        try:
            tree = torch.load(path, map_location="cpu", weights_only=True)
        except IndexError:  # of its unpickler, on bytes that are no pickle
            raise ValueError("it is no file of torch.save") from None
        for name in _INSIDE:
            if isinstance(tree, Mapping) and isinstance(tree.get(name), Mapping):
                tree = tree[name]
        found = tree.items() if isinstance(tree, Mapping) else ()
        self._tensors = {str(name): of for name, of in found if isinstance(of, torch.Tensor) and of.is_floating_point()}
        if not self._tensors:
            raise ValueError("it is no state dict: it has no tensors by name")
        self.shapes = {name: tuple(of.shape) for name, of in self._tensors.items()}

    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        return self._tensors[name][first:last]


@dataclass(frozen=True)
class Fit:
    """What of a file fitted a network."""

    path: Path
    fitted: tuple[str, ...]
    """Parameters that have their values from the file now."""
    weights: tuple[int, int]
    """How many numbers these are, and how many the network has."""
    missing: tuple[str, ...]
    """Parameters that the file does not have."""
    misshapen: tuple[str, ...]
    """What has another shape there, as ``name (there, here)``."""
    unused: tuple[str, ...]
    """What the file has beside."""

    @property
    def lines(self) -> list[str]:
        """One line for each of these of which there is one."""
        count, of = len(self.fitted), len(self.fitted) + len(self.missing) + len(self.misshapen)
        said = [f"began with {self.path}: {count} of {of} parameters fit, {self.weights[0]:,} of {self.weights[1]:,} "]
        said[0] += "weights."
        for what, names in (
            ("of another shape, not taken", self.misshapen),
            ("not in the file, as at any beginning", self.missing),
            ("in the file alone", self.unused),
        ):
            if names:
                more = f", and {len(names) - SHOWN} more" * (len(names) > SHOWN)
                said.append(f"{what}: {', '.join(map(printable, names[:SHOWN]))}{more}.")
        return said


def begin_with(path: Path, network: Architecture, store: ParameterStore) -> Fit:
    """Have a store's rows begin with those of a file, where names and shapes fit; each rank reads its own rows.

    Raises DataError for a file that cannot be read, ConfigError where nothing fits.
    """
    fitted, misshapen, missing, used, numbers = [], [], [], set(), 0
    with _opened(path, store) as file:
        names = _plainly(file.shapes, network)
        own = weights_among(store.parameters)
        for name in own:
            shape = store.parameters[name].pattern.shape(store.owners.lengths)
            there = next((names[one] for one in (name, plain_name(network, name)) if one in names), None)
            if there is None:
                missing.append(name)
                continue
            used.add(there)
            if file.shapes[there] != shape:
                misshapen.append(f"{name} ({_times(file.shapes[there])} there, {_times(shape)} here)")
                continue
            rows = store.owners.rows(shape[0], store.rank)
            values = file.rows(there, rows.start, rows.stop)
            ratio = file.factor(there) / factor_of(network, name, store.full_scale)
            store.tensors[name].copy_(values if ratio == 1 else values.double() * ratio)
            fitted.append(name)
            numbers += prod(shape)
        unused = [name for name in file.shapes if name not in used]
    every = sum(prod(store.parameters[name].pattern.shape(store.owners.lengths)) for name in own)
    fit = Fit(path, tuple(fitted), (numbers, every), tuple(missing), tuple(misshapen), tuple(unused))
    if not fitted:
        why = " ".join(fit.lines[1:])
        raise ConfigError(
            f"train.init = {str(path)!r}: nothing in it fits the network: {why} Give another, or --model."
        )
    return fit


def factor_of(network: Architecture, name: str, scale: Mapping[str, float]) -> float:
    """What the full network multiplies by what a parameter makes (`Architecture.factor`)."""
    module, _, kind = name.rpartition(".")
    if isinstance(network, InferredNetwork):
        product = network.factor(module, network.lengths, scale) if kind == "weight" else 1.0
        return product * network.end_factor(module, network.lengths, scale)
    stage, _, key = module.rpartition(".")
    return network.factor(stage, network.lengths, scale) if (key, kind) == ("linear", "weight") else 1.0


def plain_name(network: Architecture, name: str) -> str:
    """What a parameter is called in istmpi's own exports, where a chain's products have the names of their stages."""
    if isinstance(network, InferredNetwork):
        return name
    stage, key, kind = name.split(".")
    return f"{stage}.{kind}" if key == "linear" else f"{stage}_{key}.{kind}"


@contextmanager
def _opened(path: Path, store: ParameterStore) -> Iterator[_File]:
    """A file of any of these kinds, one of istmpi's checked, each rank a share; DataError in one line for others."""
    subject = f"train.init: {path}"
    if not path.is_file():
        raise DataError(
            f"{subject} is {kind_of(path)}; it must be a file." if path.exists() else f"{subject} is not there."
        )
    if path.suffix in (".h5", ".hdf5"):
        with open_checkpoint(path) as checkpoint:
            checkpoint.require_valid(store.rank, store.owners.ranks)
            yield _OfIstmpi(checkpoint)
        return
    wrong: tuple[Any, ...] = (ValueError, OSError, RuntimeError, KeyError, TypeError, AttributeError, EOFError)
    with reading(f"{subject} cannot be read", CURE, *wrong, pickle.UnpicklingError):
        file = _Safetensors(path) if path.suffix == ".safetensors" else _StateDict(path)
    yield file


def _plainly(names: Mapping[str, Any], network: Architecture) -> dict[str, str]:
    """Names in a file, without what wrappers put before every one (module., _orig_mod., model.), where none fits."""
    own = {of for name in weights_among(network.parameters) for of in (name, plain_name(network, name))}
    plain = {name: name for name in names}
    while plain and own.isdisjoint(plain):
        wrapper = next(iter(plain)).partition(".")[0] + "."
        if not all(name.startswith(wrapper) for name in plain):
            break
        plain = {name.removeprefix(wrapper): there for name, there in plain.items()}
    return plain


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
