"""Sets up a run on every process: checks everything, opens its data, builds its networks, chooses
its device."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.comm import Communicator, list_neighbours
from istmpi.comm.clock import Clock
from istmpi.comm.groups import Membership
from istmpi.config import Run
from istmpi.config.methods import find_method_spec
from istmpi.cost.messages import sends_long_messages
from istmpi.data.batches import Batches
from istmpi.data.dataset import Dataset
from istmpi.devices import choose_device, choose_threads, find_place
from istmpi.engine.replica_group import ReplicaGroup, join_group
from istmpi.errors import IstmpiError
from istmpi.evaluation.further import require_further
from istmpi.methods import limits
from istmpi.methods.group_limits import require_groups, require_no_groups
from istmpi.network.architecture import Architecture
from istmpi.tasks import Task, choose_task
from istmpi.training.columns import divide_columns
from istmpi.training.epochs import count_most_examples, recall_most_examples, with_rounds
from istmpi.training.opening import Opening
from istmpi.training.same_data import Outline, require_same_data, require_same_settings
from istmpi.training.share_log import choose_shares
from istmpi.training.sizes import Size, find_sides, make_sizes
from istmpi.training.targets import standardise


class Setup:
    """A run on every process of a job: its data, its networks without values, and its device."""

    rounds_done = 0
    most_examples: dict[int, int]
    """The training examples of the rank that has most, by the number of rounds done when it became
    so; empty while nothing is counted in epochs."""
    state_since = 0
    """The round since which optimizer state is kept at the earliest: that of the last resume that
    lost it."""
    examples_of_program = 0
    """The examples of the rank that has most, in a program's run that is measured in epochs."""
    _fault: IstmpiError | None = None
    """Why the checkpoint could not be read when epochs were counted."""
    group: ReplicaGroup | None = None
    """The replica group of this process, if it has several members."""

    def __init__(
        self,
        run: Run,
        communicator: Communicator,
        start: Copy | None = None,
        data: Dataset | None = None,
        membership: Membership | None = None,
        opening: Opening | None = None,
    ):
        """``start``: the checkpoint from which the run will `resume`, whose rounds count for its
        epochs. ``data`` of a user's program replace the run's. ``membership``: this process's place
        in a job of replica groups, whose ``communicator`` it is. ``opening``: the data, if they are
        open and described already. Raises ConfigError or DataError on every process.
        """
        self.run = run
        self.start = start
        self.communicator = communicator
        self.clock = Clock()
        # A rank that hangs is reported with its phase.
        self.clock.followers += [communicator.whereabouts.enter, communicator.ledger.follow]
        self._membership = membership
        telling: AbstractContextManager[None] = nullcontext()
        if membership:
            telling = membership.telling()
        with telling:
            data = self._open_data(data, opening)
            self._count_epochs(data, start)
            self.shares = choose_shares(self.run.method.shares, communicator)
            # Sizes share the standardised targets, which need a pass over all labels.
            data_of_all_sizes = standardise(self.run.data, data, communicator)
            self._prepare(data, data_of_all_sizes)
        if membership:
            self.group = join_group(membership, self.device)

    def _count_epochs_of_program(self, examples: int) -> None:
        """Compute the number of rounds of a program from `train.epochs`; ``examples``: those of the
        rank that has most, or 0 for a run in rounds."""
        self.examples_of_program = examples
        if not examples:
            self.most_examples = {}
            return
        if not self.most_examples:
            self.most_examples = {0: examples}
        elif self.most_examples[max(self.most_examples)] != examples:
            self.most_examples[self.rounds_done] = examples
        self.run = with_rounds(self.run, self.most_examples)

    def close(self) -> None:
        """Leave the replica group of a run, if there is one."""
        # A program may go on with further rounds.
        if self.group and self.dataset.network is None:
            self.group.close()
            self.group = None

    def _complete_plan(self) -> None:
        """Make what only a rank needs, such as its part of the network; nothing by default."""

    def _prepare(self, data: Dataset, data_of_all_sizes: Dataset) -> None:
        """Make the networks, plan the rounds, choose the device, and complete the plan."""
        communicator = self.communicator
        everyone = communicator
        if self._membership:
            everyone = self._membership.world
        place = find_place(everyone)

        def plan(sizes: dict[int, Size]) -> None:
            self.sizes = sizes
            self.size = next(iter(sizes.values()))
            self._plan(data)
            self.device = choose_device(self.run.train.device, place)
            self._complete_plan()

        course = self.run.course(self.most_examples)
        make_sizes(self.run, data_of_all_sizes, course, communicator, plan)
        self.threads = choose_threads(self.run.train.threads, everyone)
        several_hosts = len(list_neighbours(everyone)) < everyone.size
        communicator.in_pieces = self._sends_in_pieces(several_hosts)

    def _open_data(self, data: Dataset | None, opening: Opening | None) -> Dataset:
        """Check the settings, open the data unless ``data`` are given, and compare both with those
        of other ranks."""
        communicator = self.communicator
        if opening is None:
            opening = Opening(self.run, communicator.rank, data)
            with communicator.agreed() as agreement:
                agreement.value = opening.open()
            opening.by_rank = agreement.by_rank
        self.run = run = opening.run
        self.best = opening.best
        data = opening.data
        require_same_settings(run, [digest for digest, _ in opening.by_rank], communicator)
        outlines = [outline for _, outline in opening.by_rank]
        if run.data.columns:
            data = divide_columns(data, run.data, communicator)
            outlines = communicator.allgather(Outline.from_data(run.data, data))
        require_same_data(run.data.source, data, outlines, communicator)
        return data

    def _count_epochs(self, data: Dataset, start: Path | Copy | None) -> None:
        """Compute the number of rounds from `train.epochs`, after those of the checkpoint
        ``start``."""
        run = self.run
        self.most_examples = {}
        # decision 76: ranks may have another number of examples than before.
        examples = self.examples_of_program
        if data.network is not None:
            if not examples:
                return
        elif start is None and run.train.epochs is None:
            return
        else:
            examples = count_most_examples(run, data, self.communicator.size, self.communicator)
        self.most_examples[0] = examples
        # The rounds of a run without epochs do not depend on them: `_recall_examples` is enough.
        if start and not self._is_in_rounds(data):
            # All ranks have just read this file: a fault can wait for the agreement on the plan.
            try:
                with open_checkpoint(start) as checkpoint:
                    self.most_examples = recall_most_examples(checkpoint, run.data, data, examples)
            except IstmpiError as error:
                self._fault = error
        self.run = with_rounds(run, self.most_examples)

    def _is_in_rounds(self, data: Dataset) -> bool:
        return self.run.train.epochs is None and data.network is None

    def _recall_examples(self, checkpoint: Checkpoint, data: Dataset) -> None:
        """Take up the most examples of a run in rounds, which a later resume may count in epochs.
        ``data``: those of full size."""
        if self._is_in_rounds(data):
            examples = self.most_examples[max(self.most_examples)]
            self.most_examples = recall_most_examples(checkpoint, self.run.data, data, examples)

    def _plan(self, data: Dataset) -> None:
        """Plan the methods and image sizes of all rounds, and check that all can be trained."""
        if self._fault:
            raise self._fault
        run = self.run
        self.course = run.course(self.most_examples)
        self._sides = find_sides(run, data, self.course)
        phases = []
        for name, rounds in run.phases(self.course):
            phases.append((run.override({"method.name": name}), rounds))
        # A phase without a round is checked below, too.
        self.phases = [(phase, rounds) for phase, rounds in phases if rounds]
        """The run with the method of each phase, and the phase's number of rounds."""
        for size in self.sizes.values():
            for phase, _ in phases:
                self._require_usable(phase, size)

    def _require_usable(self, phase: Run, size: Size) -> None:
        limits.require_usable(
            self.run,
            phase,
            size.dataset,
            size.architecture,
            self.communicator.size,
            members=[self.communicator.rank],
            examples=[size.batches.examples],
            shares=self.shares.of(0),
            rounds=self.course.planned,
        )
        require_further(size.dataset, self.run.evaluate)
        if self._membership:
            members = self._membership.inside.size
            require_groups(phase.train, phase.method.name, size.architecture, members)
        else:
            require_no_groups(self.run.train.group_size)

    def _sends_in_pieces(self, several_hosts: bool) -> bool:
        exchange = self.run.comm.exchange
        ranks = self.communicator.size
        if exchange != "auto":
            return exchange == "pieces"
        return several_hosts and sends_long_messages(self.run, self.architecture, ranks)

    @property
    def architecture(self) -> Architecture:
        return self.size.architecture

    @property
    def dataset(self) -> Dataset:
        return self.size.dataset

    @property
    def task(self) -> type[Task]:
        return choose_task(self.dataset.scoring, self.run.train.multi_label_loss)

    @property
    def batches(self) -> Batches:
        return self.size.batches

    def _find_phase(self) -> tuple[Run, int]:
        """Return the run with the method of the current phase, and the round since which optimizer
        state is kept."""
        run = self.run
        begin = 0
        since = 0
        kept = True
        for phase, rounds in self.phases:
            if begin > self.rounds_done:
                break
            # The method of the phase before has no state that this one could take over.
            if not kept:
                since = begin
            run = phase
            spec = find_method_spec(run.method.name)
            of_ranks = spec.own_state or spec.own_slots(run)
            kept = bool(spec.optimizer_slots(run)) and not of_ranks
            begin += rounds
        return run, max(since, self.state_since)
