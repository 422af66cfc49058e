"""Score a trained network on data."""

from dataclasses import asdict
from pathlib import Path

import click

from istmpi.cli.options import as_json, flag, own_class, text
from istmpi.cli.output import drawing, note, print_json, say
from istmpi.config.sections import Comm
from istmpi.data.dataset import SPLITS
from istmpi.errors import ConfigError
from istmpi.exits import nearly_free
from istmpi.foreign import printable
from istmpi.report.figures import require_drawable


@click.command("evaluate")
@click.argument("path", metavar="CKPT")
@text("--data", "FILE", "A prepared .h5, an .npz, or digits.  [default: the run's own]")
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True, help="The examples to score.")
@flag("--calibrate", "Calibrate on the data's training split, even if CKPT is calibrated.")
@own_class
@as_json
@text("--plot", "FILE", "Draw the effect of leaving early: .png, .svg or .pdf.")
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

    Each rank reads its rows of the weights; none has the network, unless it is one of your own. For a classifier with
    several exits it also says how accurate it is where examples leave early, at the first exit whose normalised
    entropy is below a threshold.
    """
    from istmpi.comm import HangWatch, world
    from istmpi.deploy.scoring import evaluate

    communicator = world()
    with communicator.agreed():
        if plot:
            require_drawable(Path(plot))
    watched = HangWatch(communicator, Comm().patience, Path(path).parent, note, cure="The same command evaluates anew.")
    with watched, communicator.whereabouts.enter("evaluate"):
        result = evaluate(path, communicator, data, split, calibrate, model)
    curve, score = result.early_exits, result.score
    with communicator.agreed():
        if plot and not curve:
            raise ConfigError(f"--plot {plot}: {path} has no classifier with several exits. Leave it out.")
    if communicator.rank > 0:
        return
    if result.note:
        note(f"{result.note}.")
    if plot:
        with drawing(plot):
            from istmpi.report.exit_plots import draw

            draw(curve, score.exits, f"{split} examples of {result.source}", Path(plot))
    if as_json:
        print_json(asdict(result))
        return
    if result.calibrated:
        why = "" if calibrate else f": {path} was saved without calibration"
        say(f"calibrated on the training split of {result.source}{why}")
    click.echo(
        f"{result.score_name} {score.score:.4f}, loss {score.loss:.4f} "
        f"on {score.examples:,} {split} examples of {printable(result.source)}"
    )
    if score.more:
        click.echo(", ".join(f"{name} {value:.4f}" for name, value in score.more.items()))
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
