"""A member of a replica group that does not lead: it takes the local steps that its leader calls
for, and owns nothing between rounds."""

from __future__ import annotations

from functools import partial
from typing import Any

from istmpi.comm import HangWatch
from istmpi.comm.groups import End, Membership, Start
from istmpi.config import Run
from istmpi.engine.group_calls import Begin, Collect, Refresh, Step
from istmpi.engine.replica_group import ReplicaGroup
from istmpi.errors import ConfigError, IstmpiError
from istmpi.evaluation.in_group import Load, MemberScores, Pass
from istmpi.methods.agreement import StepLosses
from istmpi.methods.job import LocalJob
from istmpi.methods.local_training import LocalTraining
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.training.hangs import watch_for_hangs
from istmpi.training.setup import Setup


class MemberTraining(LocalTraining):
    """The local steps of a member that does not lead."""

    planned_steps = 0
    """The number of local steps of this round of a user's own loop."""
    _rate = 0.0

    def hear(self, call: Step) -> None:
        """Take the learning rate of the next local step from the leader, and the options of a
        program's optimizer."""
        self._rate = call.rate
        if self.job.optimizer:
            self.job.optimizer.hear(call.options)

    def require_same_skips(self, skipped: int) -> None:
        """Raise ConfigError if the leader's loop has left out another number of this round's steps
        than that of this member."""
        if skipped != self.skipped:
            raise ConfigError(
                f"process {self._group.membership.world.rank} has called round.skip() "
                f"{self.skipped} times in this round, and the leader of its replica group "
                f"{skipped} times. Skip the same local steps in all processes."
            )

    def plan_options(self, step: int) -> list[dict[str, Any]]:
        # The leader plans them.
        return []

    def rate(self, step: int) -> float:
        return self._rate

    def steps(self, number: int) -> int:
        return self.planned_steps

    def begin(self, call: Begin) -> None:
        """Begin a round with the subnet and the values of the leader. Collective in the group."""
        subnet = self.subnet
        subnet.build(call.lengths, call.scale)
        if call.steps is not None:
            subnet.renew(call.steps)
        self._group.share(subnet.list_values(call.is_new, call.keeps_state))
        self._losses = StepLosses()
        self.skipped = 0

    @property
    def _group(self) -> ReplicaGroup:
        if self.job.group is None:
            raise AssertionError("a member has a group")
        return self.job.group

    def refresh(self, call: Refresh) -> None:
        """Take the leader's values of some weights."""
        self._group.share(self.subnet.tensors[name] for name in call.names)

    def report(self) -> None:
        """Send the leader this member's part of the losses of a round."""
        self._group.membership.collect(self._losses.values())


class Member(Setup):
    """A run on a process that serves the leader of its group."""

    optimizer: OwnOptimizer | None = None
    """The optimizer of a user's program."""

    _training: MemberTraining | None = None
    _made = -1
    """The number of methods that the leader had made before that of `_training`."""
    _scores: MemberScores | None = None
    _side = 0
    """The side of the images of `_scores`."""

    def serve(self, membership: Membership) -> End:
        """Do what the leader calls for, until it says that the run has ended."""
        while True:
            call = membership.hear()
            if isinstance(call, End):
                return call
            if isinstance(call, Begin):
                self._begin(call)
            elif isinstance(call, Load):
                self.load(call)
            elif isinstance(call, Pass):
                self._score(call)
            else:
                self._take_step(call)

    def _begin(self, call: Begin) -> None:
        if self._training is None or call.method != self._made:
            self._made = call.method
            self._training = self._make_training(call.number, call.side)
        self.communicator.whereabouts.begin_round(call.number + 1)
        self._training.begin(call)

    def _take_step(self, call: Refresh | Step | Collect) -> None:
        """Take a step, or do what belongs to a round's steps."""
        training = self._training
        assert training is not None, "a round begins before its steps"
        if isinstance(call, Refresh):
            training.refresh(call)
        elif isinstance(call, Step):
            self.communicator.whereabouts.step(call.local_step + 1)
            training.hear(call)
            with self.clock("compute"):
                training.take_step(call.number, call.rate)
        else:
            assert isinstance(call, Collect), call
            training.report()

    def load(self, call: Load) -> MemberScores:
        """Take the weights of the leader's full network. Collective in the group."""
        assert self.group is not None, "a member has a group"
        if self._scores is None or self._side != call.side:
            size = self.sizes[call.side]
            self._side = call.side
            self._scores = MemberScores(
                self.run.train,
                self.run.evaluate,
                size.architecture,
                size.dataset,
                self.group,
                self.device,
            )
        self._scores.load(call)
        return self._scores

    def _score(self, call: Pass) -> None:
        assert self._scores is not None, "weights come before a pass"
        with self.clock("evaluate"):
            self._scores.add_up(call)

    def _make_training(self, done: int, side: int) -> MemberTraining:
        """Return the local steps of the round after ``done`` rounds, on images of a ``side``."""
        self.rounds_done = done
        self.size = self.sizes[side]
        run, _ = self._find_phase()
        job = LocalJob(
            run=run,
            architecture=self.architecture,
            task=self.task,
            batches=self.batches,
            communicator=self.communicator,
            device=self.device,
            optimizer=self.optimizer,
            group=self.group,
        )
        return MemberTraining(job)


def serve_leader(
    run: Run, membership: Membership, signals: bool, hang_watch: HangWatch | None = None
) -> None:
    """Take part in a run as a member that does not lead. Raises the error of the run's end.

    ``hang_watch``: the watch of all processes that is open already.
    """
    with hang_watch or watch_for_hangs(run, membership.world) as hang_watch:
        if signals:
            membership.listen()
        end = _serve(run, membership, hang_watch)
        if end.error:
            raise end.error


def _serve(run: Run, membership: Membership, hang_watch: HangWatch) -> End:
    call = membership.hear()
    if isinstance(call, End):
        return call
    hang_watch.go_on()
    assert isinstance(call, Start), call
    set_up = partial(Member, run, membership.communicator, call.checkpoint)
    try:
        member = set_up(membership=membership)
    except IstmpiError as error:
        if not error.everywhere:
            raise
        # The leader has the same error, and says how the run ends.
        return membership.hear()
    try:
        return member.serve(membership)
    finally:
        member.close()
