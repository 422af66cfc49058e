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
from istmpi.checkpoint.parts import Copy, find_part, find_saver
from istmpi.data.moments import Normalisation
from istmpi.data.text.tokenizer import Bytes, Tokenizer, TokenizerFile
from istmpi.engine.axes import Parameter, Pattern
from istmpi.engine.slots import Slot, list_kinds, named
from istmpi.errors import DataError, did_you_mean
from istmpi.hdf5 import (
    CHANGED,
    Read,
    all_datasets,
    checksum_errors,
    dataset_at,
    dtype_name,
    is_sealed,
    name_damage,
    opened,
    read_rows,
    read_version,
    structure_errors,
    without_checksums,
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
        with name_damage(self.path):
            return self.dataset[first:last]

    def read_bytes(self, first: int, last: int, out: np.ndarray) -> None:
        with name_damage(self.path):
            read_rows(self.dataset, first, last, out)


class Checkpoint:
    """An open checkpoint whose parameters fit its run, made by `open_checkpoint`."""

    def __init__(self, path: Path, file: h5py.File):
        self.path = path
        self.file = file
        self.part = find_part(path)
        cure = "Use the version of istmpi that wrote it, or a newer one"
        self.version = read_version(file, path, FORMAT, "a checkpoint of istmpi", cure)
        self.header: Header = read_header(file, path)
        self._stored = all_datasets(file)
        self._datasets = without_checksums(self._stored)
        self.architecture = self._read_network()
        self.tensors: dict[str, Tensor] = {}
        for name, parameter in self.architecture.parameters.items():
            self.tensors[name] = self._tensor(f"model/{name}")
            self._require_fit(name, parameter)
        self.tensors |= self._below("optim/")
        # Misfits first, because they say more than that a checksum differs.
        if self.version > 1 and not is_sealed(file, self._stored):
            raise DataError(f"{path} is damaged: {next(self._misfits(), CHANGED)}.")

    def _require_fit(self, name: str, parameter: Parameter) -> None:
        tensor = self.tensors[name]
        shape = parameter.pattern.shape(self.architecture.lengths)
        stored = (tensor.shape, tensor.pattern, tensor.dtype)
        if stored != (shape, parameter.pattern, parameter.dtype):
            raise DataError(
                f"{self.path} is damaged: {name} is {tensor.shape} {tensor.dtype} "
                f"({tensor.pattern}), but its run has {shape} {parameter.dtype} "
                f"({parameter.pattern})."
            )

    def _read_network(self) -> Architecture:
        data = self.header.data
        model = self.header.run.model
        if not self.header.network:  # an mlp of an earlier version
            return architecture(prod(data.shape), data.outputs, data.task, model)
        # Code of the user is not run here.
        arguments = model.arguments_for(data.task)
        code = written_network(model.name, self.header.shape, data.outputs, arguments, data.task)
        return Architecture(model.name, Table.from_tree(self.header.network), model.dtype, code)

    @property
    def dtype(self) -> np.dtype:
        """The type of the network's values."""
        return np.dtype(self.header.run.model.dtype)

    @property
    def calibrated(self) -> bool:
        """True if the file has the moments of all batch normalisations, to score examples one by
        one."""
        return not self.architecture.batch_norms or bool(self._norms)

    @property
    def _norms(self) -> list[str]:
        names = list(self.architecture.batch_norms)
        blocks = self.header.blocks
        if blocks:
            names = [f"{number}/{name}" for number in range(blocks) for name in names]
        stored = [name for name in names if self._has(f"norm/{name}/")]
        # A subnet does not have the normalisations of residual blocks that it lacks.
        if blocks or stored == names:
            return stored
        # Some moments are as good as none: the network needs all of them.
        return []

    @property
    def moments(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {
            name: (self.array(f"norm/{name}/mean"), self.array(f"norm/{name}/std"))
            for name in self._norms
        }

    @property
    def normalisation(self) -> Normalisation | None:
        mean = self._read_optional("input/mean")
        if mean is None:
            return None
        return Normalisation(
            mean=mean,
            std=self.array("input/std"),
            offset=self._read_optional("input/offset"),
        )

    @property
    def targets(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The mean and deviation ``[outputs]`` of the targets, if outputs are standardised; else
        None."""
        if not self._has("output/mean"):
            return None
        return self.array("output/mean"), self.array("output/std")

    @property
    def target_offset(self) -> np.ndarray | None:
        return self._read_optional("output/offset")

    @property
    def rescaling(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The factors and terms, ``[outputs]``, of prediction = factor * output + term; None: no
        change.

        They are float64 if there is a `target_offset`.
        """
        offset = self.target_offset
        targets = self.targets
        # Targets with an offset need not be standardised, too.
        if offset is not None:
            mean, std = targets or (np.zeros(len(offset)), np.ones(len(offset)))
            return std.astype(np.float64), mean + offset
        if targets is not None:
            mean, std = targets
            return std, mean
        if self.header.temperature == 1:
            return None
        # A temperature divides the logits.
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
        description = self._read_optional("input/tokenizer")
        if description is None:
            return Bytes()  # which needs no description
        with name_damage(self.path):
            text = description.tobytes().decode("utf-8")
            return TokenizerFile(text, f"the tokenizer in {self.path}")

    @property
    def reading(self) -> dict[str, Any]:
        text = self._read_optional("input/reading")
        if text is None:
            return {}
        with name_damage(self.path):
            return json.loads(text.tobytes())

    def own_data(self, rank: int) -> tuple[int, ...] | None:
        """Return the fingerprint of a rank's own data; None if ranks share data, or in files of
        version 1."""
        rows = self._read_optional("data/own")
        if rows is None:
            return None
        return tuple(rows[rank].tolist())

    @property
    def own(self) -> dict[str, Tensor]:
        """Tensors whose values differ between ranks; the ranks' values are joined along axis 0."""
        return self._below("partial/model/", "partial/optim/")

    @property
    def frozen(self) -> dict[str, Tensor]:
        """Frozen parameters that do not have the constructor's values."""
        return self._below("frozen/")

    def array(self, path: str) -> np.ndarray:
        with name_damage(self.path):
            return self._dataset(path)[:]

    def _read_optional(self, path: str) -> np.ndarray | None:
        if not self._has(path):
            return None
        return self.array(path)

    def _names(self, path: str) -> tuple[str, ...] | None:
        names = self._read_optional(path)
        if names is None:
            return None
        return tuple(name.decode() for name in names)

    @property
    def nbytes(self) -> int:
        return sum(dataset.id.get_storage_size() for dataset in self._datasets.values())

    def errors(
        self, part: int = 0, parts: int = 1, read: Read = lambda nbytes: None
    ) -> Iterator[str]:
        """Yield errors in the contents, one line each; verifies every ``parts``-th block, from
        block ``part`` on.

        ``read`` is called with the number of bytes of each read; the sum over all parts is
        `nbytes`. Of one rank's part, its own blocks are verified.
        """
        if self.part is not None:
            yield from self.part_errors(self.part, read)
            return
        with name_damage(self.path):
            yield from self._misfits()
            yield from checksum_errors(self.file, self._stored, part, parts, read)

    def part_errors(self, part: int, read: Read = lambda nbytes: None) -> Iterator[str]:
        """Yield errors as `errors` does, of the structure and the rows that rank ``part`` saved."""
        ranks = self.header.ranks

        def chosen(block: int, blocks: int) -> bool:
            return find_saver(ranks, block, blocks) == part

        with name_damage(self.path):
            yield from self._misfits()
            yield from checksum_errors(self.file, self._stored, read=read, chosen=chosen)

    def require_valid(self, part: int = 0, parts: int = 1) -> None:
        """Raise DataError at the first of `errors`."""
        for error in self.errors(part, parts):
            raise DataError(f"{self.path} is damaged: {error}.")

    def _misfits(self) -> Iterator[str]:
        """Yield datasets that are missing or have a wrong shape, and errors of the structure."""
        expected: dict[str, tuple[int, ...]] = {}
        if TASKS[self.header.data.task].one_class:
            expected["input/classes"] = (self.header.data.outputs,)
        # Datasets of a group exist together or not at all.
        for group in self._list_groups():
            if self._datasets.keys() & group.keys():
                expected |= group
        for path, shape in expected.items():
            if path not in self._datasets:
                yield f"{path} is missing"
            elif self._datasets[path].shape != shape:
                yield f"{path} is {self._datasets[path].shape}, not {shape}"
        yield from structure_errors(self.file, self._stored)

    def _list_groups(self) -> list[dict[str, tuple[int, ...]]]:
        """Return the shapes of optional datasets by their paths, for each group of datasets."""
        network = self.architecture
        inputs = (prod(self.header.data.shape),)
        outputs = (self.header.data.outputs,)
        slots: dict[str, tuple[int, ...]] = {}
        for kind in list_kinds(self.tensors):
            for name, parameter in network.parameters.items():
                slots[place(Slot(name, kind))] = parameter.pattern.shape(network.lengths)
        norms: dict[str, tuple[int, ...]] = {}
        for name, norm in network.batch_norms.items():
            for moment in MOMENTS:
                norms[f"norm/{name}/{moment}"] = (norm.units,)
        return [
            slots,
            norms,
            dict.fromkeys((f"input/{moment}" for moment in MOMENTS), inputs),
            dict.fromkeys((f"output/{moment}" for moment in MOMENTS), outputs),
            {"input/offset": inputs},
            {"output/offset": outputs},
            {"output/names": outputs},
        ]

    def _has(self, prefix: str) -> bool:
        return any(path.startswith(prefix) for path in self._datasets)

    def _below(self, *prefixes: str) -> dict[str, Tensor]:
        tensors = (self._tensor(path) for path in self._datasets if path.startswith(prefixes))
        return {tensor.name: tensor for tensor in tensors}

    def _tensor(self, path: str) -> Tensor:
        dataset = self._dataset(path)
        axes = dataset.attrs.get("axes", b"")
        if isinstance(axes, bytes):
            axes = axes.decode()
        # model/NAME, optim/NAME or frozen/NAME; below partial/ if each rank has its own values.
        _, _, name = path.removeprefix("partial/").partition("/")
        return Tensor(
            name=named(name),
            pattern=Pattern.parse(str(axes)),
            dtype=dtype_name(dataset),
            dataset=dataset,
            path=self.path,
        )

    def _dataset(self, path: str) -> h5py.Dataset:
        # Those that were found at the start lie behind no link.
        dataset = self._datasets.get(path)
        if dataset is None:
            dataset = dataset_at(self.file, path)
        if dataset is None:
            others = did_you_mean(path, self._datasets)
            raise DataError(f"{self.path} is damaged: it has no dataset {path}{others}")
        return dataset


@contextmanager
def open_checkpoint(path: str | os.PathLike | Copy) -> Iterator[Checkpoint]:
    """Open a checkpoint and check its structure. Raises DataError if the file is missing, damaged,
    no checkpoint, or one rank's part of a checkpoint."""
    if isinstance(path, Copy):
        named = path.path
        with opened(path.file, lambda _, file: Checkpoint(named, file)) as checkpoint:
            yield checkpoint
        return
    path = Path(path)
    if find_part(path) is not None and path.is_file():
        raise DataError(
            f"{path} has the rows of one rank alone. Make one file of all ranks' parts: istmpi "
            f"checkpoint gather {path.parent} --out FILE."
        )
    with open_file(path) as checkpoint:
        yield checkpoint


@contextmanager
def open_file(path: Path) -> Iterator[Checkpoint]:
    """Open a checkpoint as `open_checkpoint` does, or one rank's part of it. Other ranks' rows are
    zeros there."""
    with name_damage(path):
        if not path.is_file():
            raise DataError(f"{path} {_explain_no_file(path)}")
        if not h5py.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file: not a checkpoint, or damaged.")
    with opened(path, Checkpoint) as checkpoint:
        yield checkpoint


def _explain_no_file(path: Path) -> str:
    if path.is_dir():
        return f"is a folder. Give a file in it; list them: istmpi checkpoint ls {path}"
    beside = [entry.name for entry in path.parent.glob("*.h5")]
    if not beside:
        return "does not exist."
    return f"does not exist{did_you_mean(path.name, beside)}"
