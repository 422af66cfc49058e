"""Reads initial weights from a network of istmpi, .safetensors files, or a state dict saved by
torch.

A tensor is used if its name and shape fit a parameter. The values are scaled so that the full
network computes the same as the file's network.
"""

import pickle
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.engine.slots import weights_among
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError, DataError, kind_of
from istmpi.foreign import printable, reading
from istmpi.network.architecture import Architecture
from istmpi.network.joined import Factor, as_tensor, changes, of_rows
from istmpi.optional import optional

CURE = "Give a network.h5, a .safetensors file or a folder of them, or a state dict saved by torch.save."
SHOWN = 6
_FLOATS = ("F64", "F32", "F16", "BF16")
_INSIDE = ("state_dict", "model_state_dict", "model")
"""Keys under which other programs save a state dict inside a dictionary."""


@dataclass(frozen=True)
class _File:
    """The tensors of a file by name; ``factor(name)`` is the factor by which the file's network
    multiplies a weight."""

    shapes: Mapping[str, tuple[int, ...]]
    rows: Callable[[str, int, int], torch.Tensor]
    factor: Callable[[str], Factor] = lambda name: 1.0


def _of_istmpi(checkpoint: Checkpoint) -> _File:
    tensors = {
        name: checkpoint.tensors[name] for name in weights_among(checkpoint.tensors)
    } | checkpoint.frozen
    network, scale = checkpoint.architecture, checkpoint.header.full_scale
    return _File(
        {name: tensor.shape for name, tensor in tensors.items()},
        lambda name, first, last: torch.from_numpy(tensors[name].rows(first, last)),
        lambda name: network.weight_factor(name, scale),
    )


def _safetensors(path: Path) -> _File:
    library = optional("safetensors", "safetensors", "weights in .safetensors", "export")
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise ValueError("it is a folder without .safetensors files")
    try:
        opened = [library.safe_open(file, "pt") for file in files]
    except library.SafetensorError as error:
        raise ValueError(str(error)) from None
    slices = {name: file.get_slice(name) for file in opened for name in file.keys()}  # noqa: SIM118
    shapes = {
        name: tuple(each.get_shape())
        for name, each in slices.items()
        if each.get_dtype() in _FLOATS
    }
    return _File(shapes, lambda name, first, last: slices[name][first:last])


