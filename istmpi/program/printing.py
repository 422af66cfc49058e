"""The lines that a user's program prints about its run."""

from math import isnan
from typing import Any

from istmpi.foreign import one_line
from istmpi.training.loop import Training
from istmpi.training.progress import Progress
from istmpi.training.watch import Summary, Watch
from istmpi.units import counted


class Printing(Watch):
    """A watch that prints messages, and a line after each tenth of the rounds and after each
    score."""

    def started(self, training: Training, folder: Any, saver: Any) -> None:
        run = training.run
        self._every = max(run.train.rounds // 10, 1)
        ranks = counted(training.communicator.size, "rank")
        self.noticed(f"{run.name} in {folder.path}, {run.method.name} on {ranks}")
        network = training.architecture
        dealt = training.method.spec.groups(run, network)
        if dealt:
            undealt = {name: "by default" for name in network.groups if name not in dealt}
            undealt.update(network.table.undealt)
            words = "dealt out: " + ", ".join(f"{name} ({network.lengths[name]})" for name in dealt)
            if undealt:
                whole = "; ".join(f"{name} ({reason})" for name, reason in undealt.items())
                words += f"; whole on every rank: {whole}"
            self.noticed(words)

    def progressed(self, progress: Progress) -> None:
        if progress.round % self._every == 0 or progress.score:
            # A loop that takes its steps by hand may not note a loss.
            loss = "no loss" if isnan(progress.loss) else f"loss {progress.loss:.4g}"
            self.noticed(f"round {progress.round}: {loss}{_scores(progress)}")

    def finished(self, summary: Summary) -> None:
        last = summary.last
        self.noticed(
            f"{last.round} rounds in {last.seconds:.0f} s, {last.bytes / 1e6:.3g} MB "
            f"sent{_scores(last)}"
        )

    def noticed(self, message: str) -> None:
        print(f"istmpi: {one_line(message)}", flush=True)


def _scores(progress: Progress) -> str:
    score = progress.score
    if not score:
        return ""
    values = {progress.score_name: score.score, **(score.more or {})}
    return "".join(f", {name} {value:.4g}" for name, value in values.items())
