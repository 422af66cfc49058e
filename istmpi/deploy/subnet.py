"""A rank's subnet of a checkpoint's last deal, as a small checkpoint of its own.

It has the widths that the rank held, and predicts without the other subnets. Scores, predictions
and exports use it as any other checkpoint. Residual blocks that the rank lacked have zeros, with
which a block returns its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from istmpi.checkpoint.format import (
    Header,
    Piece,
    add_checksums,
    create,
    place,
    room_for_structure,
    select_guards,
)
from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.writers import Rows
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.deploy.fitting import attach_code, find_last_deal
from istmpi.engine.partition import Partition
from istmpi.errors import ConfigError
from istmpi.hdf5 import datasets, dtype_name, new_file, read_rows
from istmpi.methods.limits import with_method
from istmpi.names import NARROW_METHOD
from istmpi.network.architecture import Architecture
from istmpi.network.table import Table


def write_subnet(checkpoint: Checkpoint, number: int, path: Path, model: str | None = None) -> None:
    """Write the checkpoint of rank ``number``'s subnet into ``path``.

    ``model``: the class of a user's own network. Raises ConfigError if there is no such subnet,
    OSError if the file cannot be written.
    """
    _Cut.from_checkpoint(checkpoint, number, model).write(path)


@dataclass(frozen=True)
class _Cut:
    """A subnet that is being cut out of a checkpoint."""

    checkpoint: Checkpoint
    number: int
    network: Architecture
    """The whole network, with its code."""
    deal: Partition
    lengths: Mapping[str, int]
    """The lengths of axes in the subnet. All blocks are there."""

    @staticmethod
    def from_checkpoint(checkpoint: Checkpoint, number: int, model: str | None) -> _Cut:
        header = checkpoint.header
        network = attach_code(checkpoint, model, runs=False)
        deal = find_last_deal(replace(header, blocks=header.ranks), network)
        _require_subnet(checkpoint, deal, number)
        widths = {}
        for group, units in deal.held(number).items():
            if group not in network.blocks:
                widths[group] = len(units)
        return _Cut(checkpoint, number, network, deal, {**network.lengths, **widths})

    def write(self, path: Path) -> None:
        """Write the subnet's checkpoint. Raises OSError."""
        header = self._describe()
        pieces = add_checksums([*self._list_weights(), *self._list_inputs()])
        checksums = [guard.values for guard in select_guards(pieces)]
        with new_file(path, room_for_structure(header, pieces)) as file:
            offsets = create(file, header, pieces, [checksums])
        rows = Rows(path)
        for piece in pieces:
            rows.write(piece.bytes, offsets[piece.path])
        rows.close()

    def _describe(self) -> Header:
        """Return the header of a network that one rank trained, with the subnet's widths."""
        header = self.checkpoint.header
        scale = {}
        for group, factor in header.scale.items():
            units = self.deal.held(self.number).get(group)
            if units is not None:
                # Other factors are of the whole network. In a subnet, a share has this factor.
                scale[group] = factor * self.network.lengths[group] / len(units)
        return replace(
            header,
            run=self._narrow_run(),
            ranks=1,
            data=replace(header.data, columns=()),
            scale=scale,
            network=self._narrow_table().tree(),
            fitted={},
            temperature=1.0,
            shares={},
            blocks=0,
        )

    def _find_arguments(self) -> dict[str, Any]:
        """Return the arguments of the class that are other ones in the subnet."""
        code = self.network.code
        changed = {}
        narrowed = {}
        for group, length in self.lengths.items():
            if self.network.lengths[group] != length:
                narrowed[group] = length
        for argument, value in code.settings_at(narrowed).items():
            if value != code.settings[argument]:
                changed[argument] = value
        return changed

    def _narrow_run(self) -> Run:
        settings: dict[str, Any] = {}
        for argument, value in self._find_arguments().items():
            settings[f"model.{argument}"] = value
        run = self.checkpoint.header.run
        # Its forms, phases and exchanges are of several subnets.
        forms = {"evaluate.form": None, "method.finish": "", "model.scale": "share"}
        return with_method(run, NARROW_METHOD).override(forms | settings)

    def _narrow_table(self) -> Table:
        network = self.network
        table = network.table
        norms = {}
        for name, units in self._units_of_norms.items():
            norms[name] = replace(table.norms[name], units=units)
        return replace(
            table,
            settings={**table.settings, **self._find_arguments()},
            groups={group: self.lengths[group] for group in table.groups},
            norms=norms,
        )

    @cached_property
    def _units_of_norms(self) -> dict[str, int]:
        """The numbers of units that batch normalisations have in the subnet."""
        built = self.network.without_values(None, self.lengths)
        layers = self.network.batch_norm_layers(built)
        return {name: layer.num_features for name, layer in layers.items()}

    def _list_weights(self) -> Iterator[Piece]:
        for name, parameter in self.network.parameters.items():
            shape = parameter.pattern.shape(self.lengths)
            values = torch.zeros(shape, dtype=getattr(torch, parameter.dtype))
            axes = enumerate(parameter.pattern.axes)
            positions = [self.deal.positions(axis, at, self.number) for at, axis in axes]
            # A parameter of a block that the rank lacked has no position, and stays zero.
            if all(map(len, positions)):
                values = self._read(name)[np.ix_(*positions)].contiguous()
            yield Piece(
                path=place(name),
                shape=shape,
                dtype=parameter.dtype,
                values=values.view(torch.uint8).numpy(),
                axes=str(parameter.pattern),
            )

    def _read(self, name: str) -> torch.Tensor:
        tensor = self.checkpoint.tensors[name]
        values = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
        tensor.read_bytes(0, tensor.shape[0], values.view(torch.uint8).numpy().reshape(-1))
        return values

    def _list_inputs(self) -> Iterator[Piece]:
        """Yield what prediction needs beside weights."""
        moments = self._collect_moments()
        for name, values in moments.items():
            yield Piece(path=name, shape=values.shape, dtype=str(values.dtype), values=values)
        for path, dataset in datasets(self.checkpoint.file).items():
            if not path.startswith(("input/", "output/", "frozen/")):
                continue
            dtype = dtype_name(dataset)
            # The name of a dtype of texts is no dtype.
            if dataset.dtype.kind == "S":
                dtype = dataset.dtype.str[1:]
            nbytes = dataset.size * dataset.id.get_type().get_size()
            yield Piece(
                path=path,
                shape=dataset.shape,
                dtype=dtype,
                values=read_rows(dataset, 0, dataset.shape[0], np.empty(nbytes, np.uint8)),
                axes=dataset.attrs.get("axes"),
            )

    def _collect_moments(self) -> dict[str, np.ndarray]:
        """Return this subnet's moments by their paths, if the file has those of all subnets."""
        moments: dict[str, np.ndarray] = {}
        if not (self.checkpoint.header.blocks and self.checkpoint.calibrated):
            return moments
        stored = self.checkpoint.moments
        for name, units in self._units_of_norms.items():
            # A block that the rank lacked has none, and its outputs are zeros with any.
            zeros = np.zeros(units, self.checkpoint.dtype)
            mean, std = stored.get(f"{self.number}/{name}", (zeros, zeros + 1))
            moments[f"norm/{name}/mean"] = mean
            moments[f"norm/{name}/std"] = std
        return moments


def _require_subnet(checkpoint: Checkpoint, deal: Partition, number: int) -> None:
    """Raise ConfigError unless a rank's subnet is a network that predicts alone."""
    header = checkpoint.header
    what = f"--subnet {number}: {checkpoint.path}"
    if not deal.units:
        raise ConfigError(f"{what} was trained whole: no units were dealt out. Leave it out.")
    if number >= deal.ranks:
        raise ConfigError(f"{what} has the subnets 0 to {deal.ranks - 1}. Give one of them.")
    if header.data.columns or _sums_outputs(checkpoint):
        raise ConfigError(
            f"{what} is a sum of subnets, and no subnet predicts alone. Leave it out."
        )


def _sums_outputs(checkpoint: Checkpoint) -> bool:
    return any(find_method_spec(name).sums_outputs for name, _ in checkpoint.header.phases)
