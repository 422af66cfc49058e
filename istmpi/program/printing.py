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
        self._every = max(training.run.train.rounds // 10, 1)
        name, method, ranks = (
            training.run.name,
            training.run.method.name,
            training.communicator.size,
        )
        self.noticed(f"{name} in {folder.path}, {method} on {counted(ranks, 'rank')}")
        network = training.architecture
        dealt = training.method.spec.groups(training.run, network)
        if dealt:
            others = {
                group: "by default" for group in network.groups if group not in dealt
            } | network.table.undealt
            whole = "; ".join(f"{name} ({reason})" for name, reason in others.items())
            names = ", ".join(f"{name} ({network.lengths[name]})" for name in dealt)
            self.noticed(f"dealt out: {names}{'; whole on every rank: ' * bool(whole)}{whole}")

    def progressed(self, progress: Progress) -> None:
        if progress.round % self._every == 0 or progress.score:
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
    values = {progress.score_name: score.score, **(score.more or {})} if score else {}
    return "".join(f", {name} {value:.4g}" for name, value in values.items())
