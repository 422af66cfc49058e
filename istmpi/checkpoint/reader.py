"""Reads a checkpoint without MPI and torch."""

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

from istmpi.checkpoint.format import FORMAT, Header, place, read_header
from istmpi.data.moments import Normalisation
from istmpi.data.text.tokenizer import Bytes, Tokenizer, TokenizerFile
from istmpi.engine.axes import Pattern
from istmpi.engine.slots import Slot, kinds_of, named
from istmpi.errors import DataError, did_you_mean
from istmpi.hdf5 import (
    CHANGED,
    Read,
    checksum_errors,
    damage_named,
    dataset_at,
    datasets,
    dtype_name,
    opened,
    read_rows,
    sealed,
    structure_errors,
    version_of,
)
from istmpi.models import architecture
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import written_network
from istmpi.network.table import Table
from istmpi.tasks import TASKS, TEXT

MOMENTS = ("mean", "std")


@dataclass(frozen=True)
class Tensor:
    """A parameter, or one tensor (SLOT) of its optimizer state, in the file."""

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
        """Read rows ``[last - first, ...]``, bfloat16 as float32. Raises DataError for damage."""
        with damage_named(self.path):
            return self.dataset[first:last]

    def read_bytes(self, first: int, last: int, out: np.ndarray) -> None:
        with damage_named(self.path):
            read_rows(self.dataset, first, last, out)


