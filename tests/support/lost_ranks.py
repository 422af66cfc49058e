"""Runs that lose ranks and go on (`comm.survive`), on simulated ranks; and naively what must be left of the network.

The oracle trains without a loss and takes down every rank's part after every local step. Of a run that lost a rank it
takes which local steps those left had done, and no more: the network must then be that of the beginning of the round,
with on top of it what those left have trained. Where of that round no copy of the lost rank's part has arrived yet, the
round before is dropped with it for what the lost rank alone had in both. From there on the run must end as one of the
ranks left that begins with this network. Of several lost ranks each is told of by its own copy.
"""

import hashlib
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from istmpi.checkpoint.folder import NETWORK
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm.simulated import KILLED, Faults, simulate
from istmpi.comm.stand_in import stand_in
from istmpi.comm.stopping import StopSign
from istmpi.engine.slots import weights_among
from istmpi.errors import SimulationError, StuckError
from istmpi.methods import spec_of
from istmpi.training import kept_run
from istmpi.training import run as running
from istmpi.training.loop import Training
from istmpi.training.progress import Counts
from istmpi.training.survival import go_on, protect

SET_UP, IN_TIME, LATE, BEFORE = "in set-up", "in a round", "with no copy of the round yet", "before a round"
TOGETHER, APART, UNNOTICED = "several together", "several, one after the other", "unnoticed"
RECOVERING = "a further one while the others recover"
SPLIT, TOO_MANY = "a split network", "too many"
"""What befell a job."""


@dataclass
class Round:
    """A round as one rank had it."""

    layout: object
    parameters: dict
    rows: dict
    trained: dict = field(default_factory=dict)
    """What the rank had, by local steps done."""


@dataclass
class Loss:
    """What one of those left had when ranks were lost, and what it went on with."""

    rank: int
    ranks: int
    steps: dict
    """Local steps done of each round it had begun, of those it still knows, and how many the round has."""
    copied: frozenset
    """Rounds of which the part of the rank before had arrived."""
    before: tuple
    left: tuple
    """All ranks before, and those with which it went on, as they were started."""
    rows: dict = field(default_factory=dict)
    position: tuple = ()
    """Where it went on, if it did before the next loss."""


class Notes(StopSign):
    """One rank's, which the training calls at every local step, and where it goes on without a rank."""

    def __init__(self, communicator):
        super().__init__(communicator)
        self.training = None
        self.rounds, self.losses = {}, []
        self.recovering, self.recovered = False, []
        """It recovers from a loss; at which of its calls of MPI it began to, and was through."""
        self.protected = self.recording = False
        """The run is set up; what it does is taken down."""

    def asked(self):
        self.take_down()
        return super().asked()

    def take_down(self):
        """Note what the rank has of the round under way."""
        survival = self.training and self.training.survival
        if self.recording and survival and survival.layers:
            layer, store = survival.layers[-1], survival.store
            values = layer.values
            begun = self.rounds.setdefault(
                layer.round,
                Round(values.layout, values.parameters, {name: t.clone() for name, t in store.tensors.items()}),
            )
            begun.trained[layer.local_steps] = {name: values.tensors[name].clone() for name in values.parameters}

    def renewed(self):
        old = self.training.survival
        steps = {layer.round: (layer.local_steps, layer.steps) for layer in old.layers}
        copied = frozenset(layer.round for layer in old.layers if layer.copy is not None)
        before = tuple(rank for rank, _ in self.training.members)
        self._had = Loss(old.rank, old.ranks, steps, copied, before, self.training.communicator.ranks)
        return super().renewed()

    def go_on(self, gossip, reasons):
        super().go_on(gossip, reasons)
        had, store = self._had, self.training.store
        had.rows = {name: tensor.clone() for name, tensor in store.tensors.items()}
        self.losses.append(had)


