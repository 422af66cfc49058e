"""``istmpi evaluate``: how well a trained network does on data, on any number of ranks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from istmpi.config.sections import Comm
from istmpi.data.dataset import SPLITS
from istmpi.errors import ConfigError, OutputError
from istmpi.exits import nearly_free
from istmpi.foreign import one_line, printable
from istmpi.report.figures import require_drawable

if TYPE_CHECKING:
    from istmpi.deploy.scoring import Evaluation


@click.command("evaluate")
@click.argument("path", metavar="CKPT")
@click.option("--data", metavar="FILE", help="A prepared .h5, an .npz, or digits.  [default: the run's own]")
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True, help="Which examples.")
@click.option("--calibrate", is_flag=True, help="Calibrate on the data's training split, whatever CKPT has.")
@click.option("--model", metavar="FILE.py:Class", help="The class of a network of your own; its code is run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
@click.option("--plot", metavar="FILE", help="Draw what leaving early does: .png, .svg or .pdf.")
def command(
    path: str,
    data: str | None,
    split: str,
    calibrate: bool,
    model: str | None,
    as_json: bool,
    plot: str | None,
) -> None:
    """Score the network in CKPT: its loss and its accuracy, or its mean absolute error, on a whole split.

    \b
    istmpi evaluate runs/digits/network.h5
    mpirun -n 4 istmpi evaluate runs/speech/network.h5 --data other.h5

    Each rank reads its rows of the weights; none has the network, unless it is one of your own. Of a classifier with
    several exits it also says how accurate it is where examples leave early, at the first exit whose normalised
    entropy is below a threshold.
    """
    from istmpi.comm import HangWatch, world
    from istmpi.deploy.scoring import evaluate

    communicator = world()
    with communicator.agreed():
        if plot:
            require_drawable(Path(plot))
    watched = HangWatch(communicator, Comm().patience, Path(path).parent, cure="The same command evaluates anew.")
    with watched, communicator.whereabouts.enter("evaluate"):
        result = evaluate(path, communicator, data, split, calibrate, model)
    curve = result.early_exits
    with communicator.agreed():
        if plot and not curve:
            raise ConfigError(f"--plot {plot}: {path} has no classifier with several exits. Leave it out.")
    if communicator.rank > 0:
        return
    score = result.score
    if result.note:
        click.echo(one_line(f"istmpi: {result.note}."), err=True)
    if plot:
        _draw(result, Path(plot))
    if as_json:
        click.echo(json.dumps(asdict(result), indent=1))
        return
    if result.calibrated:
        why = "" if calibrate else f": {path} was saved without calibration"
        click.echo(one_line(f"calibrated on the training split of {result.source}{why}"))
    click.echo(
        f"{result.score_name} {score.score:.4f}, loss {score.loss:.4f} "
        f"on {score.examples:,} {split} examples of {printable(result.source)}"
    )
    if score.more:
        click.echo(", ".join(f"{name} {of:.4f}" for name, of in score.more.items()))
    if score.bits_per_byte:
        click.echo(f"{score.bits_per_byte:.4f} bits a byte")
    for number, of_exit in enumerate(score.exits or (), 1):
        click.echo(f"exit {number}: {result.score_name} {of_exit:.4f}")
    if curve:
        best = nearly_free(curve)
        click.echo("threshold  leave early  accuracy")
        for point in sorted({*curve[::10], best}, key=lambda point: point.threshold):
            mark = "  most early leavers for less than half a point" * (point == best)
            click.echo(f"{point.threshold:9.2f}  {point.early:11.1%}  {point.accuracy:8.4f}{mark}")


def _draw(result: Evaluation, path: Path) -> None:
    try:
        from istmpi.report.exit_plots import draw

        draw(result.early_exits, result.score.exits, f"{result.split} examples of {result.source}", path)
    except ImportError:
        raise OutputError("--plot needs matplotlib: pip install 'istmpi[plots]'.") from None
    click.echo(one_line(f"drawn: {path}"), err=True)
