"""A user's own loop on a member of a replica group that does not lead, which takes a part of each
batch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from istmpi.comm import Communicator
from istmpi.comm.groups import End, Membership
from istmpi.config import Run
from istmpi.data.dataset import Dataset
from istmpi.engine.group_calls import Begin, Begun, NextRound, Outcome, Refresh, Restored, Step
from istmpi.evaluation.in_group import Load
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.program.arguments import in_python
from istmpi.program.passes import Passes, ScoreOf, choose_batches
from istmpi.program.protocols import Job
from istmpi.program.round import Round
from istmpi.training.hangs import watch_for_hangs
from istmpi.training.member import Member, MemberTraining


class MemberLoop(Member):
    """The rounds that a leader calls for, whose local steps the user's loop takes. Collective in
    the group."""

    method: MemberTraining
    folder: Path | None = None
    """The run's folder; None before the first round."""

    def __init__(
        self,
        run: Run,
        communicator: Communicator,
        data: Dataset,
        optimizer: OwnOptimizer | None,
        membership: Membership,
    ):
        super().__init__(run, communicator, data=data, membership=membership)
        self._hears = membership
        self.optimizer = optimizer

    def rounds(self, job: Job, signals: bool) -> Iterator[Round]:
        """Yield the rounds of a leader's loop. Raises the error with which it ends."""
        with in_python(), watch_for_hangs(self.run, self._hears.world):
            if signals:
                self._hears.listen()
            while True:
                call = self._hears.hear()
                if isinstance(call, End):
                    if call.error:
                        raise call.error
                    return
                if isinstance(call, Begun):
                    self._begin_anew(call)
                elif isinstance(call, Restored):
                    self.folder = call.folder
                    job.restore(call.states, call.kept)
                else:
                    yield from self._take_round(job, call)

    def help(self, score: ScoreOf, loader: Iterable[Any], same_loader: bool, call: Load) -> None:
        """Score a part of the leader's batches of a loader. Collective in the group."""
        scores = self.load(call)
        rank = 0
        ranks = 1
        if same_loader:
            rank = self.communicator.rank
            ranks = self.communicator.size
        passes = Passes(scores.module, score, self.device, self._ignore)
        place, places = choose_batches(rank, ranks, self.group)
        scores.send(passes.try_to_add_up(loader, place, places, self.method.seed))

    def _ignore(self, message: str) -> None:
        """Leave a note to the leader, which has like batches."""

    def _begin_anew(self, call: Begun) -> None:
        """Plan the rounds as the leader has planned them."""
        self.run = call.run
        self.most_examples = call.most_examples
        self._plan(self.dataset)

    def _take_round(self, job: Job, call: NextRound) -> Iterator[Round]:
        self.rounds_done = call.done
        run, _ = self._find_phase()
        # `phases` has one object for all rounds of a phase.
        if not hasattr(self, "method") or self.method.job.run is not run:
            self.method = self._make_training(call.done, side=0)
        self.method.planned_steps = call.steps
        round = Round(job, self)
        yield round
        round.finished()

    def attempt(self) -> Generator[int, None, bool]:
        """Yield the number of each local step of a round; return True if all ranks completed it."""
        training = self.method
        self.communicator.whereabouts.begin_round(self.rounds_done + 1)
        while True:
            call = self._hears.hear()
            if isinstance(call, End):
                assert call.error, "a round ends with an outcome, or an error"
                raise call.error
            if isinstance(call, Outcome):
                return call.committed
            if isinstance(call, Begin):
                training.begin(call)
            elif isinstance(call, Refresh):
                training.refresh(call)
            elif isinstance(call, Step):
                training.require_same_skips(call.skipped)
                training.hear(call)
                yield call.local_step
            else:
                training.require_same_skips(call.skipped)
                training.report()
