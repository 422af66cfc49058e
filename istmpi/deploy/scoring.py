"""A checkpoint's score on data, with the network where it is evaluated in training too: spread over the ranks."""

import os
from dataclasses import dataclass

import numpy as np

from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.checkpoint.state import fill, stored_moments
from istmpi.comm import Communicator
from istmpi.data.dataset import Dataset, other_reading, same_form
from istmpi.data.images.split import resized
from istmpi.data.offsets import named
from istmpi.data.sources import open_dataset
from istmpi.deploy.code import changed_source, runnable
from istmpi.devices import choose_threads
from istmpi.engine.store import ParameterStore
from istmpi.errors import DataError, DivergedError
from istmpi.evaluation.evaluator import Evaluator, Score
from istmpi.exits import ExitPoint
from istmpi.tasks import TASKS


@dataclass(frozen=True)
class Evaluation:
    """How well a network does."""

    score: Score
    score_name: str
    source: str
    """The data."""
    split: str
    calibrated: bool
    """The normalisation was calibrated now, on the training split of these data, not taken from the file."""
    note: str = ""
    """Something that the user should know."""
    early_exits: tuple[ExitPoint, ...] = ()
    """What leaving early does, by threshold; of a classifier with several exits."""


def evaluate(
    path: str | os.PathLike,
    communicator: Communicator,
    source: str | None = None,
    split: str = "test",
    calibrate: bool = False,
    model: str | None = None,
) -> Evaluation:
    """The loss and the score of a checkpoint's network on a split, by default of its own run's data. Collective.

    Each rank reads its rows of the weights alone. The normalisation is the file's where it has one, unless
    ``calibrate``. ``model`` names the class of a network of one's own, which is then run. Raises DataError on every
    rank for a checkpoint or data that cannot be used, and where outputs are not finite.
    """
    with communicator.agreed(), open_checkpoint(path) as checkpoint:
        checkpoint.require_valid(communicator.rank, communicator.size)
        source = source or checkpoint.header.run.data.source
        run = checkpoint.header.run.override({"data.source": source, "data.placement": "shared"}).with_implied()
        data = open_dataset(source, communicator.rank, run.data.length)
        if "validation" not in data.splits:
            data = data.with_validation(run.data.validation, run.train.seed)
        require_fitting(data, checkpoint)
        data = data.normalised_by(checkpoint.normalisation)
        if checkpoint.target_offset is not None or data.target_offset is not None:
            data = data.with_target_offset(checkpoint.target_offset)
        if checkpoint.targets:
            data = data.standardised(checkpoint.targets)
        if split not in data.splits:
            raise DataError(f"{source} has no split {split}; it has {', '.join(data.splits)}.")
        network = runnable(checkpoint, model)
        store = ParameterStore(network.parameters, network.lengths, communicator.size, communicator.rank)
        fill(checkpoint, store)
        if TASKS[data.task].of_nodes:
            network.nodes = (len(data.test.graph),) * 2
        data = resized(data, checkpoint.header.side).reshaped(network.example_shape)
        moments, ranks = stored_moments(checkpoint), checkpoint.header.ranks
        calibrate = calibrate or not checkpoint.calibrated
    with communicator.on_this_host() as local:
        choose_threads(run.train.threads, local)
    evaluator = Evaluator(run, network, data, store, communicator, ranks)
    if calibrate:
        evaluator.calibrate()
    else:
        evaluator.network.load_moments(moments)
    try:
        score = evaluator.measure(data.splits[split])
    except DivergedError as error:
        refused = DataError(f"{path}: {error} on the {split} split of {source}. Give another network, or other data.")
        refused.everywhere = True
        raise refused from error
    several = network.exits > 1 and TASKS[data.task].one_class
    return Evaluation(
        score,
        TASKS[data.task].score,
        source,
        split,
        calibrate and bool(network.batch_norms),
        changed_source(network),
        evaluator.early_exits(data.splits[split]) if several else (),
    )


def require_fitting(data: Dataset, checkpoint: Checkpoint) -> None:
    """Refuse data of another kind than the network was trained on."""
    trained = checkpoint.header.data
    wrong = ""
    if not same_form(data.shape, trained.shape):
        shapes = (" x ".join(map(str, shape)) for shape in (data.shape, trained.shape))
        wrong = "has examples of {} numbers; the network takes {}".format(*shapes)
    elif (data.task, data.outputs) != (trained.task, trained.outputs):
        wrong = f"is {data.task} with {data.outputs} outputs; the network was trained for {trained.task} with "
        wrong += str(trained.outputs)
    elif data.classes != checkpoint.classes:
        number = next(n for n, pair in enumerate(zip(data.classes, checkpoint.classes)) if pair[0] != pair[1])
        wrong = f"calls class {number} {data.classes[number]}; the network calls it {checkpoint.classes[number]}"
    elif str(data.tokenizer) != str(checkpoint.tokenizer):
        wrong = f"has tokens of {data.tokenizer}; the network takes those of {checkpoint.tokenizer}"
    elif differences := other_reading(data.reading, checkpoint.reading):
        wrong = f"was read otherwise: {differences} in the network's training data"
    else:
        wrong = _without_offset(data, checkpoint)
    if wrong:
        raise DataError(f"{data.source} {wrong}. Give data of the kind that {checkpoint.path} was trained on.")


def _without_offset(data: Dataset, checkpoint: Checkpoint) -> str:
    """Describe the features or outputs that lack the offset of training and are rounded to float32; empty if none."""
    normalisation = checkpoint.normalisation
    for what, trained, here in (
        ("feature", normalisation and normalisation.offset, data.offset),
        ("output", checkpoint.target_offset, data.target_offset),
    ):
        if trained is not None:
            rounded = np.flatnonzero(trained if here is None else (trained != 0) & (here == 0))
            if len(rounded):
                return f"has {named(rounded, what)} rounded to float32; in training an offset was subtracted first"
    return ""
