"""A checkpoint's score on data.

The network is spread over the ranks, as in evaluations during training.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from istmpi.checkpoint.format import Header
from istmpi.checkpoint.reader import Checkpoint
from istmpi.checkpoint.state import Moments, fill, read_moments, read_own
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.config.sections import Evaluate, Train
from istmpi.data.columns import OWN
from istmpi.data.dataset import Dataset
from istmpi.data.graph.split import GraphSplit
from istmpi.data.images.split import resize_images
from istmpi.data.sources import RANK
from istmpi.deploy.fitting import (
    attach_code,
    find_last_deal,
    note_changed_source,
    open_fitting_data,
    require_source,
)
from istmpi.deploy.opening import NetworkFile, NetworkPath
from istmpi.devices import choose_device, choose_threads, find_place
from istmpi.engine.store import ParameterStore
from istmpi.errors import DataError, DivergedError
from istmpi.evaluation.blocks import ValuesOf
from istmpi.evaluation.evaluator import Evaluator, Score
from istmpi.evaluation.further import require_further
from istmpi.evaluation.likelihood import LIKELIHOOD
from istmpi.evaluation.planning import choose_form
from istmpi.network.architecture import Architecture


@dataclass(frozen=True)
class Evaluation:
    score: Score
    score_name: str
    source: str
    split: str
    calibrated_now: bool
    """True if the normalisation was calibrated now, on the training split of these data."""
    note: str = ""


def evaluate(
    path: NetworkPath,
    communicator: Communicator,
    source: str | None = None,
    split: str = "test",
    calibrate: bool = False,
    model: str | None = None,
    top_k: Sequence[int] | None = None,
) -> Evaluation:
    """Return loss and score of a checkpoint's network on a split, by default of the run's own data.

    Collective. ``path`` may be a `NetworkFile`: one rank's subnet. ``top_k`` replaces
    evaluate.top_k. Moments are the file's, or new ones if ``calibrate`` or if it has none. Images
    have their last size. Raises DataError on every rank for unusable files or outputs.
    """
    file = NetworkFile.from_argument(path)
    with communicator.agreed(), file.open(model) as checkpoint:
        checkpoint.require_valid(communicator.rank, communicator.size)
        header = checkpoint.header
        source = source or require_source(checkpoint)
        run = _read_from(header, source, communicator.size, top_k)
        data = _open_data(checkpoint, source, split, communicator.rank, model, run.evaluate)
        network, store = _load(checkpoint, data, communicator, model)
        data = resize_images(data, header.side).reshape(network.example_shape)
        moments = _read_moments(checkpoint, calibrate)
        values_of = read_own(checkpoint)
    device = _choose_device(run.train, communicator)
    evaluator = Evaluator(run, network, data, store, communicator, header.ranks, device=device)
    _arrange(evaluator, header, network, values_of, moments)
    with _refuse_divergence(f"{path}: ", f"on the {split} split of {source}"):
        score = evaluator.measure(split, details=True)
    return Evaluation(
        score=score,
        score_name=data.scoring.score,
        source=source,
        split=split,
        calibrated_now=moments is None and bool(network.batch_norms),
        note=_join_notes(network, evaluator.note, data),
    )


def _read_moments(checkpoint: Checkpoint, calibrate: bool) -> Moments | None:
    """Return the file's moments; None if it has none, or if new ones are wanted."""
    if calibrate or not checkpoint.calibrated:
        return None
    return read_moments(checkpoint)


def _join_notes(network: Architecture, note: str, data: Dataset) -> str:
    """Return all notes on a score; ``note``: the evaluator's."""
    notes = (note_changed_source(network), note.rstrip("."), *data.assumed)
    return "; ".join(filter(None, notes))


def _read_from(header: Header, source: str, ranks: int, top_k: Sequence[int] | None) -> Run:
    """Return the run with its data from ``source``, which all ``ranks`` read, also after local
    data. Raises DataError if they are fewer or more ranks than files of columns."""
    settings: dict[str, Any] = {"data.source": source, "data.placement": "shared"}
    if top_k:
        settings["evaluate.top_k"] = tuple(top_k)
    if header.data.columns and RANK not in source:
        # A table with all columns, and its labels.
        settings |= {"data.columns": None, "data.labels_on": None}
    elif header.data.columns:
        settings["data.columns"] = OWN
        if ranks != header.ranks:
            raise DataError(
                f"the columns of {source} are in the files of {header.ranks} ranks, but there are "
                f"{ranks} here. Use as many ranks, or give a table with all columns: --data TABLE."
            )
    return header.run.override(settings).with_implied()


def _arrange(
    evaluator: Evaluator,
    header: Header,
    network: Architecture,
    values_of: ValuesOf | None,
    moments: Moments | None,
) -> None:
    """Arrange the last deal's subnets if the network is them side by side; a whole one needs no
    deal. Then load the moments, or calibrate if there are none. Collective.

    ``values_of`` is as for `SharedBlocks`.
    """
    if header.blocks:
        form = choose_form(header.run)
        if form not in ("sum", LIKELIHOOD):
            # In the run, blocks scored better than merged.
            form = "blocks"
        evaluator.arrange(find_last_deal(header, network), form, values_of)
    if moments is None:
        evaluator.calibrate()
    else:
        evaluator.network.load_moments(moments)


def _load(
    checkpoint: Checkpoint, data: Dataset, communicator: Communicator, model: str | None
) -> tuple[Architecture, ParameterStore]:
    """Return the checkpoint's network, and this rank's rows of its weights."""
    network = attach_code(checkpoint, model, data.example)
    store = ParameterStore(
        network.parameters, network.lengths, communicator.size, communicator.rank
    )
    fill(checkpoint, store)
    if isinstance(data.test, GraphSplit):
        # An evaluation passes the whole graph at once: it is also the only example.
        nodes = len(data.test.graph)
        network.nodes = (nodes, nodes)
    return network, store


def _choose_device(train: Train, communicator: Communicator) -> torch.device:
    """Choose this rank's threads and device. Collective."""
    choose_threads(train.threads, communicator)
    # A GPU of the training machine may not be here.
    choice = "auto"
    if train.device == "cpu":
        choice = "cpu"
    return choose_device(choice, find_place(communicator))


@contextmanager
def _refuse_divergence(subject: str, place: str) -> Iterator[None]:
    """Turn outputs that are not finite, which all ranks see, into a DataError of all ranks."""
    try:
        yield
    except DivergedError as error:
        refused = DataError(f"{subject}{error} {place}. Give another network, or other data.")
        refused.everywhere = True
        raise refused from error


def _open_data(
    checkpoint: Checkpoint,
    source: str,
    split: str,
    rank: int,
    model: str | None,
    settings: Evaluate,
) -> Dataset:
    """Return data with outputs as a checkpoint's network computes them. Raises ConfigError for
    ``settings`` that do not go with them."""
    data = open_fitting_data(checkpoint, source, rank, model)
    # None also takes away an offset of these data that the network does not know.
    if checkpoint.target_offset is not None or data.target_offset is not None:
        data = data.with_target_offset(checkpoint.target_offset)
    if checkpoint.targets:
        data = data.with_standard_targets(checkpoint.targets)
    data.require_split(split, source)
    require_further(data, settings)
    return data
