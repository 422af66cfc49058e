"""Prepares a run on every rank: makes its network and its method."""

from collections.abc import Collection, Mapping, Sequence

import torch

from istmpi.checkpoint.format import Header, require_storable
from istmpi.checkpoint.initial import begin_as_constructed
from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.state import collect_inputs, deployment_pieces, list_versions
from istmpi.checkpoint.streamed import Yields
from istmpi.comm import Communicator, find_members
from istmpi.comm.groups import Membership
from istmpi.comm.stopping import StopSign
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.data.dataset import Dataset
from istmpi.engine.slots import strip_slot
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.blocks import SIDE_BY_SIDE
from istmpi.evaluation.evaluator import Evaluator
from istmpi.evaluation.in_group import Helpers
from istmpi.methods import load_class
from istmpi.methods.base import Method
from istmpi.methods.job import Job
from istmpi.network.architecture import Architecture
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.training.interval import recall_interval, set_interval
from istmpi.training.opening import Opening
from istmpi.training.progress import Tally
from istmpi.training.same_data import summarise_data
from istmpi.training.setup import Setup
from istmpi.training.sizes import (
    Size,
    carry_store,
    describe_sizes,
    find_new_parameters,
)


class Prepared(Setup):
    """A run on every rank: its data, network, store, and the method of its next round. All methods
    are collective."""

    time_is_up = False
    told_to_end = False
    calibrated_after: int | None = None
    """The number of rounds done when the moments of batch normalisations were last computed."""
    _temperature = 1.0
    init: Yields | None = None
    """A function of the user's program that yields initial weights."""
    begun: Sequence[str] = ()
    """The report about initial weights that were loaded."""

    def __init__(
        self,
        run: Run,
        communicator: Communicator,
        stop: StopSign | None = None,
        start: Copy | None = None,
        data: Dataset | None = None,
        optimizer: OwnOptimizer | None = None,
        membership: Membership | None = None,
        opening: Opening | None = None,
    ):
        """Check everything on all ranks, and initialise the network.

        ``start``, ``data``, ``membership`` and ``opening`` are as for `Setup`. ``optimizer`` of a
        user's program replaces the run's. Raises ConfigError or DataError on every rank.
        """
        self.optimizer = optimizer
        super().__init__(run, communicator, start, data, membership, opening)
        self.hosts = [member.host for member in find_members(communicator)]
        self.stop = stop or StopSign(communicator)
        self.run = set_interval(
            self.run, self.architecture, self.dataset, communicator, self._every
        )
        self.method = self._make_method()
        self._make_evaluator()

    def _complete_plan(self) -> None:
        self.tally = Tally(self.communicator, self.clock)
        self.data_summary = summarise_data(self.run.data, self.sizes[0].dataset)
        self.score_name = self.dataset.scoring.score
        self._make_store()
        self._every = recall_interval(self.run, self.start)

    def begin_anew(self, run: Run, stop: StopSign, examples: int = 0) -> None:
        """Continue with other settings, such as the number of rounds or the folder. Collective,
        between two rounds.

        ``examples``: those of the rank that has most, if the run is measured in epochs.
        """
        self.stop = stop
        self.told_to_end = False
        with self.communicator.agreed():
            self.run = run.with_implied()
            self._count_epochs_of_program(examples)
            self._plan(self.dataset)
        self.method.publish()
        # Copies, because the next method's tensors may take the place of these.
        tensors = {name: values.clone() for name, values in self.method.of_this_rank().items()}
        self.method = self._make_method(restored=tensors)

    def _make_store(self) -> None:
        """Make this rank's part of the network, with its initial values."""
        run = self.run
        communicator = self.communicator
        network = self.architecture
        self.store = ParameterStore(
            network.parameters, network.lengths, communicator.size, communicator.rank
        )
        first_phase, _ = self.phases[0]
        self.store.scale = _scale_first(first_phase, network, communicator.size)
        if run.model.scale == "none":
            self.store.fitted = dict.fromkeys(self.store.scale, 1.0)
        # A setting or a name that HDF5 cannot store must not come up after hours of training.
        if communicator.rank == 0:
            pieces = deployment_pieces({}, {}, collect_inputs(self.dataset), 0)
            require_storable(self.header(), pieces)
        self.store.initialise(run.train.seed)
        names: Collection[str] = network.table.computed
        if run.model.init == "constructor":
            names = network.parameters
        begin_as_constructed(network, self.store, run.train.seed, names)

    def header(self, calibrated: bool = False) -> Header:
        """Return the header of a checkpoint; ``calibrated``: with the classifier's temperature."""
        counts = self.tally.counts
        temperature = 1.0
        if calibrated:
            temperature = self._temperature
        blocks = 0
        is_sum = find_method_spec(self.run.method.name).sums_outputs
        if is_sum or (self.calibrated and self.evaluator.form in SIDE_BY_SIDE):
            blocks = self.communicator.size
        most_examples: dict[int, int] = {}
        # One number alone follows from the data and the ranks of the file, but not for a program.
        if len(self.most_examples) > 1 or self.examples_of_program:
            most_examples = self.most_examples
        shares = self.shares.known(self.rounds_done)
        return Header(
            run=self.run,
            ranks=self.communicator.size,
            round=self.rounds_done,
            local_step=0,
            examples=counts.examples,
            seconds=counts.seconds,
            bytes=counts.bytes,
            loss=counts.loss,
            data=self.data_summary,
            scale=self.store.scale,
            versions=list_versions(),
            network=self.architecture.table.tree(),
            side=self.size.side,
            fitted=self.store.fitted,
            temperature=temperature,
            shares={first: tuple(of_round) for first, of_round in shares.items()},
            blocks=blocks,
            frozen=self.architecture.code.frozen_digest,
            state_since=self.state_since,
            most_examples=most_examples,
        )

    @property
    def calibrated(self) -> bool:
        return self.calibrated_after == self.rounds_done

    @property
    def sizes_in_words(self) -> str:
        return describe_sizes(self.run, self.course, self.sizes)

    def _take_size(self, size: Size, restored: Mapping[str, torch.Tensor]) -> None:
        # decision 34: what fits keeps its values.
        self.store = carry_store(self.store, size.architecture, self.run.train.seed)
        for name in self.architecture.code.given:
            size.architecture.give(name, self.architecture.frozen[name])
        self.size = size
        self.calibrated_after = None
        self.method = self._make_method(restored=restored)
        self._make_evaluator()

    def _make_evaluator(self) -> None:
        helpers = None
        if self.group:
            helpers = Helpers(self.group, self.size.side, self.device)
        self.evaluator = Evaluator(
            run=self.run,
            architecture=self.architecture,
            dataset=self.dataset,
            store=self.store,
            communicator=self.communicator,
            device=self.device,
            helpers=helpers,
        )

    def _grow_if_due(self) -> None:
        size = self.sizes[next(side for end, side in self._sides if self.rounds_done < end)]
        if size is self.size:
            return
        self.method.publish()
        store = self.store
        new = find_new_parameters(store.parameters, store.owners.lengths, size.architecture)
        tensors = {}
        for name, values in self.method.of_this_rank().items():
            if strip_slot(name) not in new:
                tensors[name] = values.clone()
        self._take_size(size, tensors)

    def _keep_slots(self, run: Run) -> None:
        kept = find_method_spec(run.method.name).slots(run)
        self.store.drop_slots(except_for=kept)
        self.store.add_slots(kept)

    def _make_method(
        self, before: Method | None = None, restored: Mapping[str, torch.Tensor] | None = None
    ) -> Method:
        """Return the next round's method, with its slots in the store; ``before`` if the method
        does not change."""
        run, since = self._find_phase()
        # `phases` has one object for all rounds of a phase.
        if before and before.job.run is run:
            return before
        if before:
            before.publish()
        # Restored values come with the slots that a checkpoint or a smaller size has filled.
        if restored is None:
            self._keep_slots(run)
        job = Job(
            run=run,
            course=self.course,
            architecture=self.architecture,
            task=self.task,
            store=self.store,
            batches=self.batches,
            communicator=self.communicator,
            device=self.device,
            clock=self.clock,
            stop=self.stop,
            group=self.group,
            side=self.size.side,
            state_since=since,
            shares=self.shares,
            optimizer=self.optimizer,
            restored=restored or {},
        )
        method = load_class(find_method_spec(run.method.name))
        return method(job)

    @property
    def makes_communicators(self) -> bool:
        return any(
            find_method_spec(phase.method.name).makes_communicators for phase, _ in self.phases
        )


def _scale_first(run: Run, network: Architecture, ranks: int) -> dict[str, float]:
    spec = find_method_spec(run.method.name)
    if spec.sums_outputs:
        # The subnets' outputs are added up: each unit counts once, with factor 1.
        return {}
    dealt = [group for group in spec.groups(run, network) if group in network.summed]
    return dict.fromkeys(dealt, 1 / spec.cut(run, ranks).parts)
