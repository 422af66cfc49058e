"""``istmpi evaluate``: how well a trained network does on data, on any number of ranks."""

import click

from istmpi.data.dataset import SPLITS
from istmpi.foreign import one_line, printable


@click.command("evaluate")
@click.argument("path", metavar="CKPT")
@click.option("--data", metavar="FILE", help="A prepared .h5, an .npz, or digits.  [default: the run's own]")
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True, help="Which examples.")
@click.option("--calibrate", is_flag=True, help="Calibrate on the data's training split, whatever CKPT has.")
@click.option("--model", metavar="FILE.py:Class", help="The class of a network of your own; its code is run.")
def command(path: str, data: str | None, split: str, calibrate: bool, model: str | None) -> None:
    """Score the network in CKPT: its loss and its accuracy, or its mean absolute error, on a whole split.

    \b
    istmpi evaluate runs/digits/network.h5
    mpirun -n 4 istmpi evaluate runs/speech/network.h5 --data other.h5

    Each rank reads its rows of the weights; none has the network, unless it is one of your own.
    """
    from istmpi.comm import world
    from istmpi.deploy.scoring import evaluate

    communicator = world()
    result = evaluate(path, communicator, data, split, calibrate, model)
    if communicator.rank > 0:
        return
    score = result.score
    if result.note:
        click.echo(one_line(f"istmpi: {result.note}."), err=True)
    if result.calibrated:
        why = "" if calibrate else f": {path} was saved without calibration"
        click.echo(one_line(f"calibrated on the training split of {result.source}{why}"))
    click.echo(
        f"{result.score_name} {score.score:.4f}, loss {score.loss:.4f} "
        f"on {score.examples:,} {split} examples of {printable(result.source)}"
    )
