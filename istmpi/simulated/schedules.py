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


def simulated_training(
    run: Run, ranks: int, faults: Faults, watch: Watch | None = None, resume: str = ""
) -> Outcome:
    run, watch = usable(run), watch or Watch()

    def program(communicator: Communicator) -> Summary | None:
        return run_training(run, communicator, watch, resume)

    return simulate(program, ranks, faults)


def usable(run: Run) -> Run:
    if run.checkpoint.writer == "mpio":
        raise ConfigError(
            "checkpoint.writer = 'mpio' needs an MPI library, which simulated ranks lack. Use direct, which "
            "writes the same file."
        )
    return run.override({"checkpoint.writer": "direct"})


@dataclass(frozen=True)
class Reached:
    weights: str
    loss: float
    score: float
    bytes: int

    def differences(self, other: Reached, but: Sequence[str] = ()) -> str:
        names = [name for name in ("weights", "loss", "score", "bytes") if name not in but]
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return ", ".join(
            f"{name} {value}, not {expected}"
            for name, expected, value in pairs
            if value != expected
        )


def trained(run: Run, communicator: Communicator) -> Reached:
    """Train a run without files, and return its result. Collective."""
    training = Training(run, communicator, StopSign(communicator))
    for progress in training.rounds():
        last = progress
    training.method.publish()
    parameters, tensors = training.architecture.parameters, training.store.tensors
    rows = {
        name: tensors[name].contiguous().view(torch.uint8).numpy().tobytes() for name in parameters
    }
    per_rank = communicator.gather_to_root(rows)
    whole = {name: b"".join(each[name] for each in per_rank) for name in rows} if per_rank else {}
    weights = communicator.broadcast_from_root(_digest(whole))
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
        first = self.outcomes[0]
        stopped = any("stopped" in fault for fault in first.happened)
        came = {DELAYS: True, STOPS: stopped, SLOW: bool(self.faults.slow), KILLS: bool(first.dead)}
        return [kind for kind, came_about in came.items() if came_about]


class Schedules:
    def __init__(self, run: Run, ranks: int, kinds: Sequence[str] = KINDS):
        if run.method.shares == "auto":
            raise ConfigError(
                "method.shares = 'auto' follows measured times, which schedules do not repeat. Give numbers, "
                "or leave shares out."
            )
        self._run, self._ranks, self._kinds = usable(run), ranks, kinds

    @cached_property
    def _undisturbed(self) -> Outcome:
        outcome = self._outcome(self._in_memory, Faults())
        outcome.require()
        return outcome

    @cached_property
    def calls(self) -> Sequence[int]:
        with _in_a_folder(self._run) as run:
            return self._outcome(
                lambda communicator: run_training(run, communicator), Faults()
            ).calls

    @property
    def reached(self) -> Reached:
        return self._undisturbed.results[0]

    def _in_memory(self, communicator: Communicator) -> Reached:
        return trained(self._run, communicator)

    def _outcome(self, program: Callable[[Communicator], object], faults: Faults) -> Outcome:
        return simulate(program, self._ranks, faults)

    def run(self, seeds: Sequence[int]) -> Iterator[Schedule]:
        for seed in seeds:
            faults = Faults.drawn(seed, self._ranks, self._kinds, self._undisturbed.calls)
            if faults.kills:
                yield self.killed(seed, Faults.drawn(seed, self._ranks, self._kinds, self.calls))
            else:
                outcome = self._outcome(self._in_memory, faults)
                yield Schedule(
                    seed, faults, [outcome], _wrong(outcome) or self._compared(outcome.results)
                )

    def _compared(self, results: Sequence[Reached], but: Sequence[str] = ()) -> str:
        counts = Counter(self.reached.differences(reached, but) for reached in results)
        return "; ".join(f"{words} on {count} ranks" for words, count in counts.items() if words)

    def killed(self, seed: int, faults: Faults) -> Schedule:
        """Run a job in a folder until it loses a rank, and then the job that resumes it."""
        with _in_a_folder(self._run) as run:

            def program(communicator: Communicator) -> object:
                return run_training(run, communicator, resume="auto")

            outcomes = [self._outcome(program, faults)]
            first = outcomes[0]
            if first.dead and getattr(first.ended, "exit_code", None) != KILLED:
                return Schedule(
                    seed,
                    faults,
                    outcomes,
                    _wrong(first) or f"ended without a report of {first.happened}",
                )
            if first.dead:
                outcomes.append(self._outcome(program, Faults(seed)))
            return Schedule(seed, faults, outcomes, _wrong(outcomes[-1]) or self._in_folder(run))

    def _in_folder(self, run: Run) -> str:
        with open_checkpoint(Path(run.output.folder) / NETWORK) as checkpoint:
            parameters = checkpoint.architecture.parameters
            tensors = {name: checkpoint.tensors[name].rows().tobytes() for name in parameters}
            reached = Reached(_digest(tensors), checkpoint.header.loss, 0.0, 0)
        return self._compared([reached], ("score", "bytes"))


def _wrong(outcome: Outcome) -> str:
    for error in (outcome.ended, *outcome.errors):
        if error is not None:
            where = getattr(error, "simulated_rank", None)
            return one_line(
                f"{type(error).__name__}{'' if where is None else f' on rank {where}'}: {error}"
            )
    return ""


@contextmanager
def _in_a_folder(run: Run) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(
        prefix="istmpi-schedule-", ignore_cleanup_errors=True
    ) as folder:
        yield run.override({"output.folder": str(Path(folder) / "run"), "checkpoint.every": 1})
