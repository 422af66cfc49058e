"""Sets up a run on every rank: checks everything, opens its data, makes its network and its
method."""

from collections.abc import Mapping
from pathlib import Path

import torch

from istmpi.checkpoint.format import require_storable
from istmpi.checkpoint.initial import begin_as_constructed
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.state import (
    deployment_pieces,
    inputs_of,
)
from istmpi.checkpoint.streamed import Yields
from istmpi.comm import Communicator
from istmpi.comm.clock import Clock
from istmpi.comm.stopping import StopSign
from istmpi.config import Run
from istmpi.config.methods import spec_of
from istmpi.data.batches import Batches
from istmpi.data.dataset import Dataset
from istmpi.data.moments import Moments
from istmpi.data.sources import open_for_training
from istmpi.devices import choose_device, choose_threads
from istmpi.engine.slots import parameter_of
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.evaluator import Evaluator
from istmpi.methods import limits, load_class
from istmpi.methods.base import Method
from istmpi.methods.job import Job
from istmpi.network.architecture import Architecture
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.tasks import task_of
from istmpi.training.best import Best
from istmpi.training.epochs import count_most_examples, recall_most_examples, with_rounds
from istmpi.training.progress import Tally
from istmpi.training.resolution import (
    Size,
    carried,
    plan_in_words,
    sides_of,
    sizes_of,
    starting_anew,
)
from istmpi.training.same_data import require_same_everywhere, summary
from istmpi.training.share_log import shares_of

ROWS = 2**16


