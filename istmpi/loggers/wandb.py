"""Sends a run's records to Weights & Biases; the variables WANDB_* set the destination."""

import os

from istmpi.checkpoint.saver import Saver
from istmpi.errors import IstmpiError
from istmpi.loggers.logger import Logger, figures, list_settings
from istmpi.optional import optional
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.progress import Progress


class WeightsAndBiases(Logger):
    """The library's files are in the folder ``wandb`` of the run's folder.

    A resumed run continues the same log.
    """

    name = "wandb"

    def __init__(self) -> None:
        self._wandb = optional("wandb", "wandb", "runs with --log wandb", "wandb")

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        name = self._read_name(folder)
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "istmpi"),
            name=os.environ.get("WANDB_NAME", folder.path.name),
            id=name or None,
            resume="allow",
            dir=str(folder.path),
            config=list_settings(training),
            settings=self._wandb.Settings(console="off"),  # the terminal is the display's
        )
        # A resumed run finds its log by this name.
        self._write_name(folder, self._run.id)
        for metric in ("*", "phases/*", "by_rank/*"):
            self._run.define_metric(metric, step_metric="round")

    def progressed(self, progress: Progress) -> None:
        self._run.log({"round": progress.round, **figures(progress)})

    def closed(self, error: IstmpiError | None) -> None:
        exit_code = 0 if error is None else 1
        self._run.finish(exit_code=exit_code)