def _state_dict(path: Path) -> _File:
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
    tensors = (
        {str(name): value for name, value in tree.items()} if isinstance(tree, Mapping) else {}
    )
    shapes = {
        name: tuple(value.shape)
        for name, value in tensors.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    if not shapes:
        raise ValueError("it is not a state dict: it has no named tensors")
    return _File(shapes, lambda name, first, last: tensors[name][first:last])


@dataclass(frozen=True)
class Fit:
    path: Path
    fitted: tuple[str, ...]
    weights: tuple[int, int]
    """The number of weights that come from the file, and the number of all weights."""
    missing: tuple[str, ...]
    misshapen: tuple[str, ...]
    """Parameters of another shape in the file, as ``name (3 x 2 in the file, 4 x 2 here)``."""
    unused: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
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
    with _opened(path) as file:
        return _matched(path, file, network, renamed)[0]


def begin_with(
    path: Path,
    network: Architecture,
    store: ParameterStore,
    renamed: Mapping[str, str] | None = None,
) -> Fit:
    """Set this rank's rows of the parameters (``store``) to the values in a file, where names and
    shapes fit.

    Each rank reads the rows that it owns, and frozen parameters whole. ``renamed`` maps prefixes of
    names in the file to prefixes in the network. Raises DataError if the file cannot be read or a
    weight is not finite, ConfigError if no parameter fits.
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
            if changes(ratio):
                values = values.double() * as_tensor(of_rows(ratio, rows.start, rows.stop))
            store.tensors[name].copy_(values)
    if odd := store.not_finite():
        dtype = next(iter(store.parameters.values())).dtype
        raise DataError(
            f"train.init: {path}: {odd} as {dtype}; weights must be finite. Give another file."
        )
    return fit


def begin_as_constructed(
    network: Architecture, store: ParameterStore, seed: int, names: Collection[str]
) -> None:
    """Set a store's rows of parameters ``names`` to values of a network that each rank constructs
    with ``seed``."""
    values = dict(network.plain(seed).requires_grad_(False).named_parameters()) if names else {}
    for name in names:
        rows = store.owners.rows(len(values[name]), store.rank)
        store.tensors[name].copy_(values[name][rows.start : rows.stop])


def _matched(
    path: Path, file: _File, network: Architecture, renamed: Mapping[str, str] | None
) -> tuple[Fit, dict[str, str]]:
    """Return a file's fit to a network, and the file's name of each fitting parameter. ConfigError
    if none fits."""
    sources: dict[str, str] = {}
    misshapen, missing, used, names = (
        [],
        [],
        set(),
        _plainly(_renamed(file.shapes, renamed or {}), network),
    )
    shapes = {
        name: shape
        for name, shape in shapes_of(network).items()
        if name in names or name not in network.frozen
    }
    for name, shape in shapes.items():
        there = next(
            (names[key] for key in (name, plain_name(network, name)) if key in names), None
        )
        used.add(there)
        if there is None:
            missing.append(name)
        elif file.shapes[there] != shape:
            misshapen.append(
                f"{name} ({_times(file.shapes[there])} in the file, {_times(shape)} here)"
            )
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
    """Return the shapes of all tensors that a file can set: parameters, and frozen float tensors
    with an axis."""
    parameters = {name: network.parameters[name] for name in weights_among(network.parameters)}
    frozen = {
        name: values
        for name, values in network.frozen.items()
        if values.ndim and values.is_floating_point()
    }
    shapes = {
        name: parameter.pattern.shape(network.lengths) for name, parameter in parameters.items()
    }
    return shapes | {name: tuple(values.shape) for name, values in frozen.items()}


def plain_name(network: Architecture, name: str) -> str:
    """Return a parameter's name in exported files: an mlp's ``stage.linear.weight`` is
    ``stage.weight`` there."""
    if not network.stages:
        return name
    stage, key, kind = name.split(".")
    return f"{stage}.{kind}" if key == "linear" else f"{stage}_{key}.{kind}"


@contextmanager
def _opened(path: Path, part: int = 0, parts: int = 1) -> Iterator[_File]:
    """Open a file of initial weights; verify ``part`` of ``parts`` of a checkpoint. DataError if
    unusable."""
    subject = f"train.init: {path}"
    if not path.is_file() and not path.is_dir():
        what = f"is {kind_of(path)}; it must be a file." if path.exists() else "does not exist."
        raise DataError(f"{subject} {what}")
    if path.suffix in (".h5", ".hdf5"):
        with open_checkpoint(path) as checkpoint:
            checkpoint.require_valid(part, parts)
            yield _of_istmpi(checkpoint)
        return
    with reading(f"{subject} cannot be read", CURE, Exception):
        file = (_safetensors if path.is_dir() or path.suffix == ".safetensors" else _state_dict)(
            path
        )
    yield file


def _renamed(names: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
    pairs = sorted(renamed.items(), key=lambda pair: -len(pair[0]))
    plain = {}
    for name in names:
        there, here = next((pair for pair in pairs if name.startswith(pair[0])), ("", ""))
        plain[here + name[len(there) :]] = name
    return plain


def _plainly(names: Mapping[str, str], network: Architecture) -> dict[str, str]:
    """Remove prefixes that all names share (module., _orig_mod., model.), until a name fits the
    network.

    If no name fits, put a prefix of the network's own names before the names: its class may be a
    wrapper.
    """
    expected = {key for name in shapes_of(network) for key in (name, plain_name(network, name))}
    plain = dict(names)
    while plain and expected.isdisjoint(plain):
        wrapper = next(iter(plain)).partition(".")[0] + "."
        if not all(name.startswith(wrapper) for name in plain):
            break
        plain = {name.removeprefix(wrapper): there for name, there in plain.items()}
    for wrapper in (
        dict.fromkeys(name.partition(".")[0] for name in expected)
        if expected.isdisjoint(plain)
        else ()
    ):
        wrapped = {f"{wrapper}.{name}": there for name, there in names.items()}
        if not expected.isdisjoint(wrapped):
            return wrapped
    return plain


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
