"""``istmpi train``: one run on all ranks of this job."""

import click

from istmpi.cli.settings import resolve, settings


@click.command("train")
@settings
@click.option("--dry-run", is_flag=True, help="Print shapes, bytes, FLOPs and memory; train nothing.")
@click.option("--ranks", type=click.IntRange(min=1), metavar="P", help="Ranks to plan for, with --dry-run.")
def command(run: str, assignments: tuple[str, ...], dry_run: bool, ranks: int | None, **options: str | None) -> None:
    """Train RUN: a run file (TOML) or the name of a run that ships with istmpi (see: istmpi runs).

    \b
    mpirun -n 4 istmpi train
    mpirun -n 8 istmpi train speech --data speech.h5 --hidden 4096,4096 --lr 0.01
    """
    if ranks is not None and not dry_run:
        raise click.UsageError("--ranks goes with --dry-run; to train on P ranks use mpirun -n P.")
    if dry_run:
        from istmpi.cli.plan import show

        show(resolve(run, assignments, options), ranks or 4)
        return

    from istmpi import comm

    communicator = comm.world()
    with communicator.agreed():
        resolved = resolve(run, assignments, options)

    from istmpi.cli.progress import TrainingDisplay
    from istmpi.train import carry_out

    display = TrainingDisplay() if communicator.rank == 0 else None
    summary = carry_out(resolved, communicator, display)
    if display:
        display.plots(summary.folder)
