"""Training on every rank: check everything, train round by round, evaluate; its state can be saved and taken over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from istmpi.checkpoint.format import DataSummary, Header, Piece, require_storable
from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.checkpoint.state import (
    deployment_pieces,
    model_pieces,
    own_data_piece,
    partial_pieces,
    restore,
    versions,
)
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.data.batches import Batches
from istmpi.data.dataset import SPLITS, Dataset, Split
from istmpi.data.placement import place
from istmpi.data.sources import open_dataset
from istmpi.devices import choose_device, choose_threads
from istmpi.errors import ConfigError, DataError
from istmpi.evaluate import Evaluator, Score
from istmpi.methods import Job, Method, Partial, method
from istmpi.models.inferred import InferredNetwork
from istmpi.models.losses import TASKS
from istmpi.names import class_of
from istmpi.network import network_of
from istmpi.partition import blocks, check
from istmpi.record import Clock
from istmpi.stopping import StopSign
from istmpi.store import ParameterStore

MAY_CHANGE = ("data.source", "optimizer.lr", "optimizer.weight_decay", "train.rounds", "train.max_minutes")
"""Settings that a resumed run may have otherwise; the data may have moved, but not changed."""
WITHOUT_EFFECT = ("name", "train.threads", "train.device", "evaluate.", "checkpoint.", "output.")
"""Settings, or sections of them, that do not change what is learnt."""


@dataclass(frozen=True)
class Progress:
    """What is known after a round; evaluations count neither in its seconds nor in its bytes."""

    round: int
    """Rounds done."""
    local_steps: int
    """Local steps done by a rank that takes part in every round."""
    examples: int
    """Examples consumed by all ranks."""
    seconds: float
    bytes: int
    """Bytes that all ranks handed to MPI."""
    loss: float
    """Mean training loss of the round over ranks and local steps."""
    score: Score | None = None
    """The full network's on the test split, where it was evaluated."""


