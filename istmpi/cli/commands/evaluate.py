"""Score a trained network on data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from istmpi.cli.options import as_json, flag, own_class, subnet, text, whole_numbers
from istmpi.cli.output import note, print_json, say, table, wide_console
from istmpi.config.sections import Comm
from istmpi.data.dataset import SPLITS
from istmpi.errors import ConfigError
from istmpi.units import number

if TYPE_CHECKING:
    from istmpi.deploy.opening import NetworkFile
    from istmpi.deploy.scoring import Evaluation
    from istmpi.evaluation.further import Further


@click.command("evaluate")
@click.argument("path", metavar="CKPT")
@text("--data", "FILE", "A prepared .h5, an .npz, or digits.  [default: the run's data]")
@click.option(
    "--split",
    type=click.Choice(SPLITS),
    default="test",
    show_default=True,
    help="The split to score.",
)
@flag("--calibrate", "Calibrate on the data's training split, even if CKPT is calibrated.")
@text("--top-k", "K,...", "Classes: also the accuracy among the K most probable classes.")
@flag("--by-class", "Also print recall, precision and F1 of each class, and the confusion.")
@flag("--exits", "Accuracy and mean FLOPs of answers that leave early, by threshold, instead.")
@own_class
@subnet
@as_json
def command(
    path: NetworkFile,
    data: str | None,
    split: str,
    calibrate: bool,
    top_k: str | None,
    by_class: bool,
    exits: bool,
    model: str | None,
    as_json: bool,
) -> None:
    """Score the network in CKPT on a whole split: its loss, and its score, such as the accuracy.

    \b
    istmpi evaluate runs/digits/network.h5
    mpirun -n 4 istmpi evaluate runs/speech/network.h5 --data other.h5

    Each rank reads only its rows of the weights, and builds the whole network if --model is given.
    """
    from istmpi.comm import HangWatch, world
    from istmpi.deploy.scoring import evaluate

    if exits:
        _require_alone({"--top-k": top_k is not None, "--by-class": by_class})
        _print_exits(path, data, split, calibrate, model, as_json)
        return
    communicator = world()
    numbers = whole_numbers("--top-k", top_k)
    # Reads from a network's file system may hang.
    watched = HangWatch(
        communicator, Comm().patience, path.path.parent, note, cure="Run the same command again."
    )
    with watched, communicator.whereabouts.enter("evaluate"):
        result = evaluate(path, communicator, data, split, calibrate, model, numbers)
    if communicator.rank == 0:
        why = _explain_calibration(path, calibrate)
        _print(result, why, by_class, as_json)


def _require_alone(given: Mapping[str, bool]) -> None:
    """Raise ConfigError for a given option that --exits does not read."""
    for option, is_given in given.items():
        if is_given:
            raise ConfigError(f"{option} does not go with --exits. Leave it out.")


def _print_exits(
    path: NetworkFile,
    data: str | None,
    split: str,
    calibrate: bool,
    model: str | None,
    as_json: bool,
) -> None:
    """Print a line for each threshold (`istmpi predict --exit-threshold`). Collective."""
    from istmpi.comm import world
    from istmpi.comm.root import ask_root
    from istmpi.deploy.exits import score_exits

    communicator = world()
    # One process does it, however many were started.
    outcomes = ask_root(communicator, partial(score_exits, path, data, split, calibrate, model))
    if communicator.rank > 0:
        return
    if as_json:
        print_json([asdict(outcome) for outcome in outcomes])
        return
    columns = [f"leave at exit {place + 1}" for place in range(len(outcomes[0].shares))]
    shown = table("threshold", "accuracy", "FLOPs", *columns)
    for outcome in outcomes:
        shares = [f"{share:.0%}" for share in outcome.shares]
        cost = number(outcome.flops)
        shown.add_row(f"{outcome.threshold:g}", f"{outcome.accuracy:.4f}", cost, *shares)
    wide_console().print(shown)


def _explain_calibration(path: NetworkFile, calibrate: bool) -> str:
    """Return the reason of a calibration, as the end of a sentence."""
    # A user who asked for it needs no reason.
    if calibrate:
        return ""
    if path.subnet is not None:
        return f", because {path} has no calibration of this subnet"
    return f", because {path} was saved without calibration"


def _print(result: Evaluation, why: str, by_class: bool, as_json: bool) -> None:
    """Print the scores; ``why``: the reason for a calibration, as the end of a sentence."""
    if result.note:
        note(f"{result.note}.")
    if as_json:
        print_json(asdict(result))
        return
    if result.calibrated_now:
        say(f"calibrated on the training split of {result.source}{why}")
    score = result.score
    say(
        f"{result.score_name} {score.score:.4f}, loss {score.loss:.4f} "
        f"on {score.examples:,} {result.split} examples of {result.source}"
    )
    if score.more:
        say(", ".join(f"{name} {value:.4f}" for name, value in score.more.items()))
    if score.further:
        say(score.further.describe())
    if score.bits_per_byte:
        say(f"{score.bits_per_byte:.4f} bits a byte")
    for name, value in (score.by_output or {}).items():
        say(f"{name}: {result.score_name} {value:.4f}")
    if by_class:
        _print_classes(score.further)


SHOWN = 20
"""The most classes whose confusion is printed; --json has that of more."""


def _print_classes(further: Further | None) -> None:
    """Print the scores of each class, and how often each was taken for each."""
    if further is None or not further.classes:
        note("--by-class: there are no classes to list, or too many.")
        return
    scores = table("class", "examples", "recall", "precision", "F1")
    for place, name in enumerate(further.classes):
        columns = (further.recall, further.precision, further.f1)
        figures = [f"{column[place]:.4f}" for column in columns]
        scores.add_row(name, f"{further.examples[place]:,}", *figures)
    stdout = wide_console()
    stdout.print(scores)
    if len(further.classes) <= SHOWN:
        confusion = table("class", *(f"as {name}" for name in further.classes))
        for name, row in zip(further.classes, further.confusion, strict=True):
            confusion.add_row(name, *map(str, row))
        stdout.print(confusion)
