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
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from istmpi.checkpoint.fit import Fit
from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.checkpoint.widening import find_place
from istmpi.config.sections import Train
from istmpi.engine.slots import select_weights
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError, DataError, kind_of
from istmpi.foreign import printable, reading
from istmpi.network.architecture import Architecture
from istmpi.network.joined import Factor, as_tensor, changes, of_rows
from istmpi.network.unheld import find_unheld_factor
from istmpi.optional import optional

CURE = (
    "Give a network.h5, a .safetensors file or a folder of them, "
    "or a state dict saved by torch.save."
)
DEFAULTS = Train()
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
    network: Architecture | None = None
    """The file's network, if it is one of istmpi."""
    scale: Mapping[str, float] = field(default_factory=dict)
    """The factors of its sums (`Architecture.factor`)."""


def _from_checkpoint(checkpoint: Checkpoint) -> _File:
    tensors = {name: checkpoint.tensors[name] for name in select_weights(checkpoint.tensors)}
    tensors |= checkpoint.frozen
    network = checkpoint.architecture
    scale = checkpoint.header.full_scale
    return _File(
        shapes={name: tensor.shape for name, tensor in tensors.items()},
        rows=lambda name, first, last: torch.from_numpy(tensors[name].rows(first, last)),
        factor=lambda name: network.weight_factor(name, scale),
        network=network,
        scale=scale,
    )


def _from_safetensors(path: Path) -> _File:
    library = optional("safetensors", "safetensors", "weights in .safetensors", "export")
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ValueError("it is a folder without .safetensors files")
    try:
        slices = {}
        for file in files:
            content = library.safe_open(file, "pt")
            for name in content.keys():  # noqa: SIM118 # it cannot be iterated
                slices[name] = content.get_slice(name)
    except library.SafetensorError as error:
        raise ValueError(str(error)) from None
    shapes = {
        name: tuple(part.get_shape())
        for name, part in slices.items()
        if part.get_dtype() in _FLOATS
    }
    return _File(shapes=shapes, rows=lambda name, first, last: slices[name][first:last])


def _from_state_dict(path: Path) -> _File:
    tree = _load_state_dict(path)
    for name in _INSIDE:
        if isinstance(tree, Mapping) and isinstance(tree.get(name), Mapping):
            tree = tree[name]
    # Counters, such as a normalisation's number of batches, are integers and no weights.
    tensors = {}
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                tensors[str(name)] = value
    if not tensors:
        raise ValueError("it is not a state dict: it has no named tensors")
    return _File(
        shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()},
        rows=lambda name, first, last: tensors[name][first:last],
    )


def _load_state_dict(path: Path) -> Any:
    """Load what torch.save saved. Raises ValueError if it would run code, or is no file of
    torch."""
    try:
        with warnings.catch_warnings():
            # torch warns of a file with a program before it refuses it.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except IndexError:  # from torch's unpickler, on bytes that are no pickle
        raise ValueError("it was not written by torch.save") from None
    except (pickle.UnpicklingError, RuntimeError) as error:
        if "weights_only" not in str(error):
            raise
        # torch's own message would advise to run such code.
        code = re.search(r"GLOBAL (\S+)", str(error))
        why = "it is not a state dict"
        if code:
            why = f"it would run code: {printable(code[1])}"
        raise ValueError(why) from None


def check_fit(path: Path, network: Architecture, settings: Train = DEFAULTS) -> Fit:
    """Return a file's fit to a network. Raises the errors of `begin_with`."""
    with _open(path) as file:
        fit, _ = _match(path, file, network, settings)
    return fit


