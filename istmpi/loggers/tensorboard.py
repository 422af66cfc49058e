"""Writes a run's records as TensorBoard events, in ``tensorboard`` in the run's folder."""

from istmpi.checkpoint.saver import Saver
from istmpi.errors import IstmpiError
from istmpi.loggers.logger import Logger, figures
from istmpi.optional import optional
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.progress import Progress


class TensorBoard(Logger):
    """A step is a round.

    TensorBoard drops the records of rounds that a later job of the run repeats.
    """

    name = "tensorboard"

    def __init__(self) -> None:
        self._module = optional(
            "torch.utils.tensorboard", "tensorboard", "runs with --log tensorboard", "tensorboard"
        )

    def started(self, training: Training, folder: RunFolder, saver: Saver) -> None:
        done = training.rounds_done
        path = str(folder.path / "tensorboard")
        self._writer = self._module.SummaryWriter(path, purge_step=done + 1)
        # A line that begins with four spaces is code in TensorBoard's Markdown.
        settings = "".join(f"    {line}\n" for line in training.run.toml().splitlines())
        self._writer.add_text("run.toml", settings, done)

    def progressed(self, progress: Progress) -> None:
        for name, value in figures(progress).items():
            self._writer.add_scalar(name, value, progress.round, walltime=progress.time)
        self._writer.flush()  # so that each round is visible when it is done

    def closed(self, error: IstmpiError | None) -> None:
        self._writer.close()
