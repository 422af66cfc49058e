"""Write a subnet of a trained network as a network of its own."""

from pathlib import Path

import click

from istmpi.cli.options import calibrate_on, force, own_class, real, whole
from istmpi.cli.output import note, say
from istmpi.cli.quantities import MOST_RANKS
from istmpi.comm import current_rank
from istmpi.foreign import printable
from istmpi.report.units import size


@click.command("extract")
@click.argument("path", metavar="CKPT")
@whole("--rank", "R", "The subnet of this rank.", 0)
@whole("--ranks", "P", "Number of ranks.  [default: those of CKPT]", 1, MOST_RANKS)
@whole("--round", "N", "Round of the deal, from 0.  [default: last]", 0)
@real("--share", "S", "Instead a share of each group's units, drawn at random: one at least.", 0, 1, above=True)
@whole("--seed", "N", "The seed of --share.  [default: 0]", 0)
@click.option("-o", "--out", required=True, metavar="FILE.h5", help="The file to write.")
@force
@calibrate_on
@own_class
def command(
    path: str,
    rank: int | None,
    ranks: int | None,
    round: int | None,
    share: float | None,
    seed: int | None,
    out: str,
    force: bool,
    calibrate_on: str | None,
    model: str | None,
) -> None:
    """Write a subnet of the network in CKPT as a network of its own; needs no MPI.

    \b
    istmpi extract runs/digits/network.h5 --rank 0 --ranks 2 -o half.h5
    istmpi extract runs/digits/network.h5 --share 0.5 --seed 1 -o half.h5
    istmpi evaluate half.h5

    It computes what the subnet computes in training. Every command takes it as any other network. What is normalised
    over the batch is calibrated anew, on the data that CKPT was trained on. Its run is written beside it:
    istmpi train half.toml --resume half.h5 --set train.rounds=N trains it on.
    """
    if current_rank() > 0:
        return  # one process does it, however many were started
    if (rank is None) == (share is None):
        raise click.UsageError("give --rank R, the subnet of a rank, or --share S, one drawn at random.")
    if share is not None and (ranks is not None or round is not None):
        raise click.UsageError("--ranks and --round go with --rank R.")
    if seed is not None and share is None:
        raise click.UsageError("--seed goes with --share S.")

    from istmpi.deploy.extraction import OfRank, Share, extract

    which = OfRank(rank, ranks, round) if share is None else Share(share, seed or 0)
    done = extract(path, Path(out), which, calibrate_on, force, model)
    if done.note:
        note(f"{done.note}.")
    units = ", ".join(f"{name} {count} of {length}" for name, (count, length) in done.units.items())
    say(f"{printable(str(done.path))}, {size(done.bytes)}: {done.subnet}, {units}")
    if done.calibrated_on:
        say(f"calibrated on the training split of {printable(done.calibrated_on)}")
    say(f"{printable(str(done.run))}: its run")