def begin_with(
    path: Path, network: Architecture, store: ParameterStore, settings: Train = DEFAULTS
) -> Fit:
    """Set this rank's rows of the parameters (``store``) to the values in a file, where names and
    shapes fit.

    Each rank reads the rows that it owns, and frozen parameters whole. ``settings``: its
    ``init_names`` map prefixes of names in the file to prefixes in the network; with ``widen``, a
    parameter may be narrower in the file (`istmpi.checkpoint.widening`). Raises DataError if the
    file cannot be read or a weight is not finite, ConfigError if no parameter fits.
    """
    with _open(path, store.rank, store.owners.ranks) as file:
        fit, sources = _match(path, file, network, settings)
        for name, source in sources.items():
            if name in network.frozen:
                network.give(name, file.rows(source, 0, file.shapes[source][0]))
            else:
                _read_rows(file, source, network, name, store)
        if file.scale != store.full_scale:
            unheld = find_unheld_factor(network, store.full_scale)
            if file.network:
                unheld = unheld or find_unheld_factor(file.network, file.scale)
            fit = replace(fit, unheld=unheld)
    infinite = store.not_finite()
    if infinite:
        dtype = next(iter(store.parameters.values())).dtype
        raise DataError(
            f"train.init: {path}: {infinite} as {dtype}; weights must be finite. Give another file."
        )
    return fit


def _read_rows(
    file: _File, source: str, network: Architecture, name: str, store: ParameterStore
) -> None:
    """Set this rank's rows of a parameter; a narrower tensor of the file gets the first places."""
    shape = network.parameters[name].pattern.shape(network.lengths)
    wide = store.owners.rows(shape[0], store.rank)
    place = None
    if file.shapes[source] != shape:
        place = find_place(file.network, source, network, name)
    rows = wide
    if place:
        rows = place.find_rows(wide)
    values = file.rows(source, rows.start, rows.stop)
    # The two full networks may multiply this weight by different factors.
    ratio = file.factor(source) / network.weight_factor(name, store.full_scale)
    if changes(ratio):
        values = values.double() * as_tensor(of_rows(ratio, rows.start, rows.stop))
    if place:
        place.fill(store.tensors[name], wide, values)
    else:
        store.tensors[name].copy_(values)


def begin_as_constructed(
    network: Architecture, store: ParameterStore, seed: int, names: Collection[str]
) -> None:
    """Set a store's rows of parameters ``names`` to values of a network that each rank constructs
    with ``seed``."""
    if not names:
        return
    values = dict(network.plain(seed).requires_grad_(False).named_parameters())
    for name in names:
        rows = store.owners.rows(len(values[name]), store.rank)
        store.tensors[name].copy_(values[name][rows.start : rows.stop])


def _match(
    path: Path, file: _File, network: Architecture, settings: Train
) -> tuple[Fit, dict[str, str]]:
    """Return a file's fit to a network, and the file's name of each fitting parameter. ConfigError
    if none fits."""
    shapes, candidates = _pair(file, network, settings.init_names or {})
    sources: dict[str, str] = {}
    widened: list[str] = []
    misshapen: list[str] = []
    for name, source in candidates.items():
        stored = file.shapes[source]
        if stored == shapes[name]:
            sources[name] = source
        elif settings.widen and find_place(file.network, source, network, name):
            sources[name] = source
            widened.append(name)
        else:
            expected = _format_shape(shapes[name])
            misshapen.append(f"{name} ({_format_shape(stored)} in the file, {expected} here)")
    used = set(candidates.values())
    fit = Fit(
        path=path,
        fitted=tuple(sources),
        widened=tuple(widened),
        weights=(
            sum(prod(file.shapes[source]) for source in sources.values()),
            sum(map(prod, shapes.values())),
        ),
        missing=tuple(name for name in shapes if name not in candidates),
        misshapen=tuple(misshapen),
        unused=tuple(name for name in file.shapes if name not in used),
    )
    _require_one(fit)
    return fit, sources


