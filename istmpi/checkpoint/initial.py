"""Reads initial weights: from a network of istmpi's, a file of safetensors, or a state dict that torch saved.

Tensors with the name and the shape of a parameter are taken, so that the full network computes the same with them.
"""

from __future__ import annotations

import pickle
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.engine.slots import weights_among
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError, DataError, kind_of
from istmpi.foreign import printable, reading
from istmpi.models.architecture import Architecture
from istmpi.optional import optional

CURE = "Give a network.h5, a .safetensors file or a folder of them, or a state dict saved by torch.save."
SHOWN = 6
"""The most names that a line lists."""
_FLOATS = ("F64", "F32", "F16", "BF16")
_INSIDE = ("state_dict", "model_state_dict", "model")
"""Keys under which other programs keep a state dict among other things."""


class _File(ABC):
    shapes: Mapping[str, tuple[int, ...]]

    @abstractmethod
    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        """Read rows of a tensor."""

    def factor(self, name: str) -> float:
        """Return the factor by which the file's network multiplies the product of a parameter."""
        return 1.0


class _OfIstmpi(_File):
    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint
        weights = {name: checkpoint.tensors[name] for name in weights_among(checkpoint.tensors)}
        self._tensors = weights | checkpoint.frozen
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        return torch.from_numpy(self._tensors[name].rows(first, last))

    def factor(self, name: str) -> float:
        network = self._checkpoint.architecture
        return network.weight_factor(name, self._checkpoint.header.full_scale)


class _Safetensors(_File):
    """A file of safetensors, or those in a folder, as Hugging Face's libraries write them."""

    def __init__(self, path: Path):
        library = optional("safetensors", "safetensors", "weights in .safetensors", "export")
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not files:
            raise ValueError("it is a folder without .safetensors files")
        try:
            opened = [library.safe_open(file, "pt") for file in files]
        except library.SafetensorError as error:
            raise ValueError(str(error)) from None
        slices = {name: file.get_slice(name) for file in opened for name in file.keys()}  # noqa: SIM118
        self._slices = {name: tensor for name, tensor in slices.items() if tensor.get_dtype() in _FLOATS}
        self.shapes = {name: tuple(tensor.get_shape()) for name, tensor in self._slices.items()}

    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        return self._slices[name][first:last]


class _StateDict(_File):
    def __init__(self, path: Path):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a program, which is refused
                tree = torch.load(path, map_location="cpu", weights_only=True)
        except IndexError:  # of its unpickler, on bytes that are no pickle
            raise ValueError("it was not written by torch.save") from None
        except (pickle.UnpicklingError, RuntimeError) as error:
            if "weights_only" not in str(error):
                raise
            code = re.search(r"GLOBAL (\S+)", str(error))  # torch advises to run such code
            why = f"it would run code: {printable(code[1])}" if code else "it is not a state dict"
            raise ValueError(why) from None
        for name in _INSIDE:
            if isinstance(tree, Mapping) and isinstance(tree.get(name), Mapping):
                tree = tree[name]
        entries = tree.items() if isinstance(tree, Mapping) else ()
        tensors = {str(name): value for name, value in entries if isinstance(value, torch.Tensor)}
        self._tensors = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        if not self._tensors:
            raise ValueError("it is not a state dict: it has no named tensors")
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def rows(self, name: str, first: int, last: int) -> torch.Tensor:
        return self._tensors[name][first:last]


@dataclass(frozen=True)
class Fit:
    path: Path
    fitted: tuple[str, ...]
    """Parameters that have their values from the file now."""
    weights: tuple[int, int]
    """Numbers that came from the file, and numbers of the network."""
    missing: tuple[str, ...]
    misshapen: tuple[str, ...]
    """Parameters that have another shape in the file, as ``name (there, here)``."""
    unused: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """A line for the fit, and lines for parameters that are missing, misshapen or unused."""
        count, total = len(self.fitted), len(self.fitted) + len(self.missing) + len(self.misshapen)
        lines = [
            f"initial weights from {self.path}: {count} of {total} parameters fit, "
            f"{self.weights[0]:,} of {self.weights[1]:,} weights."
        ]
        for what, names in (
            ("wrong shape, ignored", self.misshapen),
            ("not in the file, initialized as usual", self.missing),
            ("only in the file", self.unused),
        ):
            if names:
                more = f", and {len(names) - SHOWN} more" * (len(names) > SHOWN)
                lines.append(f"{what}: {', '.join(map(printable, names[:SHOWN]))}{more}.")
        return lines


def fit_of(path: Path, network: Architecture, renamed: Mapping[str, str] | None = None) -> Fit:
    """Return the part of a file that fits a network; errors as of `begin_with`."""
    with _opened(path) as file:
        return _matched(path, file, network, renamed)[0]


def begin_with(
    path: Path, network: Architecture, store: ParameterStore, renamed: Mapping[str, str] | None = None
) -> Fit:
    """Bring the rows of a store to the values of a file, where names and shapes fit; each rank reads its own rows.

    Frozen parameters it reads whole. ``renamed``: beginnings of names in the file, and those in the network.

    Raises DataError for a file that cannot be read, ConfigError where nothing fits.
    """
    with _opened(path, store.rank, store.owners.ranks) as file:
        fit, sources = _matched(path, file, network, renamed)
        for name, there in sources.items():
            length = file.shapes[there][0]
            if name in network.frozen:
                network.give(name, file.rows(there, 0, length))
                continue
            rows = store.owners.rows(length, store.rank)
            values = file.rows(there, rows.start, rows.stop)
            ratio = file.factor(there) / network.weight_factor(name, store.full_scale)
            store.tensors[name].copy_(values if ratio == 1 else values.double() * ratio)
    if odd := store.not_finite():
        dtype = next(iter(store.parameters.values())).dtype
        raise DataError(f"train.init: {path}: {odd} as {dtype}; weights must be finite. Give another file.")
    return fit


