"""Finds the code and the data that fit a checkpoint; others are refused. Code runs only if the user
names it."""

from typing import Any

import numpy as np

from istmpi.checkpoint.format import Header
from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.state import restore_frozen
from istmpi.data.callable.source import is_function
from istmpi.data.dataset import Dataset, other_reading, same_form
from istmpi.data.holdout import TestSplit
from istmpi.data.moments import named
from istmpi.data.sources import open_dataset
from istmpi.engine.partition import Partition
from istmpi.errors import ConfigError, DataError
from istmpi.methods import spec_of
from istmpi.models.architecture import Architecture
from istmpi.names import class_of, is_own
from istmpi.tasks import OWN


def runnable(
    checkpoint: Checkpoint,
    model: str | None,
    example: tuple[Any, ...] | None = None,
    runs: bool = True,
) -> Architecture:
    """Return a checkpoint's network with its code. ``model``: the class of a user's own network.

    The network is tried on ``example``, a batch's inputs, or on examples of the data's shape.
    Without ``example``, inputs that only the data's code defines cannot be tried; with ``runs``,
    that raises ConfigError.

    Raises DataError if the class is needed and not given, ConfigError if the class makes another
    network.
    """
    network, header = checkpoint.architecture, checkpoint.header
    if model is not None and not is_own(network.name):
        raise ConfigError(
            f"--model {model}: the network in {checkpoint.path} is built in; leave --model out."
        )
    if model is None and is_own(network.name):
        raise DataError(
            f"{checkpoint.path} has the weights of your network {network.name} without its code. Give the "
            "code: --model FILE.py:Class."
        )
    from istmpi.models.arguments import user_network

    data = header.data
    unknown = data.task == OWN and example is None
    if unknown and runs:
        require_data(checkpoint)
        raise ConfigError(
            f"{checkpoint.path}: only the code of its data defines the inputs of its network. Use istmpi "
            "evaluate --data, or export --to torch and call the class in Python."
        )
    arguments = header.run.model.arguments_for(data.task)
    named = model or network.name
    try:
        code = user_network(named, header.shape, data.outputs, arguments, data.task, example)
    except ConfigError as error:
        if class_of(named) == class_of(network.name):
            raise
        raise ConfigError(
            f"{checkpoint.path} has the weights of {network.name}. {error}"
        ) from error
    network = network.with_code(code, tried=not unknown)
    restore_frozen(checkpoint, network)
    return network


def require_data(checkpoint: Checkpoint) -> None:
    if checkpoint.header.data.kind == "program":
        raise DataError(
            f"{checkpoint.path} is of a program, whose data istmpi does not know. Score it in the program with "
            "job.evaluate, or use export --to torch."
        )


def deal_of(header: Header, architecture: Architecture) -> Partition:
    """Return the deal of a checkpoint's last round, for a network that is this deal's subnets side
    by side."""
    run, first, last = header.run, 0, max(header.round - 1, 0)
    for name, rounds in run.phases():
        if first <= last:
            phase = run.override({"method.name": name})
        first += rounds
    shares = [header.shares[since] for since in sorted(header.shares) if since <= last]
    return spec_of(phase.method.name).deal(
        phase, architecture, header.blocks, last, shares[-1] if shares else None
    )


def changed_source(network: Architecture) -> str:
    """Return a note if the class's source has changed since training, even by a byte; else ""."""
    source, code = network.table.source, network.code
    if not source or (class_of(code.name), code.source.hash) == (class_of(network.name), source):
        return ""
    return f"the source of {network.name} has changed since training; its parameters have not"


def own_source(checkpoint: Checkpoint) -> str:
    """Return the place of a run's data. Raises DataError if the data come from code."""
    source = checkpoint.header.run.data.source
    if is_function(source):
        raise DataError(
            f"{checkpoint.path} was trained on data from code, which runs only with --data {source}."
        )
    return source


def fitting_data(
    checkpoint: Checkpoint, source: str, rank: int | None = None, model: str | None = None
) -> Dataset:
    """Return the data in ``source``, split and normalised as a checkpoint's training data.
    ``model``: a user's class.

    Raises DataError if the data do not fit.
    """
    require_data(checkpoint)
    run = checkpoint.header.run
    test = TestSplit(run.data.test, run.train.seed)
    data = open_dataset(source, rank, run.data.length, model or "", test=test)
    if "validation" not in data.splits:
        data = data.with_validation(run.data.validation, run.train.seed)
    require_fitting(data, checkpoint)
    return data.normalised_by(checkpoint.normalisation)


def require_fitting(data: Dataset, checkpoint: Checkpoint) -> None:
    trained = checkpoint.header.data
    if not same_form(data.shape, trained.shape):
        shapes = (" x ".join(map(str, shape)) or "several" for shape in (data.shape, trained.shape))
        wrong = "has examples of {} numbers; the network takes {}".format(*shapes)
    elif (data.task, data.outputs) != (trained.task, trained.outputs):
        wrong = f"is {data.task} with {data.outputs} outputs; the network was trained for {trained.task} with "
        wrong += str(trained.outputs)
    elif data.classes != checkpoint.classes:
        number = next(
            n for n, pair in enumerate(zip(data.classes, checkpoint.classes)) if pair[0] != pair[1]
        )
        wrong = f"calls class {number} {data.classes[number]}; the network calls it {checkpoint.classes[number]}"
    elif str(data.tokenizer) != str(checkpoint.tokenizer):
        wrong = f"has tokens of {data.tokenizer}; the network takes those of {checkpoint.tokenizer}"
    elif differences := other_reading(data.reading, checkpoint.reading):
        wrong = f"was prepared differently: {differences} in the network's training data"
    else:
        wrong = _without_offset(data, checkpoint)
    if wrong:
        raise DataError(
            f"{data.source} {wrong}. Give data like those that {checkpoint.path} was trained on."
        )


def _without_offset(data: Dataset, checkpoint: Checkpoint) -> str:
    normalisation = checkpoint.normalisation
    for what, trained, here in (
        ("feature", normalisation and normalisation.offset, data.offset),
        ("output", checkpoint.target_offset, data.target_offset),
    ):
        rounded = (
            ()
            if trained is None
            else np.flatnonzero(trained if here is None else (trained != 0) & (here == 0))
        )
        if len(rounded):
            return f"has {named(rounded, what)} rounded to float32; in training an offset was subtracted first"
    return ""