def _pair(
    file: _File, network: Architecture, renamed: Mapping[str, str]
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Return the shapes of the tensors that the file can set, and the file's name of each that it
    has."""
    names = _remove_prefixes(_rename(file.shapes, renamed), network)
    # Frozen parameters keep the constructor's values if the file has none.
    shapes = {
        name: shape
        for name, shape in settable_shapes(network).items()
        if name in names or name not in network.frozen
    }
    candidates = {}
    for name in shapes:
        source = names.get(name, names.get(name_in_exports(network, name)))
        if source is not None:
            candidates[name] = source
    return shapes, candidates


def _require_one(fit: Fit) -> None:
    """Raise ConfigError if no parameter fits."""
    if fit.fitted:
        return
    why = " ".join(fit.lines[1:])
    raise ConfigError(
        f"train.init = {str(fit.path)!r}: no parameter in it fits the network: {why} "
        "Give another, or --model."
    )


def settable_shapes(network: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors that a file can set: parameters, and frozen float tensors
    with an axis."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in select_weights(network.parameters):
        shapes[name] = network.parameters[name].pattern.shape(network.lengths)
    for name, values in network.frozen.items():
        # Numbers without an axis have no rows that ranks could own.
        if values.ndim and values.is_floating_point():
            shapes[name] = tuple(values.shape)
    return shapes


def name_in_exports(network: Architecture, name: str) -> str:
    """Return a parameter's name in exported files: of an mlp, ``hidden1.linear.weight`` is
    ``hidden1.weight`` there, and ``hidden1.norm.weight`` is ``hidden1_norm.weight``."""
    if not network.stages:
        return name
    stage, key, kind = name.split(".")
    if key == "linear":
        return f"{stage}.{kind}"
    return f"{stage}_{key}.{kind}"


@contextmanager
def _open(path: Path, part: int = 0, parts: int = 1) -> Iterator[_File]:
    """Open a file of initial weights; verify ``part`` of ``parts`` of a checkpoint. DataError if
    unusable."""
    subject = f"train.init: {path}"
    if not path.exists():
        raise DataError(f"{subject} does not exist.")
    if not path.is_file() and not path.is_dir():
        raise DataError(f"{subject} is {kind_of(path)}; it must be a file.")
    if path.suffix in (".h5", ".hdf5"):
        with open_checkpoint(path) as checkpoint:
            checkpoint.require_valid(part, parts)
            yield _from_checkpoint(checkpoint)
        return
    # The libraries that read other programs' files may raise anything.
    with reading(f"{subject} cannot be read", CURE, Exception):
        if path.is_dir() or path.suffix == ".safetensors":
            file = _from_safetensors(path)
        else:
            file = _from_state_dict(path)
    yield file


def _rename(names: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the file's ``names`` by their new names; the longest prefix in ``renamed`` counts."""
    prefixes = sorted(renamed, key=len, reverse=True)
    sources = {}
    for name in names:
        new_name = name
        for prefix in prefixes:
            if name.startswith(prefix):
                new_name = renamed[prefix] + name.removeprefix(prefix)
                break
        sources[new_name] = name
    return sources


def _remove_prefixes(names: Mapping[str, str], network: Architecture) -> dict[str, str]:
    """Remove prefixes that all names share (module., _orig_mod., model.), until a name fits the
    network.

    If no name fits, put a prefix of the network's own names before the names: its class may be a
    wrapper.
    """
    own_names = list(settable_shapes(network))
    expected = {*own_names, *(name_in_exports(network, name) for name in own_names)}
    plain = dict(names)
    while plain and expected.isdisjoint(plain):
        # The first name's prefix is the only candidate, because all names must share it.
        wrapper = next(iter(plain)).partition(".")[0] + "."
        if not all(name.startswith(wrapper) for name in plain):
            break
        plain = {name.removeprefix(wrapper): source for name, source in plain.items()}
    if not expected.isdisjoint(plain):
        return plain
    # In the network's order, which is the same on all ranks; that of a set is not.
    for wrapper in dict.fromkeys(name.partition(".")[0] for name in own_names):
        wrapped = {f"{wrapper}.{name}": source for name, source in names.items()}
        if not expected.isdisjoint(wrapped):
            return wrapped
    return plain


def _format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
