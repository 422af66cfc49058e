"""Train a network on all ranks of an MPI job."""

import os
from contextlib import nullcontext
from pathlib import Path

import click

from istmpi.cli.options import MOST_RANKS, flag, text, whole
from istmpi.cli.run_options import (
    DEFAULT,
    Showing,
    add_watch_options,
    open_watches,
    options,
    resolve,
    run_and_folder,
    run_argument,
)
from istmpi.errors import DataError
from istmpi.names import is_own

ANSWERS = "predictions.csv"
"""The file of --predict in a run's folder."""


@click.command("train")
@run_argument
@options
@flag("--sync-checkpoints", "Wait until each checkpoint is on disk.")
@text(
    "--resume",
    "auto|PATH",
    "Resume from a checkpoint, a run's folder, or this run's folder (auto).",
    default="",
)
@text(
    "--predict",
    "INPUT",
    "Then run the network on the examples of INPUT, as istmpi predict does, and write "
    f"{ANSWERS} into the run's folder.",
)
@add_watch_options
@flag("--dry-run", "Print shapes, bytes, FLOPs and memory; train nothing.")
@whole(
    "--ranks",
    "P",
    "Number of ranks for --dry-run.  [default: the job's, or 4 without mpirun]",
    1,
    MOST_RANKS,
)
@text(
    "--cluster",
    "NAME|FILE",
    "Cluster for --dry-run, which predicts its seconds: a preset, or a file of istmpi measure.",
)
def command(
    run: str | None,
    assignments: tuple[str, ...],
    sync_checkpoints: bool,
    resume: str,
    predict: str | None,
    stop_before_walltime: float | None,
    log: tuple[str, ...],
    shown: Showing,
    dry_run: bool,
    ranks: int | None,
    cluster: str | None,
    **parameters: str | None,
) -> None:
    """Train RUN: a run file (TOML), a run that ships with istmpi (istmpi runs lists their names),
    or a run's folder.

    RUN is digits by default, or with --resume FOLDER the run of FOLDER. The run of a folder resumes
    where it was stopped. The defaults below are those of digits; istmpi settings lists the defaults
    of run files.

    \b
    mpirun -n 4 istmpi train
    mpirun -n 8 istmpi train speech --data speech.h5 --hidden 4096,4096 --lr 0.01
    mpirun -n 8 istmpi train speech --checkpoint-every 10 --resume auto
    mpirun -n 8 istmpi train runs/speech
    mpirun -n 4 istmpi train --model mynet.py:Net --set model.channels=[64,128]
    mpirun -n 2 istmpi train --data table.csv --predict new.csv

    SIGTERM, SIGUSR1, SIGUSR2, Ctrl-C or a file STOP in the run's folder save and stop the run with
    exit code 75. Continue on any number of ranks with --resume auto.

    \b
    unit        a neuron, a channel or an attention head, with its weights
    deal        the random choice of the units that each rank trains in a round
    unit group  units that are dealt out together, usually those of a layer
    subnet      the part of the network that a rank trains in a round
    local step  an optimizer step on one rank, without communication
    round       local steps of all ranks, and the exchange that follows
    owner       the rank that keeps a weight between rounds
    pull, push  owners send weights to ranks that train them, and get them back
    hop         a rank sends weights straight to the ranks that train them next
    redeal      the fraction of a unit group that changes rank in a round
    """
    if ranks is not None and not dry_run:
        raise click.UsageError("--ranks needs --dry-run; to train on P ranks use mpirun -n P.")
    if cluster is not None and not dry_run:
        raise click.UsageError("--cluster needs --dry-run.")
    if predict is not None and dry_run:
        raise click.UsageError("--predict does not go with --dry-run.")
    if sync_checkpoints:
        assignments = (*assignments, "checkpoint.wait=true")
    if dry_run:
        from istmpi.cli.plan import show

        show(resolve(run, assignments, parameters), ranks, cluster, shown.as_json)
        return

    shown.begins("trains")

    from istmpi import comm
    from istmpi.comm.members import agreed_with_members
    from istmpi.training.hangs import watch_for_hangs

    communicator = comm.world()
    with agreed_with_members(communicator):
        if predict not in (None, DEFAULT) and not Path(predict).exists():
            raise DataError(f"--predict {predict} does not exist.")
        run, resume, own_folder = run_and_folder(run, resume)
        # A resumed run stays in its folder.
        if not parameters["out"]:
            parameters["out"] = own_folder
        resolved = resolve(run, assignments, parameters)
        stop_at, loggers = open_watches(communicator, stop_before_walltime, log)
        if resolved.train.group_size != 1:
            # Or torch, once imported, warns of networks that use all of their parameters.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    # Imports may hang on a network's file system.
    with watch_for_hangs(resolved, communicator, cure=comm.WHILE_LOADING) as hang_watch:
        from istmpi.cli.display import TrainingDisplay
        from istmpi.loggers.logger import LoggedWatch
        from istmpi.training.run import run_training

        display = TrainingDisplay(shown) if communicator.rank == 0 else None
        with display or nullcontext():
            watch = LoggedWatch(display, loggers) if display else None
            run_training(
                resolved,
                communicator,
                watch,
                resume,
                stop_at,
                signals=True,
                hang_watch=hang_watch,
            )
    with communicator.agreed():
        if display:
            display.plots()
    # The other ranks have nothing to do.
    if predict is not None and display and display.ended:
        display.predicted(_predict(resolved.model.name, display.ended, predict))


def _predict(network: str, folder: Path, source: str) -> Path:
    """Write the answers of a trained network for ``source``, and return their file."""
    from istmpi.checkpoint.folder import NETWORK
    from istmpi.cli.commands.predict import predict_file

    answers = folder / ANSWERS
    # A resumed run answers anew.
    answers.unlink(missing_ok=True)
    model = network if is_own(network) else None
    predict_file(folder / NETWORK, source, answers, model)
    return answers
