"""``istmpi train``: one run on all ranks of this job."""

from contextlib import nullcontext

import click

from istmpi.cli.following import logging, opened
from istmpi.cli.settings import resolve, settings
from istmpi.cli.walltime import deadline, walltime


@click.command("train")
@settings
@click.option("--sync-checkpoints", is_flag=True, help="Wait until a checkpoint is on the disk.")
@click.option(
    "--resume",
    default="",
    metavar="auto|PATH",
    help="Go on from a checkpoint, a run's folder, or this run's own folder.",
)
@walltime
@logging
@click.option("--profile", type=int, metavar="ROUND", help="Leave a trace of this round on all ranks in the folder.")
@click.option("--dry-run", is_flag=True, help="Print shapes, bytes, FLOPs and memory; train nothing.")
@click.option("--ranks", type=click.IntRange(min=1), metavar="P", help="Ranks to plan for, with --dry-run.")
def command(
    run: str,
    assignments: tuple[str, ...],
    sync_checkpoints: bool,
    resume: str,
    stop_before_walltime: float | None,
    log: tuple[str, ...],
    profile: int | None,
    dry_run: bool,
    ranks: int | None,
    **options: str | None,
) -> None:
    """Train RUN: a run file (TOML) or the name of a run that ships with istmpi (see: istmpi runs).

    \b
    mpirun -n 4 istmpi train
    mpirun -n 8 istmpi train speech --data speech.h5 --hidden 4096,4096 --lr 0.01
    mpirun -n 8 istmpi train speech --checkpoint-every 10 --resume auto
    mpirun -n 4 istmpi train --model mynet.py:Net --set model.channels=[64,128]

    SIGTERM, SIGUSR1, SIGUSR2, Ctrl-C or a file STOP in the run's folder save and stop it, exit code 75; --resume auto
    goes on from there, on any number of ranks.
    """
    if ranks is not None and not dry_run:
        raise click.UsageError("--ranks goes with --dry-run; to train on P ranks use mpirun -n P.")
    if sync_checkpoints:
        assignments = (*assignments, "checkpoint.wait=true")
    if dry_run:
        from istmpi.cli.plan import show

        show(resolve(run, assignments, options), ranks or 4)
        return

    from istmpi import comm

    communicator = comm.world()
    with communicator.agreed():
        resolved = resolve(run, assignments, options)
        stop_at = deadline(stop_before_walltime, communicator)
        loggers = opened(log, communicator)

    from istmpi.cli.progress import TrainingDisplay
    from istmpi.loggers.logged_watch import LoggedWatch
    from istmpi.training.run import run_training

    with TrainingDisplay() if communicator.rank == 0 else nullcontext() as display:
        watch = LoggedWatch(display, loggers) if display else None
        run_training(resolved, communicator, watch, resume, stop_at, signals=True, profile=profile)
    with communicator.agreed():
        if display:
            display.plots()
