"""The subnet of a rank as a network of its own: a checkpoint that every command can use."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.checkpoint.saver import commit_alone
from istmpi.checkpoint.state import Moments, deployment_pieces, model_pieces
from istmpi.config import Run
from istmpi.data.sources import RANK
from istmpi.deploy.fitting import changed_source, own_source, runnable
from istmpi.deploy.network import calibration_inputs, with_values
from istmpi.engine.layout import part_of
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError
from istmpi.files import require_free
from istmpi.methods import spec_of
from istmpi.models.architecture import Architecture
from istmpi.models.narrow import narrow_module, require_same_outputs
from istmpi.models.norms import calibrate, moments_of


def extract(
    path: str | os.PathLike,
    target: Path,
    rank: int,
    ranks: int | None = None,
    calibrate_on: str | None = None,
    force: bool = False,
    model: str | None = None,
) -> tuple[str, str]:
    """Write the subnet that a rank of ``ranks`` held in the last round as a checkpoint; say which, and a warning.

    What is normalised over the batch is calibrated on ``calibrate_on``, by default the run's data. Raises DataError for
    a checkpoint or data that cannot be used, ConfigError for a subnet or a target that cannot be.
    """
    require_free(target, force)
    with open_checkpoint(path) as checkpoint:
        header, whole = checkpoint.header, runnable(checkpoint, model)
        ranks = ranks or header.ranks
        if rank >= ranks:
            raise ConfigError(f"--rank {rank} with --ranks {ranks}: ranks are numbered from 0 to {ranks - 1}.")
        run, round = _dealing(checkpoint, whole)
        units = dict(spec_of(run.method.name).deal(run, whole, ranks, round, header.shares_in(ranks, round)).held(rank))
        checkpoint.require_valid()
        # A rank that trains the full network trains the one that is evaluated, as in `Method.build`.
        everything = all(len(held) == whole.lengths[group] for group, held in units.items())
        scale = header.full_scale if everything else header.scale
        narrow, parts = narrow_module(whole, units, scale), _parts(checkpoint, whole, units)
        require_same_outputs(whole, units, scale, narrow, parts)
        network = narrow.network
        store = ParameterStore(network.parameters, network.lengths, 1, 0)
        store.scale = narrow.scale
        for name, part in parts.items():
            store.tensors[name].copy_(part * narrow.folded[name])
        moments = _calibrated(checkpoint, network, store, calibrate_on)
        words = f"rank {rank} of {ranks} in round {round}"
        tree = header.run.tree()
        tree["model"] |= narrow.settings
        tree["name"] = f"{header.run.name.encode()[:120].decode(errors='ignore')}-{words.replace(' ', '-')}"
        tree["method"].pop("shares", None)  # of each rank of another job
        its_run, network_tree = Run.from_tree({**tree, "output": {}}, tree["name"]), network.table.tree()
        header = replace(header, run=its_run, ranks=1, local_step=0, network=network_tree, scale=narrow.scale)
        header = replace(header, fitted={}, shares={})
        deployed = deployment_pieces(moments, network.batch_norms, checkpoint.inputs, 0)
        commit_alone(target, header, [*model_pieces(store), *deployed])
    counts = (f"{name} {len(held)} of {whole.lengths[name]}" for name, held in units.items())
    return ", ".join([words, *counts]), changed_source(whole)


def _dealing(checkpoint: Checkpoint, whole: Architecture) -> tuple[Run, int]:
    """The run with the method that dealt units out last, and the last round of that method."""
    run, first, dealing = checkpoint.header.run, 0, None
    for name, rounds in run.phases():
        phase, last = run.override({"method.name": name}), min(first + rounds, checkpoint.header.round) - 1
        if spec_of(name).groups(phase, whole) and (last >= first or dealing is None):
            dealing = phase, max(last, first)
        first += rounds
    if dealing is None:
        raise ConfigError(
            f"{checkpoint.path}: nothing was dealt out in its run (method.name = {run.method.name!r}), so that it has "
            f"no subnets. Give a network that was trained with ist."
        )
    return dealing


def _parts(checkpoint: Checkpoint, whole: Architecture, units: Mapping) -> dict[str, torch.Tensor]:
    layout = Partition(whole.lengths, {name: (held,) for name, held in units.items()}, 1)
    return {
        name: part_of(torch.from_numpy(checkpoint.tensors[name].rows()), layout, parameter, 0)
        for name, parameter in whole.parameters.items()
    }


def _calibrated(
    checkpoint: Checkpoint, network: Architecture, store: ParameterStore, calibrate_on: str | None
) -> Moments:
    if not network.batch_norms:
        return {}
    source = calibrate_on or own_source(checkpoint)
    if RANK in source:
        raise ConfigError(f"{checkpoint.path}: each rank had data of its own, {source}. Give --calibrate-on FILE.")
    built = with_values(network, store)
    layers = network.batch_norm_layers(built)
    calibrate(built, layers, calibration_inputs(checkpoint, source, network.example_shape), moments_of)
    return {name: layer.moments for name, layer in layers.items()}
