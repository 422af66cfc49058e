"""Finds the code and the data that fit a checkpoint; others are refused.

Code runs only if the user names it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from istmpi.checkpoint.format import Header
from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.state import restore_frozen
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.data.callable.source import is_function
from istmpi.data.columns import Columns, keep_labels, place_columns
from istmpi.data.dataset import Dataset, describe_difference, have_same_form
from istmpi.data.dense.like import TableForm
from istmpi.data.holdout import TestSplit
from istmpi.data.moments import list_features
from istmpi.data.sources import RANK, open_dataset
from istmpi.data.table_cache import is_table, open_table
from istmpi.engine.partition import Partition
from istmpi.errors import ConfigError, DataError, IstmpiError
from istmpi.names import find_class_name, is_own
from istmpi.network.architecture import Architecture
from istmpi.tasks import OWN


def attach_code(
    checkpoint: Checkpoint,
    model: str | None,
    example: tuple[Any, ...] | None = None,
    runs: bool = True,
) -> Architecture:
    """Return a checkpoint's network with its code. ``model``: the class of a user's own network.

    The network is tried on ``example``, a batch's inputs, or on examples of the data's shape.
    Without ``example``, inputs that only the data's code defines cannot be tried; with ``runs``,
    that raises ConfigError. Raises DataError if the class is needed and not given, ConfigError if
    the class makes another network.
    """
    network = checkpoint.architecture
    header = checkpoint.header
    _require_fitting_class(checkpoint, model)
    from istmpi.network.arguments import user_network

    data = header.data
    unknown = data.task == OWN and example is None
    if unknown and runs:
        _refuse_inputs(checkpoint)
    arguments = header.run.model.arguments_for(data.task)
    name = model or network.name
    try:
        code = user_network(name, header.shape, data.outputs, arguments, data.task, example)
    except ConfigError as error:
        if find_class_name(name) == find_class_name(network.name):  # the error says enough
            raise
        raise ConfigError(
            f"{checkpoint.path} has the weights of {network.name}. {error}"
        ) from error
    network = network.with_code(code, tried=not unknown)
    restore_frozen(checkpoint, network)
    return network


def _refuse_inputs(checkpoint: Checkpoint) -> NoReturn:
    """Raise an error for a network whose inputs are unknown."""
    require_data(checkpoint)
    cure = "Use istmpi evaluate --data"
    if not checkpoint.header.blocks:
        cure += ", or export --to torch and call the class in Python"
    raise ConfigError(
        f"{checkpoint.path}: only the code of its data defines the inputs of its network. {cure}."
    )


def _require_fitting_class(checkpoint: Checkpoint, model: str | None) -> None:
    name = checkpoint.architecture.name
    if model is not None and not is_own(name):
        raise ConfigError(
            f"--model {model}: the network in {checkpoint.path} is built in; leave --model out."
        )
    if model is None and is_own(name):
        raise DataError(
            f"{checkpoint.path} has the weights of your network {name} without its code. "
            "Give the code: --model FILE.py:Class."
        )


def require_data(checkpoint: Checkpoint) -> None:
    if checkpoint.header.data.kind == "program":
        raise DataError(
            f"{checkpoint.path} is of a program, whose data istmpi does not know. Score it in the "
            "program with job.evaluate, or use istmpi export."
        )


def assume_inputs(checkpoint: Checkpoint) -> tuple[torch.Tensor] | None:
    """Return inputs for a network whose data are known only to code, as if it took one tensor:
    token ids, if it begins with an embedding, else numbers. None for other data, and for inputs
    without a shape."""
    header = checkpoint.header
    if header.data.task != OWN or not header.shape:
        return None
    shape = 4, *header.shape
    operators = checkpoint.architecture.operators
    if operators and operators[0].kind.startswith("Embedding"):
        return (torch.zeros(shape, dtype=torch.int64),)
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)),)


def find_last_deal(header: Header, architecture: Architecture) -> Partition:
    """Return the deal of a checkpoint's last round.

    The network is this deal's subnets side by side.
    """
    run = header.run
    last = max(header.round - 1, 0)
    first = 0
    # The method of the last round is that of the last phase that began by then.
    for name, rounds in header.phases:
        if first <= last:
            phase = run.override({"method.name": name})
        first += rounds
    # Shares are recorded at the rounds in which they change.
    shares = None
    for since in sorted(header.shares):
        if since <= last:
            shares = header.shares[since]
    spec = find_method_spec(phase.method.name)
    return spec.deal(phase, architecture, header.blocks, last, shares)


def note_changed_source(network: Architecture) -> str:
    """Return a note if the class's source has changed since training, even by a byte; else ""."""
    source = network.table.source
    code = network.code
    if not source:
        return ""
    if code.source.hash == source and find_class_name(code.name) == find_class_name(network.name):
        return ""
    return f"the source of {network.name} has changed since training; its parameters have not"


def require_source(checkpoint: Checkpoint) -> str:
    """Return the place of a run's data. Raises DataError if the data come from code."""
    source = checkpoint.header.run.data.source
    if is_function(source):
        raise DataError(
            f"{checkpoint.path} was trained on data from code, which runs only with --data "
            f"{source}."
        )
    return source