class Prepared:
    """A run on every rank: its data, network, store, and the method of its next round. All methods
    are collective."""

    def __init__(
        self,
        run: Run,
        communicator: Communicator,
        stop: StopSign | None = None,
        data: Dataset | None = None,
        optimizer: OwnOptimizer | None = None,
        start: Path | None = None,
    ):
        """Check everything on all ranks, and initialise the network.

        ``data`` and ``optimizer`` of a user's program replace the run's. ``start``: the checkpoint
        from which the run will `resume`, whose rounds count for its epochs. Raises ConfigError or
        DataError on every rank.
        """
        self.optimizer = optimizer
        self.communicator = communicator
        self.clock = Clock()
        self.clock.followers.append(communicator.whereabouts.enter)
        with communicator.agreed():
            self.run = run = run.with_implied()
            communicator.in_pieces = run.comm.exchange == "pieces"
            data = data or open_for_training(run.data, communicator.rank, run.train.seed)
            self.best = Best.of(run, data)
        require_same_everywhere(run, data, communicator)
        self._count_epochs(data, start)
        run = self.run
        self.shares = shares_of(run, communicator)
        self.tally = Tally(communicator, self.clock)
        self.sizes = sizes_of(run, _standardised(run, data, communicator), communicator)
        self.size = next(iter(self.sizes.values()))
        with communicator.agreed():
            self._plan(data)
        self.hosts = communicator.hosts()
        with communicator.on_this_host() as local:
            with communicator.agreed():
                self.device = choose_device(run.train.device, local)
            self.threads = choose_threads(run.train.threads, local)
        self.time_is_up, self.told_to_end = False, False
        self.state_since = 0
        """The round since which optimizer state is kept at the earliest: that of the last resume
        that lost it."""
        self.data_summary = summary(run, self.sizes[0].dataset)
        self.stop = stop or StopSign(communicator)
        self.rounds_done = 0
        self.init: Yields | None = None
        """A function of the user's program that yields initial weights."""
        self.begun: list[str] = []
        """The report about initial weights that were loaded."""
        self._temperature = 1.0
        self.calibrated_after: int | None = None
        """The number of rounds done when the moments of batch normalisations were last computed."""
        self.score_name = self.dataset.scoring.score
        with communicator.agreed():
            network = self.architecture
            self.store = ParameterStore(
                network.parameters, network.lengths, communicator.size, communicator.rank
            )
            self.store.scale = _first_scale(self.phases[0][0], self.architecture, communicator.size)
            if run.model.scale == "none":
                self.store.fitted = dict.fromkeys(self.store.scale, 1.0)
            if communicator.rank == 0:
                require_storable(
                    self._header(), deployment_pieces({}, {}, inputs_of(self.dataset), 0)
                )
        self.store.initialise(run.train.seed)
        with communicator.agreed():
            names = (
                network.parameters if run.model.init == "constructor" else network.table.computed
            )
            begin_as_constructed(network, self.store, run.train.seed, names)
        self.method = self._next_method()
        self._make_evaluator()

    def begin_anew(self, run: Run, stop: StopSign) -> None:
        """Continue with other settings, such as the number of rounds or the folder. Collective,
        between two rounds."""
        self.stop, self.told_to_end = stop, False
        with self.communicator.agreed():
            self.run = run.with_implied()
            self._plan(self.dataset)
        self.method.publish()
        tensors = {name: values.clone() for name, values in self.method.of_this_rank().items()}
        self.method = self._next_method(restored=tensors)

    def _count_epochs(self, data: Dataset, start: Path | None) -> None:
        """Compute the number of rounds from `train.epochs`, after those of the checkpoint
        ``start``."""
        run = self.run
        self.most_examples: dict[int, int] = {}
        """The training examples of the rank that has most, by the number of rounds done when it
        became so; empty while nothing is counted in epochs."""
        of_a_program = data.network is not None
        if of_a_program or (start is None and run.train.epochs is None):
            return
        examples = count_most_examples(run, data, self.communicator.size, self.communicator)
        self.most_examples[0] = examples
        if start:
            with self.communicator.agreed(), open_checkpoint(start) as checkpoint:
                self.most_examples = recall_most_examples(checkpoint, run, data, examples)
        self.run = with_rounds(run, self.most_examples)

    def _plan(self, data: Dataset) -> None:
        run = self.run
        self.course = run.course(self.most_examples)
        self._sides = sides_of(run, data, self.course)
        rank, ranks = self.communicator.rank, self.communicator.size
        phases = []
        for name, rounds in run.phases(self.course):
            phases.append((run.override({"method.name": name}), rounds))
        self.phases = [(phase, rounds) for phase, rounds in phases if rounds]
        for size in self.sizes.values():
            data, network, examples = size.dataset, size.architecture, [size.batches.examples]
            for phase, _ in phases:
                limits.require_usable(
                    run,
                    phase,
                    data,
                    network,
                    ranks,
                    [rank],
                    examples,
                    shares=self.shares.of(0),
                    rounds=self.course.planned,
                )

    @property
    def calibrated(self) -> bool:
        return self.calibrated_after == self.rounds_done

    @property
    def architecture(self) -> Architecture:
        return self.size.architecture

    @property
    def dataset(self) -> Dataset:
        return self.size.dataset

    @property
    def batches(self) -> Batches:
        return self.size.batches

    @property
    def plan_of_sizes(self) -> str:
        return plan_in_words(self.run.sides(self.course), self._sides, self.sizes)

    def _take_size(self, size: Size, restored: Mapping[str, torch.Tensor]) -> None:
        self.store = carried(self.store, size.architecture, self.run.train.seed)
        for name in self.architecture.code.given:
            size.architecture.give(name, self.architecture.frozen[name])
        self.size, self.calibrated_after = size, None
        self.method = self._next_method(restored=restored)
        self._make_evaluator()

    def _make_evaluator(self) -> None:
        data, ranks = self.dataset, self.communicator
        self.evaluator = Evaluator(
            self.run, self.architecture, data, self.store, ranks, device=self.device
        )

    def _grow_if_due(self) -> None:
        size = self.sizes[next(side for end, side in self._sides if self.rounds_done < end)]
        if size is self.size:
            return
        self.method.publish()
        anew = starting_anew(self.store.parameters, self.store.owners.lengths, size.architecture)
        tensors = self.method.of_this_rank()
        tensors = {
            name: values.clone()
            for name, values in tensors.items()
            if parameter_of(name) not in anew
        }
        self._take_size(size, tensors)

    def _phase(self) -> tuple[Run, int]:
        """Return the run with the method of the current phase, and the round since which optimizer
        state is kept."""
        first, since, kept = 0, 0, True
        for phase, rounds in self.phases:
            if first <= self.rounds_done:
                run, since = phase, since if kept else first
                spec = spec_of(run.method.name)
                kept = bool(spec.optimizer_slots(run)) and not (
                    spec.own_state or spec.own_slots(run)
                )
            first += rounds
        return run, max(since, self.state_since)

    def _keep_slots(self, run: Run) -> None:
        kept = spec_of(run.method.name).slots(run)
        self.store.drop_slots(except_for=kept)
        self.store.add_slots(kept)

    def _next_method(
        self, before: Method | None = None, restored: Mapping[str, torch.Tensor] | None = None
    ) -> Method:
        """Return the next round's method, with its slots in the store; ``before`` if the method
        does not change."""
        run, since = self._phase()
        if before and before.job.run is run:
            return before
        if before:
            before.publish()
        if restored is None:
            self._keep_slots(run)
        job = Job(
            run=run,
            course=self.course,
            architecture=self.architecture,
            task=task_of(self.dataset.scoring, run.train.multi_label_loss),
            store=self.store,
            batches=self.batches,
            communicator=self.communicator,
            device=self.device,
            clock=self.clock,
            stop=self.stop,
            state_since=since,
            shares=self.shares,
            optimizer=self.optimizer,
            restored=restored or {},
        )
        method = load_class(spec_of(run.method.name))
        return method(job)

    @property
    def makes_communicators(self) -> bool:
        return any(spec_of(phase.method.name).makes_communicators for phase, _ in self.phases)


def _first_scale(run: Run, network: Architecture, ranks: int) -> dict[str, float]:
    spec = spec_of(run.method.name)
    dealt = [group for group in spec.groups(run, network) if group in network.summed]
    return dict.fromkeys(dealt, 1 / ranks)


def _standardised(run: Run, data: Dataset, communicator: Communicator) -> Dataset:
    """Return the data, with standardised targets if the run asks for standardisation. Collective.

    Mean and deviation are those of all ranks' training examples.
    """
    if not data.scoring.predicts_numbers or not run.data.standardise:
        return data
    labels, moments = data.train.labels(), Moments(data.outputs)
    for start in range(0, len(labels), ROWS):
        moments.add(labels[start : start + ROWS])
    if run.data.placement == "local":
        parts, moments = communicator.allgather(moments.parts), Moments(data.outputs)
        for count, mean, squares in parts:
            moments.merge(count, mean, squares)
    return data.standardised(moments.normalisation(data.outputs)[:2])
