"""Reading a checkpoint: needs neither MPI nor torch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from istmpi.checkpoint.format import Header, place, read_header, read_version
from istmpi.data.moments import Normalisation
from istmpi.data.text.tokenizer import Bytes, Tokenizer, TokenizerFile
from istmpi.engine.axes import Pattern
from istmpi.engine.slots import Slot, kinds_of, named
from istmpi.errors import ConfigError, DataError, IstmpiError, did_you_mean
from istmpi.hdf5 import (
    CHANGED,
    LOCKING,
    Read,
    checksum_errors,
    dataset_at,
    datasets,
    dtype_name,
    read_rows,
    sealed,
    structure_errors,
    unheard,
)
from istmpi.models import architecture
from istmpi.models.architecture import Architecture
from istmpi.models.arguments import user_network
from istmpi.models.table import Table
from istmpi.models.tables import has_table
from istmpi.tasks import TASKS

MOMENTS = ("mean", "std")


@dataclass(frozen=True)
class Tensor:
    """A parameter or a slot of its optimizer state, in the file."""

    name: str
    """PARAMETER, or PARAMETER/SLOT."""
    pattern: Pattern
    dtype: str
    dataset: h5py.Dataset
    path: Path

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dataset.shape

    def rows(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """Read rows ``[last - first, ...]`` as NumPy has them: bfloat16 comes as float32."""
        with _reading(self.path):
            return self.dataset[first:last]

    def read_bytes(self, first: int, last: int, out: np.ndarray) -> None:
        """Read rows as the file has them, into flat uint8 memory."""
        with _reading(self.path):
            read_rows(self.dataset, first, last, out)


class Checkpoint:
    """An open checkpoint whose structure fits its run; `open_checkpoint` makes it."""

    def __init__(self, path: Path, file: h5py.File):
        self.path, self.file = path, file
        self.version = read_version(file, path)
        self.header: Header = read_header(file, path)
        self._datasets = datasets(file)
        self.architecture = self._described()
        self.tensors: dict[str, Tensor] = {name: self._tensor(f"model/{name}") for name in self.architecture.parameters}
        self.tensors |= {
            named(path.removeprefix("optim/")): self._tensor(path)
            for path in self._datasets
            if path.startswith("optim/")
        }
        for name, parameter in self.architecture.parameters.items():
            shape, tensor = parameter.pattern.shape(self.architecture.lengths), self.tensors[name]
            if (tensor.shape, tensor.pattern, tensor.dtype) != (shape, parameter.pattern, parameter.dtype):
                raise DataError(
                    f"{path} is damaged: {name} is {tensor.shape} {tensor.dtype} ({tensor.pattern}), but its "
                    f"run has {shape} {parameter.dtype} ({parameter.pattern})."
                )
        if self.version > 1 and not sealed(file):
            raise DataError(f"{path} is damaged: {next(self._misfits(), CHANGED)}.")

    def _described(self) -> Architecture:
        data, model = self.header.data, self.header.run.model
        if not self.header.network:  # an mlp of an earlier version
            return architecture(prod(data.shape), data.outputs, data.task, model)
        code = None
        if has_table(model.name):  # such code is istmpi's own, and need not be run to be known
            arguments = model.arguments_for(data.task)
            code = user_network(model.name, self.header.shape, data.outputs, arguments, data.task)
        return Architecture(model.name, Table.from_tree(self.header.network), model.dtype, code)

    @property
    def calibrated(self) -> bool:
        """True if all batch normalisations have their moments here, so that a single example can be scored."""
        return not self.architecture.batch_norms or bool(self._norms)

    @property
    def _norms(self) -> list[str]:
        """Return the names of calibrated normalisations: all, or none; in blocks with the subnet's number before."""
        norms = self.architecture.batch_norms
        if self.header.blocks:  # a subnet does not have the normalisations of residual blocks that it lacks
            numbered = [f"{number}/{name}" for number in range(self.header.blocks) for name in norms]
            return [name for name in numbered if self._has(f"norm/{name}/")]
        return [*norms] if all(self._has(f"norm/{name}/") for name in norms) else []

    @property
    def moments(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Calibrated mean and deviation of the units of every batch normalisation; empty without calibration."""
        return {name: (self.array(f"norm/{name}/mean"), self.array(f"norm/{name}/std")) for name in self._norms}

    @property
    def normalisation(self) -> Normalisation | None:
        """The mean, deviation and offset that normalise examples; None where examples are not normalised."""
        if not self._has("input/mean"):
            return None
        offset = self.array("input/offset") if self._has("input/offset") else None
        return Normalisation(self.array("input/mean"), self.array("input/std"), offset)

    @property
    def targets(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The mean and deviation ``[outputs]`` to which outputs are relative; None if they are not."""
        return (self.array("output/mean"), self.array("output/std")) if self._has("output/mean") else None

    @property
    def target_offset(self) -> np.ndarray | None:
        """The offset ``[outputs]`` float64 subtracted from numbers to predict; None where float32 needs none."""
        return self.array("output/offset") if self._has("output/offset") else None

    @property
    def rescaling(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The factors ``[outputs]`` and then the terms that turn outputs into predictions; None if none are needed.

        float64 where there is a `target_offset`.
        """
        if (offset := self.target_offset) is not None:
            mean, std = self.targets or (0.0, np.ones(len(offset)))
            return std.astype(np.float64), mean + offset
        if self.targets is not None:
            return self.targets[::-1]
        if self.header.temperature == 1:
            return None
        outputs = self.header.data.outputs
        return np.full(outputs, 1 / self.header.temperature), np.zeros(outputs)

    @property
    def output_names(self) -> tuple[str, ...] | None:
        """The names of the numbers that it predicts, where the data gave some."""
        return tuple(name.decode() for name in self.array("output/names")) if self._has("output/names") else None

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes' names; None for regression."""
        return tuple(name.decode() for name in self.array("input/classes")) if self._has("input/classes") else None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the network's tokens; None where it takes no tokens."""
        if not TASKS[self.header.data.task].of_tokens:
            return None
        if not self._has("input/tokenizer"):
            return Bytes()
        with _reading(self.path):
            json = self.array("input/tokenizer").tobytes().decode("utf-8")
        return TokenizerFile(json, f"the tokenizer in {self.path}")

    @property
    def reading(self) -> dict[str, Any]:
        """The conventions by which the training data were read; empty where the file has none."""
        if not self._has("input/reading"):
            return {}
        with _reading(self.path):
            return json.loads(self.array("input/reading").tobytes())

    def own_data(self, rank: int) -> tuple[int, ...] | None:
        """Return the fingerprint of a rank's data where each rank has its own; None in files of version 1."""
        return tuple(self.array("data/own")[rank].tolist()) if self._has("data/own") else None

    @property
    def own(self) -> dict[str, Tensor]:
        """Tensors whose values differ from rank to rank: one rank's after the other along axis 0."""
        paths = [path for path in self._datasets if path.startswith(("partial/model/", "partial/optim/"))]
        return {tensor.name: tensor for tensor in map(self._tensor, paths)}

    @property
    def frozen(self) -> dict[str, Tensor]:
        """Frozen parameters whose values are not the constructor's."""
        tensors = (self._tensor(path) for path in self._datasets if path.startswith("frozen/"))
        return {tensor.name: tensor for tensor in tensors}

    def array(self, path: str, rows: slice = slice(None)) -> np.ndarray:
        """Read a small dataset; DataError when it is missing."""
        with _reading(self.path):
            return self._dataset(path)[rows]

    @property
    def nbytes(self) -> int:
        """Bytes of all contents without the checksums."""
        return sum(dataset.id.get_storage_size() for dataset in self._datasets.values())

    def errors(self, part: int = 0, parts: int = 1, read: Read = unheard) -> Iterator[str]:
        """Find errors in the contents, one line each; reads every ``parts``-th block, from number ``part`` on.

        ``read`` is told of bytes as they are read, `nbytes` in all.
        """
        with _reading(self.path):
            yield from self._misfits()
            yield from checksum_errors(self.file, part, parts, read)

    def require_valid(self, part: int = 0, parts: int = 1) -> None:
        """Read everything, or a share of it; DataError for the first error."""
        for error in self.errors(part, parts):
            raise DataError(f"{self.path} is damaged: {error}.")

    def _misfits(self) -> Iterator[str]:
        data, lengths, norms = self.header.data, self.architecture.lengths, self.architecture.batch_norms
        slots = kinds_of(self.tensors)
        parameters = self.architecture.parameters
        stored = self._datasets
        classes = {"input/classes": (data.outputs,)} if TASKS[data.task].one_class else {}
        groups = [
            {place(Slot(name, kind)): parameters[name].pattern.shape(lengths) for kind in slots for name in parameters},
            {f"norm/{name}/{kind}": (norm.units,) for name, norm in norms.items() for kind in MOMENTS},
            {f"input/{kind}": (prod(data.shape),) for kind in MOMENTS},
            {f"output/{kind}": (data.outputs,) for kind in MOMENTS},
            {"output/names": (data.outputs,)},
            {"input/offset": (prod(data.shape),)},
            {"output/offset": (data.outputs,)},
        ]
        expected = dict(classes)
        for group in groups:
            expected |= group if stored.keys() & group.keys() else {}
        for path, shape in expected.items():
            if path not in stored:
                yield f"{path} is missing"
            elif stored[path].shape != shape:
                yield f"{path} is {stored[path].shape}, not {shape}"
        yield from structure_errors(self.file)

    def _has(self, prefix: str) -> bool:
        return any(path.startswith(prefix) for path in self._datasets)

    def _tensor(self, path: str) -> Tensor:
        dataset = self._dataset(path)
        axes = dataset.attrs.get("axes", b"")
        pattern = Pattern.parse(axes.decode() if isinstance(axes, bytes) else str(axes))
        name = named(path.removeprefix("partial/").partition("/")[2])
        return Tensor(name, pattern, dtype_name(dataset), dataset, self.path)

    def _dataset(self, path: str) -> h5py.Dataset:
        dataset = dataset_at(self.file, path)
        if dataset is None:
            raise DataError(f"{self.path} is damaged: it has no dataset {path}{did_you_mean(path, self._datasets)}")
        return dataset


@contextmanager
def open_checkpoint(path: str | os.PathLike) -> Iterator[Checkpoint]:
    """Open a checkpoint and check its structure; DataError in one line for anything that is none."""
    path = Path(path)
    with _reading(path):
        if not path.is_file():
            raise DataError(f"{path} {_misses(path)}")
        if not h5py.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file: not a checkpoint, or damaged.")
        file = h5py.File(path, "r", locking=LOCKING)
    with file:
        with _reading(path):
            checkpoint = Checkpoint(path, file)
        yield checkpoint


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever h5py and others raise where they meet what they did not expect into one line."""
    try:
        yield
    except ConfigError as error:
        raise DataError(f"{path} is damaged ({error})") from None
    except (IstmpiError, MemoryError):
        raise
    except Exception as error:
        message = (str(error).splitlines() or [type(error).__name__])[0]
        reason = "truncated" if "truncated" in message else f"damaged ({message})"
        raise DataError(f"{path} is {reason}.") from error


def _misses(path: Path) -> str:
    if path.is_dir():
        return f"is a folder. Give a file in it; list them: istmpi checkpoint ls {path}"
    beside = [entry.name for entry in path.parent.glob("*.h5")]
    return "does not exist" + (did_you_mean(path.name, beside) if beside else ".")