class Training:
    """A run that is set up on every rank; iterate over `rounds` to carry it out. Collective throughout."""

    def __init__(self, run: Run, communicator: Communicator, stop: StopSign | None = None):
        """Check everything that can be checked, on all ranks together, and initialise the network.

        Raises the same ConfigError or DataError on every rank.
        """
        self.communicator = communicator
        self.clock = Clock()
        with communicator.agreed():
            run = run.with_implied()
            self.dataset = open_dataset(run.data.source, communicator.rank)
            data = self.dataset
        _same_everywhere(run, data, communicator)
        self.architecture = network_of(run, data, communicator)
        with communicator.agreed():
            self.batches = self._stream(run)
            phases = [(run.override({"method.name": name}), rounds) for name, rounds in run.phases()]
            self.phases = [(phase, rounds) for phase, rounds in phases if rounds]
            for phase, _ in phases:
                name = phase.method.name
                kind = method(name, "method.name" if name == run.method.name else "method.finish")
                kind.check(phase, data.task, self.batches, self.architecture)
                groups = kind.groups(phase, self.architecture)
                check(self.architecture.lengths, groups, communicator.size, phase.method.shares)
                self.architecture.require_usable(self._subnet_lengths(groups, phase.method.shares))
        self.hosts = communicator.hosts()
        with communicator.on_this_host() as local:
            with communicator.agreed():
                self.device = choose_device(run.train.device, local)
            self.threads = choose_threads(run.train.threads, local)
        self.run = run
        self.time_is_up = False
        self._data_summary = self._summarise_data()
        self.stop = stop or StopSign(communicator)
        self.rounds_done = self.local_step = self._most_steps = self._examples = self._bytes = 0
        self._seconds = self._loss = 0.0
        self._begun = Partial()
        self._calibrated: tuple[int, int] | None = None
        self.score_name = TASKS[self.dataset.task].score
        with communicator.agreed():
            network = self.architecture
            self.store = ParameterStore(network.parameters, network.lengths, communicator.size, communicator.rank)
            self.store.scale = self._first_scale()
            if communicator.rank == 0:
                require_storable(self._header(), deployment_pieces({}, {}, self.dataset, 0))
        self.store.initialise(run.train.seed)
        self.method = self._next_method()
        self.evaluator = Evaluator(run, self.architecture, self.dataset, self.store, communicator)

    def _subnet_lengths(self, groups: tuple[str, ...], shares: Sequence[float] | None) -> dict[str, int]:
        """The lengths of this rank's subnet, the same in every deal of these groups."""
        full, ranks = self.architecture.lengths, self.communicator.size
        return full | {name: blocks(full[name], ranks, shares)[self.communicator.rank] for name in groups}

    def _first_scale(self) -> dict[str, float]:
        """By how much the full network multiplies each group's contributions: the share that a first subnet has of it.

        It stays with the weights from then on, whatever method goes on and on however many ranks.
        """
        first, _ = self.phases[0]
        dealt = method(first.method.name).groups(first, self.architecture)
        summed = {group for groups in self.architecture.sums.values() for group in groups}
        return {group: 1 / self.communicator.size for group in dealt if group in summed}

    def _next_method(self, before: Method | None = None) -> Method:
        """The method of the next round, and its slots in the store; ``before`` itself where it goes on."""
        first, since, kept = 0, 0, True
        for phase, rounds in self.phases:
            if first <= self.rounds_done:
                run, since = phase, since if kept else first
                kept = bool(method(run.method.name).optimizer_slots(run))
            first += rounds
        if before and before.job.run is run:
            return before
        if before:
            before.publish()
        kind = method(run.method.name)
        slots = kind.slots(run)
        self.store.drop_slots(except_for=slots)
        self.store.add_slots(slots)
        return kind(
            Job(
                run,
                self.architecture,
                self.dataset.task,
                self.store,
                self.batches,
                self.communicator,
                self.device,
                self.clock,
                self.stop,
                since,
            )
        )

    @property
    def makes_communicators(self) -> bool:
        """Whether any round makes MPI communicators of its own."""
        return any(method(phase.method.name).makes_communicators for phase, _ in self.phases)

    def rounds(self) -> Iterator[Progress]:
        """Run the rounds that are left, one by one; DivergedError on every rank when the loss stops being finite.

        When ``train.max_minutes`` are up the round under way is the last.

        Ends early when ``stop`` was asked, perhaps in the middle of a round: `state` then has what is done of it.
        """
        run = self.run
        every = run.evaluate.every or max(run.train.rounds // 10, 1)
        while not self.done and not self.stop.reason:
            if not self._run_round():
                return
            self._look_at_the_clock()
            due = self.rounds_done % every == 0 and not self.stop.reason
            yield self.progress(self.evaluate() if self.done or due else None)

    @property
    def done(self) -> bool:
        """No round is left, or no time for one."""
        return self.time_is_up or self.rounds_done >= self.run.train.rounds

    def _look_at_the_clock(self) -> None:
        """See whether the run's time is up; a round that has begun still has its time."""
        limit = 60 * self.run.train.max_minutes
        self.time_is_up = bool(limit) and not self.local_step and self._seconds >= limit

    def _run_round(self) -> bool:
        """Run one round, or what is left of it; False when it was stopped in the middle.

        It takes as long as on the slowest rank, from when all have come to it. What no phase of the clock has is
        `other`.
        """
        communicator, before = self.communicator, self._begun
        communicator.barrier()
        start, sent, examples = time.perf_counter(), communicator.traffic.bytes, self.method.examples
        with self.clock("other"):
            outcome = self.method.run(self.rounds_done, before)
            stopped = isinstance(outcome, Partial)
            report = self.method.examples - examples, outcome.local_steps if stopped else 0
            report += (self.method.steps(self.rounds_done),)
            if not stopped:
                self.rounds_done, self.local_step, self._begun, self._loss = self.rounds_done + 1, 0, Partial(), outcome
                self.method = self._next_method(self.method)
        took = time.perf_counter() - start
        everyones = communicator.gather((took, communicator.traffic.bytes - sent, *report))
        took, sent, examples, done, steps = zip(*everyones, strict=True)
        self._seconds += max(took)
        self._bytes += sum(sent)
        self._examples += sum(examples)
        self._most_steps = max(steps)
        if stopped and max(done):
            self.local_step, self._begun = max(done), outcome
        elif stopped:
            self.store.drop_slots(except_for=self.method.slots(self.method.job.run))
        return not stopped

    def progress(self, score: Score | None = None) -> Progress:
        """What is known after the last round."""
        steps = self.method.first_step(self.rounds_done)
        return Progress(self.rounds_done, steps, self._examples, self._seconds, self._bytes, self._loss, score)

    @property
    def position(self) -> str:
        """How far training got, in words."""
        inside = f" and {self.local_step} of {self._most_steps} local steps" * (self.local_step > 0)
        return f"after {self.rounds_done} of {self.run.train.rounds} rounds{inside}"

    def evaluate(self) -> Score:
        """The full network's score on the test split."""
        with self.clock("evaluate"):
            self.method.publish()
            self._calibrated = self.rounds_done, self.local_step
            return self.evaluator.score()

    @property
    def checkpoint_due(self) -> bool:
        """After this round; what is saved at the end of the run, or when it is stopped, is not counted."""
        every, done = self.run.checkpoint.every, self.rounds_done
        return bool(every) and done % every == 0 and not self.done and not self.stop.reason

    def state(self, calibrated: bool = False) -> tuple[Header, list[Piece]]:
        """Everything that training goes on from, this rank's part of it, perhaps ``calibrated``. Collective."""
        position = self.rounds_done, self.local_step
        self.method.publish()
        if calibrated and self._calibrated != position:
            self.evaluator.calibrate()
            self._calibrated = position
        moments = self.evaluator.network.moments if self._calibrated == position else {}
        norms, rank = self.architecture.batch_norms, self.communicator.rank
        pieces = [*model_pieces(self.store), *deployment_pieces(moments, norms, self.dataset, rank)]
        begun = self._begun if self.local_step else Partial(tensors=self.method.own())
        if self.local_step or begun.tensors:
            steps = self.communicator.maximum(self.method.steps(self.rounds_done))
            pieces += partial_pieces(begun, self.store, steps)
        if self.run.data.placement == "local":
            pieces.append(own_data_piece(_contents(self.dataset.train), self.store))
        return self._header(), pieces

    def _header(self) -> Header:
        return Header(
            self.run,
            self.communicator.size,
            self.rounds_done,
            self.local_step,
            self._examples,
            self._seconds,
            self._bytes,
            self._loss,
            self._data_summary,
            self.store.scale,
            versions(),
            self.architecture.table.tree() if isinstance(self.architecture, InferredNetwork) else {},
        )

    def resume(self, path: Path) -> list[str]:
        """Take over the state of a checkpoint that any number of ranks saved; returns settings that changed since.

        Raises ConfigError on every rank when it is the state of another run.
        """
        with self.communicator.agreed(), open_checkpoint(path) as checkpoint:
            header = checkpoint.header
            changes = self._changes(checkpoint)
            self.rounds_done, self.local_step = header.position
            self.method = self._next_method(self.method)
            self._begun = restore(checkpoint, self.store)
        self._examples, self._seconds, self._bytes = header.examples, header.seconds, header.bytes
        self._look_at_the_clock()
        self._loss = header.loss
        self._most_steps = self.communicator.maximum(self.method.steps(self.rounds_done))
        if header.ranks != self.communicator.size and self.local_step >= self._most_steps:
            # The fastest of those ranks was through: nothing is left of the round for these.
            self.rounds_done, self.local_step, self._begun = self.rounds_done + 1, 0, Partial()
            self.store.drop_slots(except_for=self.method.slots(self.method.job.run))
        return changes

    def _changes(self, checkpoint: Checkpoint) -> list[str]:
        """What may be different from a checkpoint's run and is; ConfigError where something else is, too."""
        header, changed, refused = checkpoint.header, [], []
        for setting, (saved, wanted) in header.run.differences(self.run).items():
            text = f"{setting} = {saved} there, {wanted} here"
            if setting in MAY_CHANGE or (setting == "model.name" and self._moved(checkpoint)):
                changed.append(text)
            elif not setting.startswith(WITHOUT_EFFECT):
                refused.append(text)
        for fact, saved in asdict(header.data).items():
            wanted = getattr(self._data_summary, fact)
            if saved not in (None, wanted) and fact != "source":
                refused.append(f"data: {fact} = {saved} there, {wanted} here")
        if isinstance(self.architecture, InferredNetwork) and isinstance(checkpoint.architecture, InferredNetwork):
            there, here = checkpoint.architecture.table, self.architecture.table
            if difference := there.difference(here):
                refused.append(f"network: {difference} (there, here)")
            elif there.source != here.source:
                changed.append(f"the source of {self.run.model.name}, whose parameters are as they were")
        if self.run.data.placement == "local" and header.ranks == self.communicator.size:
            saved, wanted = checkpoint.own_data(self.store.rank), _contents(self.dataset.train)
            if saved not in (None, wanted):
                refused.append(f"data: examples, labels and features = {saved} there, {wanted} here")
        if refused:
            raise ConfigError(
                f"{checkpoint.path} is of another run: {'; '.join(refused)}. Give the same settings, or a new --out."
            )
        return changed

    def _moved(self, checkpoint: Checkpoint) -> bool:
        """Whether the network is the checkpoint's own class, of the very same source, from wherever it is read."""
        there, here = checkpoint.architecture, self.architecture
        own = isinstance(there, InferredNetwork) and isinstance(here, InferredNetwork)
        return own and class_of(there.name) == class_of(here.name) and there.table.source == here.table.source

    def _summarise_data(self) -> DataSummary:
        data, own_files = self.dataset, self.run.data.placement == "local"
        contents = (0, 0, 0) if own_files else _contents(data.train)
        return DataSummary(self.run.data.source, data.kind, data.task, tuple(data.shape), data.outputs, *contents)

    @property
    def data_fingerprint(self) -> str:
        """What tells training data of the same name apart; empty where each rank has its own."""
        features, labels = self._data_summary.features, self._data_summary.labels
        return f"{features:08x}{labels:08x}" if features or labels else ""

    def _stream(self, run: Run) -> Batches:
        """This rank's batches."""
        data, rank, ranks = run.data, self.communicator.rank, self.communicator.size
        train = self.dataset.train
        rows = place(data.placement, train.labels(), rank, ranks, run.train.seed, data.alpha)
        return Batches(train, rows, run.train.batch, run.train.seed, rank)


def _same_everywhere(run: Run, data: Dataset, communicator: Communicator) -> None:
    """Refuse ranks whose settings, or whose files' meaning, differ from rank 0's; and other contents of one file."""
    meaning = data.task, data.shape, data.outputs, data.classes
    first_run, first_meaning = communicator.from_first((run, meaning))
    with communicator.agreed():
        if differences := first_run.differences(run):
            shown = "; ".join(f"{setting}: {theirs} or {mine}" for setting, (theirs, mine) in differences.items())
            raise ConfigError(
                f"the ranks have different settings ({shown}; rank 0's first). Give all ranks "
                f"the same command line and run file."
            )
        if first_meaning != meaning:
            raise DataError(
                f"{data.source}: task, shape, outputs and classes are {meaning}, on rank 0 {first_meaning}. "
                f"All ranks' files must agree on them."
            )
    if run.data.placement != "local":
        splits = communicator.gather({name: _contents(split) for name, split in data.splits.items()})
        with communicator.agreed():
            if differences := _differences(splits):
                raise DataError(
                    f"{run.data.source}: some ranks read another file of this name than rank 0: {differences}. Give "
                    f"all ranks the same one; with {{rank}} in its name each has its own."
                )


def _contents(split: Split) -> tuple[int, int, int]:
    """How many examples, and checksums of their labels and features: alike where the data are."""
    return len(split), split.labels_checksum, split.features_checksum


def _differences(everyones: list[dict[str, tuple[int, int, int]]]) -> str:
    """Which ranks' splits, by their `_contents`, differ from rank 0's in what; empty if none does."""
    found: dict[str, list[str]] = {}
    for rank, mine in enumerate(everyones):
        for split in SPLITS:
            here, first = (splits.get(split, (0, 0, 0)) for splits in (mine, everyones[0]))
            if here[0] != first[0]:
                found.setdefault(f"{here[0]} {split} examples, not {first[0]}", []).append(str(rank))
                continue
            for what, checksum, same in zip(("labels", "features"), here[1:], first[1:], strict=True):
                if checksum != same:
                    found.setdefault(f"other {split} {what}", []).append(str(rank))
    return "; ".join(
        f"{what} (rank {', '.join(ranks[:4])}{', ...' * (len(ranks) > 4)})" for what, ranks in found.items()
    )