class Checkpoint:
    """An open checkpoint whose parameters fit its run, made by `open_checkpoint`."""

    def __init__(self, path: Path, file: h5py.File):
        self.path, self.file = path, file
        cure = "Use the version of istmpi that wrote it, or a newer one"
        self.version = version_of(file, path, FORMAT, "a checkpoint of istmpi", cure)
        self.header: Header = read_header(file, path)
        self._datasets = datasets(file)
        self.architecture = self._described()
        self.tensors: dict[str, Tensor] = {
            name: self._tensor(f"model/{name}") for name in self.architecture.parameters
        }
        self.tensors |= self._below("optim/")
        for name, parameter in self.architecture.parameters.items():
            shape, tensor = parameter.pattern.shape(self.architecture.lengths), self.tensors[name]
            if (tensor.shape, tensor.pattern, tensor.dtype) != (
                shape,
                parameter.pattern,
                parameter.dtype,
            ):
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
        # Code of the user is not run here.
        arguments = model.arguments_for(data.task)
        code = written_network(model.name, self.header.shape, data.outputs, arguments, data.task)
        return Architecture(model.name, Table.from_tree(self.header.network), model.dtype, code)

    @property
    def calibrated(self) -> bool:
        """True if the file has the moments of all batch normalisations, to score examples one by
        one."""
        return not self.architecture.batch_norms or bool(self._norms)

    @property
    def _norms(self) -> list[str]:
        norms = self.architecture.batch_norms
        if (
            self.header.blocks
        ):  # a subnet does not have the normalisations of residual blocks that it lacks
            numbered = [
                f"{number}/{name}" for number in range(self.header.blocks) for name in norms
            ]
            return [name for name in numbered if self._has(f"norm/{name}/")]
        return [*norms] if all(self._has(f"norm/{name}/") for name in norms) else []

    @property
    def moments(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {
            name: (self.array(f"norm/{name}/mean"), self.array(f"norm/{name}/std"))
            for name in self._norms
        }

    @property
    def normalisation(self) -> Normalisation | None:
        if (mean := self._if_there("input/mean")) is None:
            return None
        return Normalisation(mean, self.array("input/std"), self._if_there("input/offset"))

    @property
    def targets(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The mean and deviation ``[outputs]`` of the targets, if outputs are standardised; else
        None."""
        return (
            (self.array("output/mean"), self.array("output/std"))
            if self._has("output/mean")
            else None
        )

    @property
    def target_offset(self) -> np.ndarray | None:
        return self._if_there("output/offset")

    @property
    def rescaling(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The factors and terms, ``[outputs]``, of prediction = factor * output + term; None: no
        change.

        They are float64 if there is a `target_offset`.
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
        """Names of the numbers that the network predicts, such as a column of labels; None without
        names."""
        return self._names("output/names")

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self._names("input/classes")

    @property
    def tokenizer(self) -> Tokenizer | None:
        if TASKS[self.header.data.task].inputs != TEXT:
            return None
        if (json := self._if_there("input/tokenizer")) is None:
            return Bytes()
        with damage_named(self.path):
            return TokenizerFile(json.tobytes().decode("utf-8"), f"the tokenizer in {self.path}")

    @property
    def reading(self) -> dict[str, Any]:
        text = self._if_there("input/reading")
        with damage_named(self.path):
            return {} if text is None else json.loads(text.tobytes())

    def own_data(self, rank: int) -> tuple[int, ...] | None:
        """Return the fingerprint of a rank's own data; None if ranks share data, or in files of
        version 1."""
        rows = self._if_there("data/own")
        return None if rows is None else tuple(rows[rank].tolist())

    @property
    def own(self) -> dict[str, Tensor]:
        """Tensors whose values differ between ranks; the ranks' values are joined along axis 0."""
        return self._below("partial/model/", "partial/optim/")

    @property
    def frozen(self) -> dict[str, Tensor]:
        """Frozen parameters that do not have the constructor's values."""
        return self._below("frozen/")

    def array(self, path: str) -> np.ndarray:
        with damage_named(self.path):
            return self._dataset(path)[:]

    def _if_there(self, path: str) -> np.ndarray | None:
        return self.array(path) if self._has(path) else None

    def _names(self, path: str) -> tuple[str, ...] | None:
        names = self._if_there(path)
        return None if names is None else tuple(name.decode() for name in names)

    @property
    def nbytes(self) -> int:
        return sum(dataset.id.get_storage_size() for dataset in self._datasets.values())

    def errors(
        self, part: int = 0, parts: int = 1, read: Read = lambda nbytes: None
    ) -> Iterator[str]:
        """Yield errors in the contents, one line each; verifies every ``parts``-th block, from
        block ``part`` on.

        ``read`` is called with the number of bytes of each read; the sum over all parts is
        `nbytes`.
        """
        with damage_named(self.path):
            yield from self._misfits()
            yield from checksum_errors(self.file, part, parts, read)

    def require_valid(self, part: int = 0, parts: int = 1) -> None:
        for error in self.errors(part, parts):
            raise DataError(f"{self.path} is damaged: {error}.")

    def _misfits(self) -> Iterator[str]:
        data, network, stored, slots = (
            self.header.data,
            self.architecture,
            self._datasets,
            kinds_of(self.tensors),
        )
        inputs, outputs = (prod(data.shape),), (data.outputs,)
        shapes = {
            name: each.pattern.shape(network.lengths) for name, each in network.parameters.items()
        }
        groups = [
            {place(Slot(name, kind)): shape for kind in slots for name, shape in shapes.items()},
            {
                f"norm/{name}/{kind}": (norm.units,)
                for name, norm in network.batch_norms.items()
                for kind in MOMENTS
            },
            {f"input/{kind}": inputs for kind in MOMENTS},
            {f"output/{kind}": outputs for kind in MOMENTS},
            {"input/offset": inputs},
            {"output/offset": outputs},
            {"output/names": outputs},
        ]
        expected = {"input/classes": outputs} if TASKS[data.task].one_class else {}
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

    def _below(self, *prefixes: str) -> dict[str, Tensor]:
        tensors = (self._tensor(path) for path in self._datasets if path.startswith(prefixes))
        return {tensor.name: tensor for tensor in tensors}

    def _tensor(self, path: str) -> Tensor:
        dataset = self._dataset(path)
        axes = dataset.attrs.get("axes", b"")
        pattern = Pattern.parse(axes.decode() if isinstance(axes, bytes) else str(axes))
        name = named(path.removeprefix("partial/").partition("/")[2])
        return Tensor(name, pattern, dtype_name(dataset), dataset, self.path)

    def _dataset(self, path: str) -> h5py.Dataset:
        dataset = dataset_at(self.file, path)
        if dataset is None:
            raise DataError(
                f"{self.path} is damaged: it has no dataset {path}{did_you_mean(path, self._datasets)}"
            )
        return dataset


@contextmanager
def open_checkpoint(path: str | os.PathLike) -> Iterator[Checkpoint]:
    """Open a checkpoint and check its structure. Raises DataError if the file is missing, damaged
    or no checkpoint."""
    path = Path(path)
    with damage_named(path):
        if not path.is_file():
            raise DataError(f"{path} {_misses(path)}")
        if not h5py.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file: not a checkpoint, or damaged.")
    with opened(path, Checkpoint) as checkpoint:
        yield checkpoint


def _misses(path: Path) -> str:
    if path.is_dir():
        return f"is a folder. Give a file in it; list them: istmpi checkpoint ls {path}"
    beside = [entry.name for entry in path.parent.glob("*.h5")]
    return "does not exist" + (did_you_mean(path.name, beside) if beside else ".")
