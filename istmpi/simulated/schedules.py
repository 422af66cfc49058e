"""A run on a simulated cluster: once, or under many schedules, with checks of the results.

In every order of messages and ranks, the run must end with the undisturbed run's weights, loss,
score and bytes. A job that lost a rank is resumed, and must reach the same weights and loss.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from istmpi.checkpoint.folder import NETWORK
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm import Communicator
from istmpi.comm.stopping import StopSign
from istmpi.config import Run
from istmpi.errors import ConfigError
from istmpi.foreign import one_line
from istmpi.simulated import DELAYS, KILLED, KILLS, KINDS, SLOW, STOPS, Faults, Outcome, simulate
from istmpi.training.loop import Training
from istmpi.training.run import run_training
from istmpi.training.watch import Summary, Watch


def simulate_training(
    run: Run, ranks: int, faults: Faults, watch: Watch | None = None, resume: str = ""
) -> Outcome:
    run = require_direct(run)

    def program(communicator: Communicator) -> Summary | None:
        return run_training(run, communicator, watch, resume)

    return simulate(program, ranks, faults)


def require_direct(run: Run) -> Run:
    """Return a run whose checkpoints need no MPI library; raise ConfigError if it asks for one."""
    if run.checkpoint.writer == "mpio":
        raise ConfigError(
            "checkpoint.writer = 'mpio' needs an MPI library, which simulated ranks lack. "
            "Use direct, which writes the same file."
        )
    return run.override({"checkpoint.writer": "direct"})


@dataclass(frozen=True)
class Reached:
    """The result of a run, which no schedule may change."""

    weights: str
    loss: float
    score: float
    bytes: int

    def differences(self, other: Reached, but: Sequence[str] = ()) -> str:
        """List in words how another result differs, apart from the values ``but``."""
        differences = []
        for name in ("weights", "loss", "score", "bytes"):
            expected = getattr(self, name)
            value = getattr(other, name)
            if name not in but and value != expected:
                differences.append(f"{name} {value}, not {expected}")
        return ", ".join(differences)


def train(run: Run, communicator: Communicator) -> Reached:
    """Train a run without files, and return its result. Collective."""
    training = Training(run, communicator, StopSign(communicator))
    for progress in training.rounds():
        last = progress
    training.method.publish()
    rows = {}
    for name in training.architecture.parameters:
        tensor = training.store.tensors[name]
        # Viewed as bytes, because NumPy has no bfloat16.
        rows[name] = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    per_rank = communicator.gather_to_root(rows)
    whole = {}
    if per_rank:
        for name in rows:
            whole[name] = b"".join(rows_of_rank[name] for rows_of_rank in per_rank)
    weights = communicator.broadcast_from_root(_digest(whole))
    assert last.score is not None, "the last round is always evaluated"
    return Reached(weights, last.loss, last.score.score, last.bytes)


def _digest(tensors: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name])
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Schedule:
    seed: int
    faults: Faults
    outcomes: Sequence[Outcome]
    """The outcome of the job, and of the job that resumed it if a rank was killed."""
    finding: str

    @property
    def kinds(self) -> list[str]:
        """The kinds of faults that came about."""
        first = self.outcomes[0]
        kinds = [DELAYS]
        if any("stopped" in fault for fault in first.happened):
            kinds.append(STOPS)
        if self.faults.slow:
            kinds.append(SLOW)
        if first.dead:
            kinds.append(KILLS)
        return kinds


class Schedules:
    def __init__(self, run: Run, ranks: int, kinds: Sequence[str] = KINDS):
        if run.method.shares == "auto":
            raise ConfigError(
                "method.shares = 'auto' follows measured times, which schedules do not repeat. "
                "Give numbers, or leave shares out."
            )
        self._run = require_direct(run)
        self._ranks = ranks
        self._kinds = kinds

    @cached_property
    def _undisturbed(self) -> Outcome:
        outcome = self._simulate(self._train, Faults())
        outcome.require()
        return outcome

    @cached_property
    def calls(self) -> Sequence[int]:
        """The number of each rank's calls in an undisturbed run that writes its folder."""
        with _open_folder(self._run) as run:

            def program(communicator: Communicator) -> object:
                return run_training(run, communicator)

            return self._simulate(program, Faults()).calls

    @property
    def reached(self) -> Reached:
        return self._undisturbed.results[0]

    def _train(self, communicator: Communicator) -> Reached:
        return train(self._run, communicator)

    def _simulate(self, program: Callable[[Communicator], object], faults: Faults) -> Outcome:
        return simulate(program, self._ranks, faults)

    def run(self, seeds: Sequence[int]) -> Iterator[Schedule]:
        for seed in seeds:
            faults = Faults.draw(seed, self._ranks, self._kinds, self._undisturbed.calls)
            if faults.kills:
                # A run that writes its folder makes more calls, so the place is drawn among these.
                faults = Faults.draw(seed, self._ranks, self._kinds, self.calls)
                yield self.run_killed(seed, faults)
            else:
                outcome = self._simulate(self._train, faults)
                finding = _describe_error(outcome) or self._compare(outcome.results)
                yield Schedule(seed, faults, [outcome], finding)

    def _compare(self, results: Sequence[Reached], but: Sequence[str] = ()) -> str:
        """Return in words how results differ from the undisturbed run's; empty if they agree."""
        counts = Counter(self.reached.differences(reached, but) for reached in results)
        return "; ".join(f"{words} on {count} ranks" for words, count in counts.items() if words)

    def run_killed(self, seed: int, faults: Faults) -> Schedule:
        """Run a job in a folder until it loses a rank, and then the job that resumes it."""
        with _open_folder(self._run) as run:

            def program(communicator: Communicator) -> object:
                return run_training(run, communicator, resume="auto")

            first = self._simulate(program, faults)
            outcomes = [first]
            if first.dead:
                if getattr(first.ended, "exit_code", None) != KILLED:
                    unreported = f"ended without a report of {first.happened}"
                    finding = _describe_error(first) or unreported
                    return Schedule(seed, faults, outcomes, finding)
                # The job that resumes has delays of the same seed, but loses no rank.
                outcomes.append(self._simulate(program, Faults(seed)))
            finding = _describe_error(outcomes[-1]) or self._compare_folder(Path(run.output.folder))
            return Schedule(seed, faults, outcomes, finding)

    def _compare_folder(self, folder: Path) -> str:
        with open_checkpoint(folder / NETWORK) as checkpoint:
            tensors = {}
            for name in checkpoint.architecture.parameters:
                tensors[name] = checkpoint.tensors[name].rows().tobytes()
            # A file has no score and no bytes; they are not compared.
            reached = Reached(_digest(tensors), checkpoint.header.loss, score=0.0, bytes=0)
        return self._compare([reached], ("score", "bytes"))


def _describe_error(outcome: Outcome) -> str:
    """Return the words of a job's first error; empty if it ended without one."""
    if outcome.ended is not None:
        kind = type(outcome.ended).__name__
        if outcome.ended_by is not None:
            kind += f" on rank {outcome.ended_by}"
        return one_line(f"{kind}: {outcome.ended}")
    return ""


@contextmanager
def _open_folder(run: Run) -> Iterator[Run]:
    """Yield the run with a new folder and a checkpoint after each round; remove the folder."""
    # Errors of removal are ignored: a killed rank's thread may still hold a file open.
    with tempfile.TemporaryDirectory(
        prefix="istmpi-schedule-", ignore_cleanup_errors=True
    ) as folder:
        yield run.override({"output.folder": str(Path(folder) / "run"), "checkpoint.every": 1})
