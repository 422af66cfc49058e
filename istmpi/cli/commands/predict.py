"""``istmpi predict``: a trained network's answers for files, one line each."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from istmpi.cli.quantities import FiniteRange
from istmpi.comm import current_rank
from istmpi.data.dataset import SPLITS
from istmpi.foreign import one_line


@click.command("predict")
@click.argument("path", metavar="CKPT")
@click.argument("source", metavar="INPUT")
@click.option("--format", "form", type=click.Choice(("csv", "jsonl")), default="csv", show_default=True)
@click.option("--outputs", "all_outputs", is_flag=True, help="Also every output as it leaves the network.")
@click.option(
    "--exit-threshold",
    "threshold",
    type=FiniteRange(0, 1),
    metavar="T",
    help="Leave at the first exit whose normalised entropy is below T.",
)
@click.option("--out", metavar="FILE", help="Write there, complete or not at all.  [default: standard output]")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True, help="Of data with splits.")
@click.option("--label", metavar="COLUMN", help="csv: pass over this column, a name or a number from 0.")
@click.option("--resize", is_flag=True, help="images: resize their middle to the size of the training data.")
@click.option("--calibrate-on", metavar="DATA", help="For a CKPT without calibration: what it was trained on.")
@click.option("--model", metavar="FILE.py:Class", help="The class of a network of your own; its code is run.")
def command(
    path: str,
    source: str,
    form: str,
    all_outputs: bool,
    threshold: float | None,
    out: str | None,
    force: bool,
    split: str,
    label: str | None,
    resize: bool,
    calibrate_on: str | None,
    model: str | None,
) -> None:
    """Run the network in CKPT on the examples of INPUT; needs no MPI.

    \b
    INPUT is one of
      FILE.csv                   a row of numbers an example
      FILE.npy, FILE.npz         an array x [examples, ...]
      FILE.wav, FOLDER, .tar     for a network trained on speech
      FILE.png, FOLDER, .tar     for a network trained on images
      FILE.h5                    prepared data
      digits                     the data that come with istmpi

    Features are made as istmpi prepare made those of the training data. With --exit-threshold an example has the
    answer of the exit at which it leaves, and the number of this exit: 0 never leaves early, 1 always at the first.
    """
    if current_rank() > 0:
        return  # one process does it, however many were started

    from istmpi.checkpoint.reader import open_checkpoint
    from istmpi.data.inputs import read_inputs
    from istmpi.deploy.network import CalibratedNetwork
    from istmpi.deploy.output import appearing, require_free
    from istmpi.deploy.prediction import lines, predict

    if out:
        require_free(Path(out), force)
    with open_checkpoint(path) as checkpoint:
        network = CalibratedNetwork(checkpoint, calibrate_on, model)
        data, classes = checkpoint.header.data, checkpoint.classes
    if threshold is not None:
        network.require_early_exits()
    if network.note:
        click.echo(one_line(f"istmpi: {network.note}."), err=True)
    blocks = read_inputs(source, data.kind, data.shape, split=split, label=label, resize=resize, skipped=_tell_skipped)
    text = lines(predict(network, blocks, threshold), classes, data.outputs, all_outputs, form)
    if not out:
        _print(text)
        return
    with appearing(Path(out)) as file:
        for piece in text:
            file.write(piece.encode())


def _tell_skipped(name: str, reason: str) -> None:
    click.echo(one_line(f"istmpi: {name} is passed over: it cannot be read ({reason})."), err=True)


def _print(text: Iterable[str]) -> None:
    """To standard output; a reader that has seen enough, such as head, is no error."""
    try:
        for piece in text:
            sys.stdout.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
