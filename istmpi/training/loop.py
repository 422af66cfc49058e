"""Trains on every rank: checks everything, trains round by round, evaluates; its state can be saved and taken over."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import astuple, replace
from pathlib import Path

import torch

from istmpi.checkpoint.format import Header, Piece, require_storable
from istmpi.checkpoint.initial import begin_as_constructed
from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.checkpoint.state import (
    deployment_pieces,
    inputs_of,
    model_pieces,
    own_data_piece,
    own_pieces,
    restore,
    versions,
)
from istmpi.comm import Communicator
from istmpi.comm.clock import Clock
from istmpi.comm.stopping import StopSign
from istmpi.config import Run
from istmpi.data.batches import Batches
from istmpi.data.dataset import Dataset
from istmpi.data.sources import open_for_training
from istmpi.devices import choose_device, choose_threads
from istmpi.engine.axes import narrowed
from istmpi.engine.slots import parameter_of
from istmpi.engine.store import ParameterStore
from istmpi.errors import DataError, DivergedError
from istmpi.evaluation.evaluator import Evaluator, Score
from istmpi.exits import require_fitting
from istmpi.foreign import staying
from istmpi.methods import logit_adjustment, spec_of
from istmpi.methods.base import Method
from istmpi.methods.job import Job
from istmpi.methods.own_optimizer import OwnOptimizer
from istmpi.models.architecture import Architecture
from istmpi.tasks import task_of
from istmpi.training.best import Best
from istmpi.training.first_scale import first_scale
from istmpi.training.progress import Counts, Progress
from istmpi.training.resolution import Size, carried, plan_in_words, sides_of, sizes_of, starting_anew
from istmpi.training.resuming import Present, changes_since
from istmpi.training.same_data import contents, require_same_everywhere, summary
from istmpi.training.share_log import followed, require_fit, shares_of
from istmpi.training.tally import Tally
from istmpi.training.targets import standardised


class Training:
    """A run that is set up on every rank; iterate over `rounds` to carry it out. Collective throughout."""

    def __init__(
        self,
        run: Run,
        communicator: Communicator,
        stop: StopSign | None = None,
        data: Dataset | None = None,
        optimizer: OwnOptimizer | None = None,
    ):
        """Check everything that can be checked, on all ranks together, and initialise the network.

        ``data`` and ``optimizer``: those of a user's program, in place of the run's. Raises the same ConfigError or
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
        self.shares = shares_of(run, communicator)
        self.tally = Tally(communicator, self.clock)
        self.sizes = sizes_of(run, standardised(run, data, communicator), communicator)
        self.size = next(iter(self.sizes.values()))
        with communicator.agreed():
            self._sides = sides_of(run, data)
            phases = [(run.override({"method.name": name}), rounds) for name, rounds in run.phases()]
            self.phases = [(phase, rounds) for phase, rounds in phases if rounds]
            for size in self.sizes.values():
                require_fitting(run.train.exit_weights, size.architecture.exits, run.model.name)
                for phase, _ in phases:
                    self._check(phase, size)
        self.hosts = communicator.hosts()
        with communicator.on_this_host() as local:
            with communicator.agreed():
                self.device = choose_device(run.train.device, local)
            self.threads = choose_threads(run.train.threads, local)
        self.time_is_up = False
        self.data_summary = summary(run, self.sizes[0].dataset)
        self.stop = stop or StopSign(communicator)
        self.rounds_done = 0
        self._temperature = 1.0
        self._calibrated: int | None = None
        """The round after which moments were calibrated."""
        self.score_name = self.dataset.scoring.score
        with communicator.agreed():
            network = self.architecture
            self.store = ParameterStore(network.parameters, network.lengths, communicator.size, communicator.rank)
            self.store.scale = first_scale(self.phases[0][0], self.architecture, communicator.size)
            if run.model.scale == "none":
                self.store.fitted = dict.fromkeys(self.store.scale, 1.0)
            if communicator.rank == 0:
                require_storable(self._header(), deployment_pieces({}, {}, inputs_of(self.dataset), 0))
        self.store.initialise(run.train.seed)
        with communicator.agreed():
            names = network.parameters if run.model.init == "constructor" else network.table.computed
            begin_as_constructed(network, self.store, run.train.seed, names)
        self.method = self._next_method()
        self.evaluator = Evaluator(run, self.architecture, self.dataset, self.store, communicator)

    def begin_anew(self, run: Run, stop: StopSign) -> None:
        """Go on with other settings of a program: the number of rounds, the folder. Collective, between two rounds."""
        self.stop = stop
        with self.communicator.agreed():
            self.run = run = run.with_implied()
            self._sides = sides_of(run, self.dataset)
            self.phases = [(run.override({"method.name": name}), rounds) for name, rounds in run.phases() if rounds]
            for phase, _ in self.phases:
                self._check(phase, self.size)
        self.method.publish()
        tensors = {name: values.clone() for name, values in self.method.of_this_rank().items()}
        self.method = self._next_method(restored=tensors)

    @property
    def calibrated(self) -> bool:
        """True if the moments of the full network are those after the last round."""
        return self._calibrated == self.rounds_done

    def note_calibration(self) -> None:
        """Take note that the full network's moments are those after the last round."""
        self._calibrated = self.rounds_done

    def _check(self, run: Run, size: Size) -> None:
        """Refuse, with a ConfigError, a method of the run that cannot train at a size."""
        name, network = run.method.name, size.architecture
        spec = spec_of(name, "method.name =" if name == self.run.method.name else "method.finish =")
        spec.require_wire(run)
        spec.load().check(run, size.dataset.task, size.batches, network)
        logit_adjustment.require_usable(run.train.logit_adjustment, size.dataset.task, name)
        run.optimizer.require_usable(run.train.rounds * spec.steps(run, 1, size.batches.examples))
        spec.require_delay(run, network, self.communicator.size)
        spec.shares_by_ring(run, network, self.communicator.size)
        require_fit(self.shares, spec, run, network, first=name == self.run.method.name)
        first = spec.deal(run, network, self.communicator.size, 0, self.shares.of(0)).held(self.communicator.rank)
        network.require_usable(narrowed(network.lengths, network.parameters, first))

    @property
    def architecture(self) -> Architecture:
        """The network at the present size of images."""
        return self.size.architecture

    @property
    def dataset(self) -> Dataset:
        """The data at the present size of images."""
        return self.size.dataset

    @property
    def batches(self) -> Batches:
        """This rank's batches at the present size of images."""
        return self.size.batches

    @property
    def plan_of_sizes(self) -> str:
        """Say which rounds train on images of which side, and what starts anew in between."""
        return plan_in_words(self.run, self._sides, self.sizes)

    def _go_on_at(self, size: Size, restored: Mapping[str, torch.Tensor]) -> None:
        self.store = carried(self.store, size.architecture, self.run.train.seed)
        self.size, self._calibrated = size, None
        self.method = self._next_method(restored=restored)
        self.evaluator = Evaluator(self.run, size.architecture, size.dataset, self.store, self.communicator)

    def _have_the_right_size(self) -> None:
        """Change to the size of images on which the next round trains. Collective."""
        size = self.sizes[next(side for end, side in self._sides if self.rounds_done < end)]
        if size is self.size:
            return
        self.method.publish()
        anew = starting_anew(self.store.parameters, self.store.owners.lengths, size.architecture)
        tensors = self.method.of_this_rank()
        tensors = {name: values.clone() for name, values in tensors.items() if parameter_of(name) not in anew}
        self._go_on_at(size, tensors)

    def _phase(self) -> tuple[Run, int]:
        """Return the run with its present method, and the round since which optimizer state is kept."""
        first, since, kept = 0, 0, True
        for phase, rounds in self.phases:
            if first <= self.rounds_done:
                run, since = phase, since if kept else first
                kept = bool(spec_of(run.method.name).optimizer_slots(run))
            first += rounds
        return run, since

    def _keep_slots(self, run: Run) -> None:
        kept = spec_of(run.method.name).slots(run)
        self.store.drop_slots(except_for=kept)
        self.store.add_slots(kept)

    def _next_method(self, before: Method | None = None, restored: Mapping[str, torch.Tensor] | None = None) -> Method:
        """Return the method of the next round with its slots in the store; ``before`` itself where it stays."""
        run, since = self._phase()
        if before and before.job.run is run:
            return before
        if before:
            before.publish()
        if restored is None:
            self._keep_slots(run)
        job = Job(
            run,
            self.architecture,
            task_of(self.dataset.scoring, run.train.multi_label_loss),
            self.store,
            self.batches,
            self.communicator,
            self.device,
            self.clock,
            self.stop,
            since,
            self.shares,
            self.optimizer,
            restored or {},
        )
        return spec_of(run.method.name).load()(job)

    @property
    def makes_communicators(self) -> bool:
        """Say whether any round makes MPI communicators of its own."""
        return any(spec_of(phase.method.name).makes_communicators for phase, _ in self.phases)

    def rounds(self) -> Iterator[Progress]:
        """Run the rounds that are left, one by one; DivergedError on every rank when the loss stops being finite.

        The round in which ``train.max_minutes`` are up is the last.

        A stop that was asked for ends training early; the present round is finished or dropped.
        """
        run = self.run
        every = run.evaluate.rounds_between(run.train.rounds)
        with staying():
            while not (self.done or self.stop.reason):
                if not self._run_round():
                    return
                due = self.done or (self.rounds_done % every == 0 and not self.stop.reason)
                validation = self._validate() if due and self.best else None
                yield self.progress(self.evaluate() if self.done or (due and not self.best) else None, validation)

    @property
    def done(self) -> bool:
        """True once there is no further round, no time or no reason for one."""
        return bool(self.ended)

    @property
    def ended(self) -> str:
        """The reason why there is no further round; empty as long as there is one."""
        if self.rounds_done >= self.run.train.rounds:
            return f"all {self.run.train.rounds} rounds are done"
        if self.time_is_up:
            return f"train.max_minutes = {self.run.train.max_minutes:g} are over"
        if self.best and self.best.exhausted:
            return self.best.told(self.score_name)
        return ""

    def _look_at_the_clock(self) -> None:
        limit = 60 * self.run.train.max_minutes
        self.time_is_up = bool(limit) and self.tally.counts.seconds >= limit

    def attempt(self) -> Generator[int, None, bool]:
        """Run a round; yield the number of each local step, which the caller takes. Return False when it was dropped.

        Time outside the clock's phases is `other`.
        """
        self._have_the_right_size()
        method, number = self.method, self.rounds_done
        self.communicator.whereabouts.begin_round(number + 1)
        examples = method.examples
        self.tally.begin(examples)
        with self.clock("other"):
            loss = yield from method.attempt(number)
            if loss is None:
                return False
            self.rounds_done = number + 1
            self.method = self._next_method(method)
        last = self.tally.end(method.examples - examples)
        last = followed(self.shares, method, number, last)
        self.tally.count(last, self.rounds_done, loss)
        self._look_at_the_clock()
        return True

    def _run_round(self) -> bool:
        number, steps = self.rounds_done, self.attempt()
        while True:
            try:
                local_step = next(steps)
            except StopIteration as end:
                return end.value
            self.method.take(number, local_step)

    def progress(self, score: Score | None = None, validation: Score | None = None) -> Progress:
        """Return the state of the run after the last round."""
        done = self.method.first_step(self.rounds_done)
        rate = self.method.rate(max(done - 1, 0))
        tally, counts = self.tally, self.tally.counts
        last = tally.last_round and tally.last_round.followed_by(tally.since_the_round("evaluate"))
        facts = self.rounds_done, done, counts.examples, counts.seconds, counts.bytes, counts.loss, rate
        facts = *facts, score, self.score_name, self.communicator.size, last
        more = {"validation": validation, "slowest": tally.pace.slowest(self.hosts)}
        spent = self.clock.seconds
        return Progress(*facts, **more, evaluating=spent["evaluate"] / (sum(spent.values()) or 1.0))

    @property
    def position(self) -> str:
        """Say how far training got."""
        return f"after {self.rounds_done} of {self.run.train.rounds} rounds"

    def evaluate(self, split: str = "test") -> Score:
        """Return the full network's score on a split."""
        with self.clock("evaluate"):
            self.method.publish()
            self._calibrated = self.rounds_done
            self._fit_scale()
            try:
                return self.evaluator.score(split)
            except DivergedError as error:
                error.args = (f"{error} {self.position}; its weights are kept. Lower optimizer.lr.",)
                raise

    def _validate(self) -> Score:
        score = self.evaluate("validation")
        self.best.take(self.rounds_done, self.communicator.broadcast_from_root(score.score))
        return score

    def _fit_scale(self) -> None:
        if self.run.model.scale == "fitted" and self.store.scale and self.method.spec.deals:
            self.store.fitted = self.evaluator.fitted_scale()

    @property
    def checkpoint_due(self) -> bool:
        """True if a checkpoint is due after this round, not counting those at the end of a run or at a stop."""
        every, done = self.run.checkpoint.every, self.rounds_done
        return bool(every) and done % every == 0 and not self.done and not self.stop.reason

    def not_finite(self) -> str:
        """Return a value of the network that is not finite on some rank; empty where all are finite. Collective."""
        self.method.publish()
        return next(filter(None, self.communicator.allgather(self.store.not_finite())), "")

    def state(self, calibrated: bool = False) -> tuple[Header, list[Piece]]:
        """Return this rank's part of all that training resumes from, perhaps ``calibrated``. Collective.

        Raises DivergedError on every rank where a value is not finite.
        """
        if odd := self.not_finite():
            error = DivergedError(f"the network is not finite {self.position}: {odd}. It is not saved.")
            error.everywhere = True
            raise error
        if calibrated and not self.calibrated and self.dataset.network is None:
            self._fit_scale()
            self.evaluator.calibrate()
            self.evaluator.network.release()
            self._calibrated = self.rounds_done
        if calibrated and self.dataset.scoring.one_class:
            self._temperature = self.evaluator.temperature("validation" if self.best else "train")
        moments = self.evaluator.network.moments if self.calibrated else {}
        norms, rank = self.architecture.batch_norms, self.communicator.rank
        pieces = [*model_pieces(self.store), *deployment_pieces(moments, norms, inputs_of(self.dataset), rank)]
        pieces += own_pieces(self.method.of_this_rank(), self.store)
        if self.run.data.placement == "local":
            pieces.append(own_data_piece(contents(self.dataset.train), self.store))
        return self._header(calibrated), pieces

    def _header(self, calibrated: bool = False) -> Header:
        return Header(
            self.run,
            self.communicator.size,
            *astuple(replace(self.tally.counts, rounds=self.rounds_done, local_step=0)),
            self.data_summary,
            self.store.scale,
            versions(),
            self.architecture.table.tree(),
            self.size.side,
            self.store.fitted,
            self._temperature if calibrated else 1.0,
            self.shares.known(self.rounds_done),
        )

    def resume(self, path: Path) -> list[str]:
        """Take over a checkpoint of any number of ranks; return the settings that changed since.

        Raises ConfigError on every rank when it belongs to another run.
        """
        with self.communicator.agreed(), open_checkpoint(path) as checkpoint:
            header = checkpoint.header
            if header.side in self.sizes and header.side != self.size.side:
                self._go_on_at(self.sizes[header.side], {})
            changes = self._changes(checkpoint)
            self.shares.go_on(header.shares, header.ranks)
            self.rounds_done = header.round
            self._keep_slots(self._phase()[0])
            restored = restore(checkpoint, self.store)
            if odd := self.store.not_finite():
                raise DataError(f"{path}: {odd}; weights must be finite. Go on from an earlier checkpoint.")
            if header.local_step:
                changes.append("a version that stops inside rounds saved it: its round begins again from the mean")
        self.method = self._next_method(restored=restored)
        self.tally.go_on_from(Counts(header.round, 0, header.examples, header.seconds, header.bytes, header.loss))
        self._look_at_the_clock()
        return changes

    def _changes(self, checkpoint: Checkpoint) -> list[str]:
        own_data = contents(self.dataset.train) if self.run.data.placement == "local" else None
        ranks, targets = self.communicator.size, self.dataset.targets
        here = Present(self.run, self.data_summary, self.architecture, ranks, self.store.rank, own_data, targets)
        return changes_since(checkpoint, here)
