"""Measures a run in epochs: passes over the data on the rank that has most examples."""

from collections.abc import Mapping, Sized
from dataclasses import replace

from istmpi.checkpoint.reader import Checkpoint
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.batches import BY_CLASS, count_rows
from istmpi.data.dataset import Dataset
from istmpi.data.settings import Data


def convert_epochs(
    run: Run, data: Dataset, ranks: int, communicator: Communicator | None = None
) -> Run:
    """Return the run with ``train.rounds`` computed from ``train.epochs``; the same run if no
    epochs are set.

    Rounds are ceil(epochs * examples / (batches of a round * batch)), with the largest number of
    examples of a rank; for fedavg they are ceil(epochs / method.epochs). Collective with a
    communicator.
    """
    if run.train.epochs is None:
        return run
    return with_rounds(run, {0: count_most_examples(run, data, ranks, communicator)})


def with_rounds(run: Run, most_examples: Mapping[int, int]) -> Run:
    """Return the run with the ``train.rounds`` of its course.

    ``most_examples`` is as for `Run.course`.
    """
    # Not by `override`, which drops the epochs where rounds are given.
    rounds = run.course(most_examples).rounds
    return replace(run, train=replace(run.train, rounds=rounds))


def count_most_examples(
    run: Run, data: Dataset, ranks: int, communicator: Communicator | None = None
) -> int:
    """Return the training examples of the rank that has most. Collective with a communicator."""
    examples = max(count_examples(run.data, run.train.seed, data, ranks))
    # With other placements every rank counts the examples of all.
    if run.data.placement == "local" and communicator:
        examples = max(communicator.allgather(examples))
    return examples


def recall_most_examples(
    checkpoint: Checkpoint, settings: Data, data: Dataset, examples: int
) -> dict[int, int]:
    """Return the training examples of the rank that has most, by the number of rounds done when it
    became so, for a run that resumes from a checkpoint.

    ``examples``: the present number.
    """
    header = checkpoint.header
    most_examples = dict(header.most_examples)
    if not most_examples:
        most_examples[0] = _recall_first_examples(checkpoint, settings, data, examples)
    if most_examples[max(most_examples)] != examples:
        most_examples[header.round] = examples
    return most_examples


def _recall_first_examples(
    checkpoint: Checkpoint, settings: Data, data: Dataset, examples: int
) -> int:
    header = checkpoint.header
    ranks = header.ranks
    # Only a program knows its data; a file of a run in rounds does not have their number.
    if data.network is not None:
        return examples
    if settings.placement != "local":
        return max(count_examples(settings, header.run.train.seed, data, ranks))
    fingerprints = [checkpoint.own_data(rank) for rank in range(ranks)]
    # Files of version 1 do not have them.
    return max((saved[0] for saved in fingerprints if saved), default=examples)


def count_examples(settings: Data, seed: int, data: Dataset, ranks: int) -> set[int]:
    """Return the numbers of training examples that ranks have, as far as ``data`` tell."""
    rows = list_rows(settings.placement, data)
    return count_rows(settings.placement, rows, ranks, seed, settings.alpha, settings.label_shards)


def list_rows(placement: str, data: Dataset) -> Sized:
    """Return what `place` and `count_rows` need of the training split: its labels, or only their
    number."""
    if placement in BY_CLASS:
        return data.train.labels()
    # All examples of a user's data set must be read for their labels.
    return data.train