def open_fitting_data(
    checkpoint: Checkpoint, source: str, rank: int | None = None, model: str | None = None
) -> Dataset:
    """Return the data in ``source``, split and normalised as a checkpoint's training data.

    ``model``: a user's class. Raises DataError if the data do not fit.
    """
    require_data(checkpoint)
    run = checkpoint.header.run
    path = Path(source)
    if rank is not None:
        path = Path(source.replace(RANK, str(rank)))
    form = _find_form(checkpoint, path)
    if form:
        data = open_table(path, form)
        require_fitting(data, checkpoint)
        _, *notes = data.assumed
        rows = f"all {len(data.test):,} rows of {path} are read as the training table was"
        return replace(data.with_normalisation(checkpoint.normalisation), assumed=(rows, *notes))
    test = choose_test_split(run)
    data = open_dataset(source, rank, run.data.length, model or "", test=test)
    if "validation" not in data.splits:
        data = data.with_validation(run.data.validation, run.train.seed)
    columns = checkpoint.header.data.columns
    if columns and rank is not None and RANK in source:
        data = _add_other_columns(data, checkpoint, rank)
    require_fitting(data, checkpoint)
    data = data.with_normalisation(checkpoint.normalisation)
    # What was assumed about the run's own data was said in training.
    return replace(data, columns=columns, assumed=())


def choose_test_split(run: Run) -> TestSplit:
    """Return how a run chooses the test split of data that lack one."""
    return TestSplit(run.data.test, run.train.seed)


def _find_form(checkpoint: Checkpoint, path: Path) -> TableForm | None:
    """Return the form of the training table if ``path`` is another table; else None.

    A table has a form of its own only if it is the run's, which has a split for testing, too.
    """
    header = checkpoint.header
    if header.data.columns or not path.is_file() or not is_table(path):
        return None
    form = TableForm.from_reading(
        checkpoint.reading, header.data.task, checkpoint.classes, only_tests=True
    )
    if form is None or _is_of_the_run(checkpoint, path):
        return None
    return form


def _is_of_the_run(checkpoint: Checkpoint, path: Path) -> bool:
    """Return True if a table is the one that the network was trained on, also under another path.
    Its training rows must not be scored."""
    run = checkpoint.header.run
    for rank in range(checkpoint.header.ranks):
        if path.resolve() == Path(run.data.source.replace(RANK, str(rank))).resolve():
            return True
    try:
        data = open_table(path).with_validation(run.data.validation, run.train.seed)
    except IstmpiError:
        return False
    train = data.train
    trained = checkpoint.header.data
    given = (len(train), train.labels_checksum, train.features_checksum)
    return given == (trained.train, trained.labels, trained.features)


def _add_other_columns(data: Dataset, checkpoint: Checkpoint, rank: int) -> Dataset:
    """Return the whole table as a rank has it whose own columns are ``data``, with its labels if
    they counted in training."""
    header = checkpoint.header
    normalisation = checkpoint.normalisation
    whole = Columns(count=sum(header.data.columns), names=checkpoint.reading.get("columns"))
    if normalisation:
        whole = replace(whole, **normalisation._asdict())
    parts = [*whole.divide(header.data.columns)]
    parts[rank] = Columns.from_data(data)
    data = place_columns(data, parts, rank)
    labels_on = header.run.data.labels_on
    if labels_on is None:
        return data
    return keep_labels(data, labels_on, rank)


def require_fitting(data: Dataset, checkpoint: Checkpoint) -> None:
    difference = _find_difference(data, checkpoint)
    if difference:
        raise DataError(
            f"{data.source} {difference}. Give data like those that {checkpoint.path} was trained "
            "on."
        )


def _find_difference(data: Dataset, checkpoint: Checkpoint) -> str:
    """Return in words how data differ from the training data; empty if they fit."""
    trained = checkpoint.header.data
    if not have_same_form(data.shape, trained.shape):
        shape = " x ".join(map(str, data.shape)) or "several"
        taken = " x ".join(map(str, trained.shape)) or "several"
        return f"has examples of {shape} numbers; the network takes {taken}"
    if data.task != trained.task or data.outputs != trained.outputs:
        return (
            f"is {data.task} with {data.outputs} outputs; the network was trained for "
            f"{trained.task} with {trained.outputs}"
        )
    # The numbers of outputs are equal, so both lists of classes have the same length.
    for number, (name, name_in_training) in enumerate(
        zip(data.classes or (), checkpoint.classes or ())
    ):
        if name != name_in_training:
            return f"calls class {number} {name}; the network calls it {name_in_training}"
    if str(data.tokenizer) != str(checkpoint.tokenizer):
        return f"has tokens of {data.tokenizer}; the network takes those of {checkpoint.tokenizer}"
    # Preparation may have rescaled or cut the examples, which their shape does not show.
    reading = describe_difference(data.reading, checkpoint.reading)
    if reading:
        return f"was prepared differently: {reading} in the network's training data"
    normalisation = checkpoint.normalisation
    in_training = normalisation and normalisation.offset
    return _describe_rounding("feature", in_training, data.offset) or _describe_rounding(
        "output", checkpoint.target_offset, data.target_offset
    )


def _describe_rounding(what: str, in_training: np.ndarray | None, offset: np.ndarray | None) -> str:
    """Return in words which values lost digits: only in training, an offset was subtracted first.

    Both offsets are ``[n]``, 0 where nothing is subtracted; None subtracts nothing.
    """
    if in_training is None:
        return ""
    rounded = in_training != 0
    if offset is not None:
        # Data with an offset of their own have kept their digits, whatever it is.
        rounded &= offset == 0
    places = np.flatnonzero(rounded)
    if not len(places):
        return ""
    shown = list_features(places, what)
    return f"has {shown} rounded to float32; in training an offset was subtracted first"
