"""The lines that a user's program prints of its run."""

from typing import Any

from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import Summary, Watch


class Printing(Watch):
    """A watch that prints messages, and a line for ten rounds of a run."""

    def started(self, training: Training, folder: Any, saver: Any) -> None:
        self._every = max(training.run.train.rounds // 10, 1)
        self.noticed(
            f"{training.run.name} in {folder.path}, {training.communicator.size} ranks, {training.run.method.name}"
        )

    def progressed(self, progress: Progress) -> None:
        if progress.round % self._every == 0 or progress.score:
            self.noticed(f"round {progress.round}: loss {progress.loss:.4g}{_scores(progress)}")

    def finished(self, summary: Summary) -> None:
        last = summary.last
        self.noticed(f"{last.round} rounds in {last.seconds:.0f} s, {last.bytes / 1e6:.3g} MB sent{_scores(last)}")

    def noticed(self, message: str) -> None:
        print(f"istmpi: {message}", flush=True)


def _scores(progress: Progress) -> str:
    score = progress.score
    values = {progress.score_name: score.score, **(score.more or {})} if score else {}
    return "".join(f", {name} {value:.4g}" for name, value in values.items())
