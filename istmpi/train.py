"""A whole training run: check everything, train round by round, evaluate, and say what happened."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from istmpi.checkpoint import save
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.batches import Batches
from istmpi.data.dataset import Dataset
from istmpi.data.placement import place
from istmpi.data.sources import open_dataset
from istmpi.devices import choose_device, choose_threads
from istmpi.errors import ConfigError, DataError, DivergedError
from istmpi.evaluate import Evaluator, Score
from istmpi.methods import Job, method
from istmpi.models import architecture
from istmpi.models.losses import TASKS
from istmpi.partition import check
from istmpi.record import Clock, RunFolder
from istmpi.store import ParameterStore, with_slots

NETWORK = "network.h5"
"""The trained network in the run's folder."""


@dataclass(frozen=True)
class Progress:
    """What is known after a round; evaluations count neither in its seconds nor in its bytes."""

    round: int
    """Rounds done."""
    local_steps: int
    """Local steps done by each rank."""
    examples: int
    """Examples consumed by all ranks."""
    seconds: float
    bytes: int
    """Bytes that all ranks handed to MPI."""
    loss: float
    """Mean training loss of the round over ranks and local steps."""
    score: Score | None = None
    """The full network's on the test split, where it was evaluated."""


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    folder: Path
    ranks: int
    score_name: str
    last: Progress
    """After the last round, with its score."""
    seconds: dict[str, float]
    """Where the time went: by phase, the mean over ranks."""

    @property
    def examples_per_second(self) -> float:
        """Consumed by all ranks, evaluations left out."""
        return self.last.examples / self.last.seconds


class Watch:
    """Looks on from rank 0 while a run is carried out; override what is of interest."""

    def started(self, training: Training, folder: RunFolder) -> None:
        """Everything is checked and set up."""

    def progressed(self, progress: Progress) -> None:
        """A round is done."""

    def finished(self, summary: Summary) -> None:
        """The run is done."""


def carry_out(run: Run, communicator: Communicator, watch: Watch | None = None) -> Summary:
    """Train a run to its end; leave record and network in a new folder. Collective; ``watch`` counts on rank 0 alone.

    Raises, on every rank, ConfigError or DataError before anything is trained, DivergedError in between, with the last
    good network saved; OutputError when a result cannot be written.
    """
    training = Training(run, communicator)
    first = communicator.rank == 0
    watch = watch or Watch()
    with communicator.agreed():
        folder = RunFolder.create(run.output.folder, run.name) if first else None
    folder = communicator.from_first(folder)
    if first:
        folder.write("run.toml", run.override({"output.folder": str(folder.path)}).toml())
        watch.started(training, folder)
    network = folder.path / NETWORK
    try:
        for progress in training.rounds():
            if first:
                folder.append({key: value for key, value in asdict(progress).items() if value is not None})
                watch.progressed(progress)
    except DivergedError as error:
        training.save(network)
        error.args = (f"{error} They are in {network}.",)
        raise
    training.save(network)
    everyones = communicator.gather(dict(training.clock.seconds))
    phases = {phase: sum(seconds[phase] for seconds in everyones) / len(everyones) for phase in everyones[0]}
    summary = Summary(folder.path, communicator.size, training.score_name, progress, phases)
    if first:
        folder.write("summary.json", json.dumps(asdict(summary), default=str, indent=2) + "\n")
        watch.finished(summary)
    return summary


class Training:
    """A run that is set up on every rank; iterate over `rounds` to carry it out. Collective throughout."""

    def __init__(self, run: Run, communicator: Communicator):
        """Check everything that can be checked, on all ranks together, and initialise the network.

        Raises the same ConfigError or DataError on every rank.
        """
        self.communicator = communicator
        self.clock = Clock()
        with communicator.agreed():
            run = run.with_implied()
            self.dataset = open_dataset(run.data.source, communicator.rank)
            data = self.dataset
            self.architecture = architecture(data.features, data.outputs, data.task, run.model)
            kind = method(run.method.name)
            check(self.architecture.lengths, kind.groups(run, self.architecture), communicator.size, run.method.shares)
            self.batches = self._stream(run)
            slots = kind.slots(run)
        _same_everywhere(run, self.dataset, communicator)
        self.hosts = communicator.hosts()
        local = communicator.on_this_host()
        with communicator.agreed():
            self.device = choose_device(run.train.device, local)
        self.threads = choose_threads(run.train.threads, local)
        self.run = run
        self._rounds_done = 0
        self.score_name = TASKS[self.dataset.task].score
        parameters = with_slots(self.architecture.parameters, slots)
        self.store = ParameterStore(parameters, self.architecture.lengths, communicator.size, communicator.rank)
        self.store.initialise(run.train.seed)
        self.job = Job(
            run, self.architecture, self.dataset.task, self.store, self.batches, communicator, self.device, self.clock
        )
        self.method = kind(self.job)
        self.evaluator = Evaluator(run, self.architecture, self.dataset, self.store, communicator)

    def rounds(self) -> Iterator[Progress]:
        """Run the rounds one by one; DivergedError on every rank when the loss stops being finite."""
        run, ranks = self.run, self.communicator.size
        every = run.evaluate.every or max(run.train.rounds // 10, 1)
        sent, seconds = 0, 0.0
        for number in range(run.train.rounds):
            self.communicator.barrier()
            start, before = time.perf_counter(), self.communicator.traffic.bytes
            loss = self.method.run(number)
            seconds += time.perf_counter() - start
            sent += sum(self.communicator.gather(self.communicator.traffic.bytes - before))
            done = self._rounds_done = number + 1
            steps = done * run.method.local_steps
            progress = Progress(done, steps, steps * ranks * run.train.batch, seconds, sent, loss)
            if done % every == 0 or done == run.train.rounds:
                progress = replace(progress, score=self.evaluate())
            yield progress

    def evaluate(self) -> Score:
        """The full network's score on the test split."""
        with self.clock("evaluate"):
            return self.evaluator.score()

    def save(self, path: Path) -> None:
        """Write the network as it rests in the store, calibrated, into one file."""
        with self.clock("save"):
            self.evaluator.calibrate()
            save(path, self.run, self._rounds_done, self.store, self.evaluator.network.moments, self.communicator)

    def _stream(self, run: Run) -> Batches:
        """This rank's batches."""
        data, rank, ranks = run.data, self.communicator.rank, self.communicator.size
        train = self.dataset.train
        rows = place(data.placement, train.labels(), rank, ranks, run.train.seed, data.alpha)
        return Batches(train, rows, run.train.batch, run.train.seed, rank)


def _same_everywhere(run: Run, data: Dataset, communicator: Communicator) -> None:
    """Refuse ranks whose settings, or whose files' meaning, differ from rank 0's."""
    meaning = data.task, data.shape, data.outputs, data.classes
    first_run, first_meaning = communicator.from_first((run, meaning))
    with communicator.agreed():
        if differences := first_run.differences(run):
            raise ConfigError(
                f"the ranks have different settings ({'; '.join(differences)}; rank 0's first). Give all ranks "
                f"the same command line and run file."
            )
        if first_meaning != meaning:
            raise DataError(
                f"{data.source}: task, shape, outputs and classes are {meaning}, on rank 0 {first_meaning}. "
                f"All ranks' files must agree on them."
            )