def begin_as_constructed(network: Architecture, store: ParameterStore, seed: int, names: Collection[str]) -> None:
    """Bring a store's rows of these parameters to the values that the constructor makes; each rank makes them all."""
    values = dict(network.plain(seed).requires_grad_(False).named_parameters()) if names else {}
    for name in names:
        rows = store.owners.rows(len(values[name]), store.rank)
        store.tensors[name].copy_(values[name][rows.start : rows.stop])


def _matched(
    path: Path, file: _File, network: Architecture, renamed: Mapping[str, str] | None
) -> tuple[Fit, dict[str, str]]:
    """Return the fit of a file to a network, and the file's name of each fitting parameter; ConfigError if none."""
    sources: dict[str, str] = {}
    misshapen, missing, used, names = [], [], set(), _plainly(_renamed(file.shapes, renamed or {}), network)
    shapes = {name: shape for name, shape in shapes_of(network).items() if name in names or name not in network.frozen}
    for name, shape in shapes.items():
        there = next((names[key] for key in (name, plain_name(network, name)) if key in names), None)
        used.add(there)
        if there is None:
            missing.append(name)
        elif file.shapes[there] != shape:
            misshapen.append(f"{name} ({_times(file.shapes[there])} in the file, {_times(shape)} here)")
        else:
            sources[name] = there
    weights = sum(prod(shapes[name]) for name in sources), sum(map(prod, shapes.values()))
    unused = tuple(name for name in file.shapes if name not in used)
    fit = Fit(path, tuple(sources), weights, tuple(missing), tuple(misshapen), unused)
    if not sources:
        why = " ".join(fit.lines[1:])
        raise ConfigError(
            f"train.init = {str(path)!r}: no parameter in it fits the network: {why} Give another, or --model."
        )
    return fit, sources


def shapes_of(network: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all that can be given: parameters, and frozen ones of floating-point numbers."""
    parameters = {name: network.parameters[name] for name in weights_among(network.parameters)}
    frozen = {name: values for name, values in network.frozen.items() if values.ndim and values.is_floating_point()}
    shapes = {name: parameter.pattern.shape(network.lengths) for name, parameter in parameters.items()}
    return shapes | {name: tuple(values.shape) for name, values in frozen.items()}


def plain_name(network: Architecture, name: str) -> str:
    """Return a parameter's name in istmpi's exports, where the products of stages have the names of these."""
    if not network.stages:
        return name
    stage, key, kind = name.split(".")
    return f"{stage}.{kind}" if key == "linear" else f"{stage}_{key}.{kind}"


@contextmanager
def _opened(path: Path, part: int = 0, parts: int = 1) -> Iterator[_File]:
    """Open a file of any of these kinds, and check a part of istmpi's own; DataError in one line for others."""
    subject = f"train.init: {path}"
    if not path.is_file() and not path.is_dir():
        raise DataError(
            f"{subject} is {kind_of(path)}; it must be a file." if path.exists() else f"{subject} does not exist."
        )
    if path.suffix in (".h5", ".hdf5"):
        with open_checkpoint(path) as checkpoint:
            checkpoint.require_valid(part, parts)
            yield _OfIstmpi(checkpoint)
        return
    wrong: tuple[Any, ...] = (ValueError, OSError, RuntimeError, KeyError, TypeError, AttributeError, EOFError)
    with reading(f"{subject} cannot be read", CURE, *wrong, pickle.UnpicklingError):
        file = (_Safetensors if path.is_dir() or path.suffix == ".safetensors" else _StateDict)(path)
    yield file


def _renamed(names: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the file's names by those in the network."""
    pairs = sorted(renamed.items(), key=lambda pair: -len(pair[0]))
    plain = {}
    for name in names:
        there, here = next((pair for pair in pairs if name.startswith(pair[0])), ("", ""))
        plain[here + name[len(there) :]] = name
    return plain


def _plainly(names: Mapping[str, str], network: Architecture) -> dict[str, str]:
    """Strip the names in a file of the prefixes of wrappers (module., _orig_mod., model.) where none fits.

    Where none fits then, either, the network's class may be a wrapper: its own prefix is put before them.
    """
    expected = {key for name in shapes_of(network) for key in (name, plain_name(network, name))}
    plain = dict(names)
    while plain and expected.isdisjoint(plain):
        wrapper = next(iter(plain)).partition(".")[0] + "."
        if not all(name.startswith(wrapper) for name in plain):
            break
        plain = {name.removeprefix(wrapper): there for name, there in plain.items()}
    for wrapper in dict.fromkeys(name.partition(".")[0] for name in expected) if expected.isdisjoint(plain) else ():
        wrapped = {f"{wrapper}.{name}": there for name, there in names.items()}
        if not expected.isdisjoint(wrapped):
            return wrapped
    return plain


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