class Survived:
    """A run of so many ranks, with any of them lost at any call of MPI."""

    def __init__(self, run, ranks):
        self._run, self.ranks = run.override({"comm.survive": True, "checkpoint.writer": "direct"}), ranks
        self._spec = spec_of(run.method.name)
        self._known = {}
        self.seen = Counter()
        """How often what was lost when."""

    # ---- jobs

    def _job(self, ranks, faults, recording=False):
        """The outcome of a job in a folder, every rank's notes, and the digest of its network if it left one."""
        notes = {}

        def noted(training):
            mine = training.stop
            mine.training, mine.recording = training, recording
            protect(training)
            asks = training.method.asked_to_stop  # data parallel asks ahead of a step, and not before the last one

            def step(local_step):
                mine.take_down()
                return asks(local_step)

            training.method.asked_to_stop = step

        def program(communicator):
            mine = notes[communicator.rank] = Notes(communicator)
            return running.run_training(run, communicator, stop=mine)

        def out(carried, *arguments, **named):
            carried._training.stop.protected = True
            return carry_out(carried, *arguments, **named)

        def gone_on(training, *arguments):
            mine = training.stop
            mine.recovering, began = True, calls_of_mpi()
            lost = go_on(training, *arguments)
            mine.recovering = False
            mine.recovered.append((began, calls_of_mpi()))
            mine.losses[-1].position = training.rounds_done, training.local_step
            return lost

        carry_out = kept_run.KeptRun.out
        with (
            _folder(self._run) as run,
            patch.object(running, "protect", noted),
            patch.object(kept_run, "go_on", gone_on),
            patch.object(kept_run.KeptRun, "out", out),
        ):
            outcome = simulate(program, ranks, faults, survives=True)
            network = Path(run.output.folder) / NETWORK
            return outcome, notes, _digest_of(network) if network.is_file() else ""

    @cached_property
    def undisturbed(self):
        outcome, notes, network = self._job(self.ranks, Faults(), recording=True)
        outcome.require()
        return outcome, notes, network

    @property
    def calls(self):
        """How often each rank calls MPI."""
        return self.undisturbed[0].calls

    @cached_property
    def _rounds(self):
        """Each round: by rank."""
        notes = self.undisturbed[1]
        return {number: [notes[rank].rounds[number] for rank in range(self.ranks)] for number in notes[0].rounds}

    def _at_the_start(self, number):
        """The whole network as a round began: rows, and what some rank has of it."""
        rounds = self._rounds[number]
        parameters = rounds[0].parameters
        whole = {name: torch.cat([one.rows[name] for one in rounds]) for name in parameters}
        for rank in range(self.ranks):
            self._lay(whole, number, rank)
        return whole

    def _lay(self, whole, number, rank):
        """Lay on top of a network what a rank had as a round began."""
        one = self._rounds[number][rank]
        for name, of in one.parameters.items():
            whole[name][_places(one.layout, of, rank)] = one.trained[0][name]

    def _trained_by(self, whole, number, steps):
        """Lay on top of a network what ranks had after so many steps of a round, the mean where several had it."""
        rounds = self._rounds[number]
        shared = {}
        for name, of in rounds[0].parameters.items():
            total, count = torch.zeros_like(whole[name]), torch.zeros(whole[name].shape)
            for rank, done in steps.items():
                places = _places(rounds[rank].layout, of, rank)
                total[places] += rounds[rank].trained[done][name]
                count[places] += 1
            whole[name] = torch.where(count > 0, total / count.clamp(min=1), whole[name])
            shared[name] = count > 1
        return shared

    def _outer_step(self, whole, number):
        """Take the outer step that follows a round, Nesterov's, where the method has one."""
        lr, momentum = self._spec.outer(self._run)
        if (lr, momentum) == (1, 0):
            return
        start = self._at_the_start(number)
        for name in weights_among(whole):
            change, velocity = whole[name] - start[name], start[f"{name}/velocity"]
            whole[f"{name}/velocity"] = momentum * velocity + change
            whole[name] = start[name] + lr * (change + momentum * whole[f"{name}/velocity"])

    def _expected(self, losses):
        """The network after a first loss, where it has means, its position, and the case."""
        common = min(max(loss.steps, default=-1) for loss in losses)
        if common < 0 or not all(common in loss.steps for loss in losses):
            whole = self._at_the_start(0)
            return whole, {name: torch.zeros(of.shape, dtype=bool) for name, of in whole.items()}, (0, 0), BEFORE
        had = {loss.rank: loss for loss in losses}
        lost = set(range(self.ranks)) - had.keys()
        copied = [rank for rank in lost if common in getattr(had.get((rank + 1) % self.ranks), "copied", ())]
        in_time = len(copied) == len(lost)
        both = not in_time and all(common - 1 in loss.steps for loss in losses)
        whole = self._at_the_start(common - both)
        if both:
            self._trained_by(whole, common - 1, {rank: loss.steps[common - 1][0] for rank, loss in had.items()})
            for rank in copied:
                self._lay(whole, common, rank)
        steps = {rank: loss.steps[common][0] for rank, loss in had.items()}
        wanted = max(loss.steps[common][1] for loss in losses)
        done = max(steps.values())
        if self._spec.synchronous:  # who has missed a step has older weights of what all have
            steps = {rank: count for rank, count in steps.items() if count == done}
        shared = self._trained_by(whole, common, steps)
        if done >= wanted:
            self._outer_step(whole, common)
        position = (common + 1, 0) if done >= wanted else (common, done)
        return whole, shared, position, IN_TIME if in_time else LATE

    def recovery(self, kill, seed=None):
        """The calls of MPI with which each of those left recovers from a loss, as first and last."""
        _, notes, _ = self._job(self.ranks, Faults(seed, kills=[kill]))
        return {rank: of_rank.recovered[0] for rank, of_rank in notes.items() if of_rank.recovered}

    # ---- laws

    def finding(self, kills, seed=None, slow=(), splits=()):
        """What is wrong with a job that loses ranks, in words; empty where nothing is. ``slow``: ranks that are."""
        faults = Faults(seed, slow=dict.fromkeys(slow, 100.0), kills=kills, splits=splits)
        outcome, notes, network = self._job(self.ranks, faults)
        fewer = {rank for rank, error in enumerate(outcome.errors) if isinstance(error, StuckError)}
        lost = outcome.dead | fewer
        left = [rank for rank in range(self.ranks) if rank not in lost]
        if outcome.ended is not None:
            if not isinstance(outcome.ended, SimulationError) or outcome.ended.exit_code != KILLED:
                return f"{type(outcome.ended).__name__}: {outcome.ended}"
            if all(rank in notes and notes[rank].protected for rank in left):
                return f"protected, and yet {outcome.ended}"
            self.seen[SET_UP] += 1
            return ""
        if told := {str(error) for rank, error in enumerate(outcome.errors) if error and rank not in fewer}:
            return f"ended by {told}"
        for rank in sorted(fewer):
            training = notes[rank].training
            if _most(training.communicator.ranks, [one for one, _ in training.members]):
                return f"ended by {outcome.errors[rank]}"
        parts = {(loss.before, loss.left) for of_rank in notes.values() for loss in of_rank.losses}
        if len({before for before, _ in parts}) < len(parts) or not all(_most(left, before) for before, left in parts):
            return f"of these each went on: {parts}"
        self.seen[SPLIT] += any("broke" in fault for fault in outcome.happened)
        self.seen[TOO_MANY] += bool(fewer) and not left
        if not lost or not left:
            return "" if network in ("", self.undisturbed[2]) else "another network without a loss"
        losses = [notes[rank].losses for rank in left]
        if any(outcome.results[rank] is None for rank in left):
            return "a rank left without a word"
        positions = [[loss.position for loss in of_rank] for of_rank in losses]
        # Where a further rank was lost, one that had not heard of it follows what another one has decided.
        if len({*map(len, positions)}) > 1 or any(len({*each} - {()}) > 1 for each in zip(*positions)):
            return f"ranks go on from {positions}"
        if not losses[0]:
            self.seen[UNNOTICED] += 1  # behind the last meeting of all
            return "" if network == self.undisturbed[2] else "another network without a loss"
        self.seen[RECOVERING] += any(notes[rank].recovering for rank in outcome.dead)
        return self._first(notes, left, lost) or self._last([each[-1] for each in losses], outcome, lost, network)

    def _last(self, losses, outcome, lost, network):
        """What is wrong with what became of the network after the last loss."""
        told = {frozenset(loss.rank for loss in result.losses or ()) for result in outcome.results if result}
        if len(told) > 1 or not (noticed := next(iter(told))) or noticed - lost:
            return f"the summaries tell of {told}"
        if noticed != lost:
            self.seen[UNNOTICED] += 1  # what the other rows were it alone knew
            return ""
        whole = {name: torch.cat([loss.rows[name] for loss in losses]) for name in losses[0].rows}
        ended = self._goes_on(whole, losses[0].position, len(losses))
        return "" if network == ended else f"another end than from {losses[0].position}"

    def _first(self, notes, left, lost):
        """What is wrong with what the first loss left of the network, as far as all can be asked that met it."""
        if len(notes[left[0]].losses) > 1:
            self.seen[APART] += 1
            return ""
        losses = [notes[rank].losses[0] for rank in left]
        if any((rank + 1) % self.ranks in lost for rank in lost):
            self.seen[TOGETHER] += 1
            return ""
        whole, shared, position, case = self._expected(losses)
        self.seen[TOGETHER if len(lost) > 1 else case] += 1
        if position != losses[0].position:
            return f"the ranks go on from {losses[0].position}, not from {position}"
        got = {name: torch.cat([loss.rows[name] for loss in losses]) for name in losses[0].rows}
        for name, expected in whole.items():
            alone = ~shared[name]
            if not torch.equal(got[name][alone], expected[alone]):
                return f"{name} is not what is left, {case}, position {position}"
            if not torch.allclose(got[name], expected, rtol=1e-12, atol=1e-14):
                return f"{name} is not the mean of those left, {case}"
        if case in (IN_TIME, LATE) and not self._spec.synchronous:
            common = min(max(loss.steps) for loss in losses)
            steps = {loss.rank: loss.steps[common][0] for loss in losses}
            if len({*steps.values()}) > 1:
                return f"some of those left lost steps: {steps}"
        return ""

    def _goes_on(self, whole, position, ranks):
        """The digest of what fewer ranks train from a network and a position on."""
        rest = ranks, position, _digest({name: tensor.numpy().tobytes() for name, tensor in whole.items()})
        if rest not in self._known:

            def program(communicator):
                training = Training(self._run.override({"comm.survive": False}), communicator)
                store = training.store
                for name in whole:
                    if name not in store.tensors:
                        store.add_slots([name])
                for name, tensor in whole.items():
                    first = len(tensor) * communicator.rank // communicator.size
                    store.tensors[name].copy_(tensor[first : first + len(store.tensors[name])])
                training.go_on_from(Counts(*position, 0, 0.0, 0, 0.0))
                for _ in training.rounds():
                    pass
                training.method.publish()
                per_rank = communicator.allgather(
                    {name: store.tensors[name] for name in training.architecture.parameters}
                )
                return _digest(
                    {name: torch.cat([one[name] for one in per_rank]).numpy().tobytes() for name in per_rank[0]}
                )

            (self._known[rest],) = set(simulate(program, ranks).require())
        return self._known[rest]


def _most(left, before):
    """Whether nobody else of those before can be as many: they are more than half, or half with the first."""
    return len(left) > len(before) / 2 or (len(left) == len(before) / 2 and before[0] in left)


@contextmanager
def _folder(run):
    with tempfile.TemporaryDirectory(prefix="istmpi-lost-", ignore_cleanup_errors=True) as folder:
        yield run.override({"output.folder": str(Path(folder) / "run"), "checkpoint.every": 1})


def calls_of_mpi():
    """How often this rank has called MPI."""
    library = stand_in()
    return library._network.scheduler.tasks[library._rank].calls


def _places(layout, parameter, rank):
    axes = enumerate(parameter.pattern.axes)
    return tuple(
        torch.from_numpy(index)
        for index in np.ix_(*(np.asarray(layout.positions(axis, at, rank), int) for at, axis in axes))
    )


def _digest_of(network):
    with open_checkpoint(network) as checkpoint:
        return _digest({name: checkpoint.tensors[name].rows().tobytes() for name in checkpoint.architecture.parameters})


def _digest(tensors):
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name])
    return digest.hexdigest()[:16]
