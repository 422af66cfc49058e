"""Write a rank's subnet of a trained network as a network of its own."""

from pathlib import Path

import click

from istmpi.cli.options import calibrate_on, force, own_class, whole
from istmpi.cli.output import note, say
from istmpi.cli.quantities import MOST_RANKS
from istmpi.comm import current_rank


@click.command("extract")
@click.argument("path", metavar="CKPT")
@whole("--rank", "R", "The subnet of this rank.", 0, required=True)
@whole("--ranks", "P", "Number of ranks.  [default: those of CKPT]", 1, MOST_RANKS)
@click.option("-o", "--out", required=True, metavar="FILE.h5", help="The file to write.")
@force
@calibrate_on
@own_class
def command(
    path: str, rank: int, ranks: int | None, out: str, force: bool, calibrate_on: str | None, model: str | None
) -> None:
    """Write a rank's subnet of the network in CKPT, as dealt in the last round, as a network of its own; needs no MPI.

    \b
    istmpi extract runs/digits/network.h5 --rank 0 --ranks 2 -o half.h5
    istmpi evaluate half.h5

    It computes what the subnet computes in training. What is normalised over the batch is calibrated anew, on the data
    that CKPT was trained on.
    """
    if current_rank() > 0:
        return  # one process does it, however many were started

    from istmpi.deploy.extraction import extract

    subnet, warning = extract(path, Path(out), rank, ranks, calibrate_on, force, model)
    if warning:
        note(f"{warning}.")
    say(f"{out}: {subnet}")
