"""A subnet of a checkpoint's network as a network of its own: a checkpoint that every command can use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor
from pathlib import Path

import numpy as np
import torch

from istmpi import rng
from istmpi.checkpoint.format import Header
from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.checkpoint.saver import commit_alone
from istmpi.checkpoint.state import Moments, deployment_pieces, model_pieces
from istmpi.config import Run
from istmpi.data.sources import RANK
from istmpi.deploy.fitting import changed_source, runnable
from istmpi.deploy.network import calibration_inputs, with_values
from istmpi.engine.axes import narrowed
from istmpi.engine.layout import part_of
from istmpi.engine.partition import Partition
from istmpi.engine.slots import Slot, kinds_of, parameter_of
from istmpi.engine.store import ParameterStore
from istmpi.errors import ConfigError
from istmpi.files import appearing, require_free
from istmpi.methods import spec_of
from istmpi.models.architecture import Architecture
from istmpi.models.narrow import Narrow, narrow_module, require_same_outputs
from istmpi.models.norms import calibrate, moments_of

Units = Mapping[str, np.ndarray]
"""The units, sorted, that a subnet has of each unit group that is dealt out."""


@dataclass(frozen=True)
class OfRank:
    """The subnet of a rank of ``ranks``, by default those that saved, in a round, by default the last one trained."""

    rank: int
    ranks: int | None = None
    round: int | None = None
    """The number of the round, from 0."""


@dataclass(frozen=True)
class Share:
    """A share of the units of each group, drawn at random: one at least."""

    share: float
    seed: int = 0


@dataclass(frozen=True)
class Extraction:
    """The files that were written."""

    path: Path
    run: Path
    """The file of the run that the network can be trained on with."""
    bytes: int
    subnet: str
    """The subnet, in words."""
    units: Mapping[str, tuple[int, int]]
    """The number of units in the subnet and in the network, of each group that is dealt out."""
    calibrated_on: str
    """The data; empty where nothing had to be calibrated."""
    note: str
    """A warning for the user."""


def extract(
    path: str | os.PathLike,
    target: Path,
    which: OfRank | Share,
    calibrate_on: str | None = None,
    force: bool = False,
    model: str | None = None,
) -> Extraction:
    """Write a subnet of a checkpoint's network as a checkpoint of its own, and the file of its run beside it.

    It computes what the subnet computes in training. What is normalised over the batch is calibrated on the training
    split of the run's data, or of ``calibrate_on``. ``model`` names the class of a network of one's own, which is then
    run. Raises DataError for a checkpoint or data that cannot be used, ConfigError for a subnet or a target that cannot
    be, OutputError where writing fails.
    """
    beside = target.with_suffix(".toml")
    for file in (target, beside):
        require_free(file, force)
    with open_checkpoint(path) as checkpoint:
        whole = runnable(checkpoint, model)
        units, words = _chosen(checkpoint, whole, which)
        checkpoint.require_valid()
        narrow = _narrow(checkpoint, whole, units)
        store = _filled(checkpoint, whole, units, narrow)
        header = _header(checkpoint.header, narrow, words)
        moments, source = _calibrated(checkpoint, narrow.network, store, calibrate_on)
        norms = narrow.network.batch_norms
        commit_alone(target, header, [*model_pieces(store), *deployment_pieces(moments, norms, checkpoint.inputs, 0)])
    with appearing(beside) as file:
        file.write(header.run.toml().encode())
    counts = {name: (len(held), whole.lengths[name]) for name, held in units.items()}
    return Extraction(target, beside, target.stat().st_size, words, counts, source, changed_source(whole))


def _chosen(checkpoint: Checkpoint, whole: Architecture, which: OfRank | Share) -> tuple[Units, str]:
    """The units of a subnet, and which subnet that is, in words."""
    if isinstance(which, Share):
        run, _ = _dealing(checkpoint, whole, None)
        units = {}
        for name in spec_of(run.method.name).groups(run, whole):
            length = whole.lengths[name]
            order = rng.permutation(length, rng.key(which.seed, "extract", name))
            units[name] = np.sort(order[: max(floor(which.share * length + 0.5), 1)])
        return units, f"share {which.share:g} of seed {which.seed}"
    ranks = checkpoint.header.ranks if which.ranks is None else which.ranks
    if which.rank >= ranks:
        raise ConfigError(f"--rank {which.rank} with --ranks {ranks}: ranks are numbered from 0 to {ranks - 1}.")
    run, round = _dealing(checkpoint, whole, which.round)
    shares = checkpoint.header.shares_in(ranks, round)
    deal = spec_of(run.method.name).deal(run, whole, ranks, round, shares)
    return dict(deal.held(which.rank)), f"rank {which.rank} of {ranks} in round {round}"


def _dealing(checkpoint: Checkpoint, whole: Architecture, round: int | None) -> tuple[Run, int]:
    """The run with the method that dealt units out in a round, by default the last one trained that has a deal."""
    header, first, dealing = checkpoint.header, 0, []
    if round is not None and round >= header.run.train.rounds:
        raise ConfigError(f"--round {round}: the rounds of {checkpoint.path} are 0 to {header.run.train.rounds - 1}.")
    done = header.round
    for name, rounds in header.run.phases():
        run, last = header.run.override({"method.name": name}), first + rounds - 1
        if spec_of(name).groups(run, whole) and rounds:
            if round is None and (first < done or not dealing):
                dealing.append((run, max(min(last, done - 1), first)))
            elif round is not None and first <= round <= last:
                dealing.append((run, round))
        first += rounds
    if not dealing:
        when, cure = ("in its run", "") if round is None else (f"in round {round}", ", or another round")
        raise ConfigError(
            f"{checkpoint.path}: nothing was dealt out {when} (method.name = {header.run.method.name!r}), so that it "
            f"has no subnets. Give a network that was trained with ist{cure}."
        )
    return dealing[-1]


def _narrow(checkpoint: Checkpoint, whole: Architecture, units: Units) -> Narrow:
    """The network that is written, at first without weights."""
    header = checkpoint.header
    lengths = narrowed(whole.lengths, whole.parameters, units)
    # A rank that trains the full network trains the one that is evaluated, as in `istmpi.methods.base.Method.build`.
    everything = all(lengths[group] == whole.lengths[group] for group in whole.groups)
    scale = header.full_scale if everything else header.scale
    narrow = narrow_module(whole, units, scale)
    require_same_outputs(whole, units, scale, narrow, _parts(checkpoint, whole, units, narrow.names))
    return narrow


def _parts(
    checkpoint: Checkpoint, whole: Architecture, units: Units, names: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    layout = Partition(whole.lengths, {name: (held,) for name, held in units.items()}, 1)
    return {
        name: part_of(
            torch.from_numpy(checkpoint.tensors[source].rows()), layout, whole.parameters[parameter_of(source)], 0
        )
        for name, source in names.items()
    }


def _filled(checkpoint: Checkpoint, whole: Architecture, units: Units, narrow: Narrow) -> ParameterStore:
    """The network's weights, and the optimizer's state that its run keeps between rounds."""
    network, run = narrow.network, checkpoint.header.run
    store = ParameterStore(network.parameters, network.lengths, 1, 0)
    store.scale = narrow.scale
    phases = [(spec_of(name), run.override({"method.name": name})) for name, _ in run.phases()]
    kept = {kind for spec, its in phases for kind in spec.slots(its)}
    slots = {
        Slot(name, kind): Slot(source, kind)
        for name, source in narrow.names.items()
        for kind in kinds_of(checkpoint.tensors)
        if kind in kept and Slot(source, kind) in checkpoint.tensors
    }
    store.add_slots(slots)
    for name, part in _parts(checkpoint, whole, units, narrow.names | slots).items():
        store.tensors[name].copy_(part * narrow.folded.get(name, 1.0))
    return store


def _calibrated(
    checkpoint: Checkpoint, network: Architecture, store: ParameterStore, calibrate_on: str | None
) -> tuple[Moments, str]:
    """The moments of the batch normalisations, and the data whose training split gave them."""
    if not network.batch_norms:
        return {}, ""
    source = calibrate_on or checkpoint.header.run.data.source
    if RANK in source:
        raise ConfigError(f"{checkpoint.path}: each rank had data of its own, {source}. Give --calibrate-on FILE.")
    built = with_values(network, store)
    layers = network.batch_norm_layers(built)
    calibrate(built, layers, calibration_inputs(checkpoint, source, network.example_shape), moments_of)
    return {name: layer.moments for name, layer in layers.items()}, source


def _header(header: Header, narrow: Narrow, words: str) -> Header:
    """The header for the ``narrow`` network, as if one rank had saved it between two rounds; ``words`` end its name."""
    network, tree = narrow.network, header.run.tree()
    tree["model"] |= narrow.settings
    start = header.run.name.encode()[:120].decode(errors="ignore")  # a name has 200 bytes at most
    tree["name"] = f"{start}-{words.replace(' ', '-')}"
    tree["output"] = {}
    tree["method"].pop("shares", None)  # of each rank of another job
    if (dealt := tree["method"].pop("partition", None)) is not None:
        kept = [group for group in network.groups if narrow.groups.get(group) in dealt]
        tree["method"] |= {"partition": kept} if kept else {}
    run = Run.from_tree(tree, tree["name"])
    return replace(
        header, run=run, ranks=1, local_step=0, scale=narrow.scale, fitted={}, network=network.table.tree(), shares={}
    )
