"""Trains on every rank, round by round, with evaluations; saves its state and resumes from it."""

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import torch

from istmpi.checkpoint.format import Header, Piece
from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.state import (
    deployment_pieces,
    frozen_pieces,
    inputs_of,
    model_pieces,
    own_data_piece,
    own_pieces,
    restore,
    restore_frozen,
    versions,
)
from istmpi.config.methods import spec_of
from istmpi.engine.slots import kinds_of
from istmpi.errors import DataError, DivergedError
from istmpi.evaluation.evaluator import Score
from istmpi.foreign import forbid_exit
from istmpi.methods.base import driven
from istmpi.training.prepared import Prepared
from istmpi.training.progress import Counts, Progress
from istmpi.training.same_data import changes_since, contents
from istmpi.training.share_log import followed


class Training(Prepared):
    """A run that is set up on every rank; iterate over `rounds` to train. All methods are
    collective."""

    overdue = False
    """True if a stop came between the last round and its evaluation, which `rounds` then makes up
    for."""

    def rounds(self) -> Iterator[Progress]:
        """Run the remaining rounds, and yield the progress after each one.

        A requested stop ends training early; the current round is finished or dropped, and its
        evaluation is left to the resumed run, which yields the last round once more, with its
        scores. Raises DivergedError on every rank if a loss, a weight or an evaluation is not
        finite.
        """
        with forbid_exit():
            if self.overdue:
                self.overdue = False
                yield self._scored()
            while not (self.done or self.stop.reason):
                number = self.rounds_done
                if not driven(
                    self.attempt(),
                    lambda local_step, number=number: self.method.take(number, local_step),
                ):
                    return
                due = self.evaluation_due and (self.done or not self.stop.reason)
                yield self._scored() if due else self.progress()

    @property
    def evaluation_due(self) -> bool:
        every = self.run.evaluate.rounds_between(self.run.train.rounds)
        return self.done or self.rounds_done % every == 0

    def _scored(self) -> Progress:
        """Score the validation split if the run has one; the test split otherwise, and at the end
        of the run."""
        validation = self._validate() if self.best else None
        score = self.evaluate() if self.done or not self.best else None
        return self.progress(score, validation)

    @property
    def done(self) -> bool:
        return bool(self.ended)

    @property
    def ended(self) -> str:
        if self.rounds_done >= self.run.train.rounds:
            return f"all {self.run.train.rounds} rounds are done"
        if self.time_is_up:
            return f"train.max_minutes = {self.run.train.max_minutes:g} reached"
        if self.told_to_end:
            return "ended by the program"
        if self.best and self.best.exhausted:
            return self.best.described(self.score_name)
        return ""

    def _check_time_limit(self) -> None:
        limit = 60 * self.run.train.max_minutes
        self.time_is_up = bool(limit) and self.tally.counts.seconds >= limit

    def attempt(self) -> Generator[int, None, bool]:
        """Run a round: yield the number of each local step, which the caller must carry out before
        it continues.

        Returns False if the round was dropped. Time outside all other phases of the clock counts as
        `other`.
        """
        self._grow_if_due()
        method, number = self.method, self.rounds_done
        self.communicator.whereabouts.begin_round(number + 1)
        examples = method.examples
        self.tally.begin()
        with self.clock("other"):
            loss = yield from method.attempt(number)
            if loss is None:
                return False
            self.rounds_done = number + 1
            self.method = self._next_method(method)
        last = self.tally.end(method.examples - examples)
        last = followed(self.shares, method, number, last)
        self.tally.count(last, self.rounds_done, loss)
        self._check_time_limit()
        return True

    def progress(self, score: Score | None = None, validation: Score | None = None) -> Progress:
        done = self.method.first_step(self.rounds_done)
        rate = self.method.rate(max(done - 1, 0))
        tally, counts = self.tally, self.tally.counts
        last = tally.last_round and tally.last_round.followed_by(tally.since_the_round("evaluate"))
        facts = (
            self.rounds_done,
            done,
            counts.examples,
            counts.seconds,
            counts.bytes,
            counts.loss,
            rate,
        )
        facts = *facts, score, self.score_name, self.communicator.size, last
        more = {"validation": validation, "slowest": tally.pace.slowest(self.hosts)}
        spent = self.clock.seconds
        return Progress(*facts, **more, evaluating=spent["evaluate"] / (sum(spent.values()) or 1.0))

    @property
    def position(self) -> str:
        done, rounds = self.rounds_done, self.run.train.rounds
        return f"after {done}{f' of {rounds}' * (done <= rounds)} rounds"

    def evaluate(self, split: str = "test") -> Score:
        with self.clock("evaluate"):
            self.method.publish()
            self.calibrated_after = self.rounds_done
            self._fit_scale()
            try:
                self.arrange(max(self.rounds_done - 1, 0))
                return self.evaluator.score(split)
            except DivergedError as error:
                cure = "" if error.of_function else " Lower optimizer.lr."
                error.args = (f"{error} {self.position}; its weights are kept.{cure}",)
                raise

    def arrange(self, number: int) -> None:
        """Make the evaluator score the run's form (evaluate.form), with subnets of round
        ``number``. Collective."""
        form = self.evaluator.form_of_run
        if form != "merged":
            self.evaluator.arrange(self.method.holders(number), form)

    def _validate(self) -> Score:
        score = self.evaluate("validation")
        self.best.take(self.rounds_done, self.communicator.broadcast_from_root(score.score))
        return score

    def _fit_scale(self) -> None:
        if self.run.model.scale == "fitted" and self.store.scale and self.method.spec.deals:
            self.store.fitted = self.evaluator.fit_scale()

    @property
    def checkpoint_due(self) -> bool:
        every, done = self.run.checkpoint.every, self.rounds_done
        return bool(every) and done % every == 0 and not self.done and not self.stop.reason

    def not_finite(self) -> str:
        """Describe a value of the network that is not finite on some rank; empty if all are finite.
        Collective."""
        self.method.publish()
        return next(filter(None, self.communicator.allgather(self.store.not_finite())), "")

    def state(self, calibrated: bool = False) -> tuple[Header, list[Piece]]:
        """Return the header and this rank's pieces of a checkpoint. Collective.

        ``calibrated``: for prediction; compute a classifier's temperature, and moments of batch
        normalisations if they are out of date. Raises DivergedError on every rank if a weight is
        not finite.
        """
        if odd := self.not_finite():
            error = DivergedError(f"the network is not finite {self.position}: {odd}; not saved.")
            error.everywhere = True
            raise error
        if calibrated and not self.calibrated and self.dataset.network is None:
            self._fit_scale()
            self.evaluator.calibrate()
            self.evaluator.network.release()
            self.calibrated_after = self.rounds_done
        if calibrated and self.dataset.scoring.one_class:
            self._temperature = self.evaluator.fit_temperature(
                "validation" if self.best else "train"
            )
        moments = self.evaluator.network.moments if self.calibrated else {}
        norms, rank = self.architecture.batch_norms, self.communicator.rank
        pieces = [*model_pieces(self.store), *frozen_pieces(self.architecture, self.store)]
        pieces += deployment_pieces(moments, norms, inputs_of(self.dataset), rank)
        pieces += own_pieces(self.method.of_this_rank(), self.store)
        if self.run.data.placement == "local":
            pieces.append(own_data_piece(contents(self.dataset.train), self.store))
        return self._header(calibrated), pieces

    def _header(self, calibrated: bool = False) -> Header:
        counts = self.tally.counts
        temperature = 1.0
        if calibrated:
            temperature = self._temperature
        blocks = 0
        if self.calibrated and self.evaluator.form == "blocks":
            blocks = self.communicator.size
        most_examples = {}
        if len(self.most_examples) > 1:
            most_examples = self.most_examples
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
            versions=versions(),
            network=self.architecture.table.tree(),
            side=self.size.side,
            fitted=self.store.fitted,
            temperature=temperature,
            shares=self.shares.known(self.rounds_done),
            blocks=blocks,
            frozen=self.architecture.code.frozen_digest,
            state_since=self.state_since,
            most_examples=most_examples,
        )

    def resume(self, path: Path) -> list[str]:
        """Resume from a checkpoint of any number of ranks; return the differences from the
        checkpoint's run.

        Raises on every rank ConfigError if the checkpoint belongs to another run, DataError if it
        is damaged or a weight is not finite.
        """
        full_size = self.sizes[0].dataset
        self._count_epochs(full_size, path)
        with self.communicator.agreed():
            self._plan(full_size)
        with self.communicator.agreed(), open_checkpoint(path) as checkpoint:
            header = checkpoint.header
            if header.side in self.sizes and header.side != self.size.side:
                self._take_size(self.sizes[header.side], {})
            changes = changes_since(checkpoint, self)
            self.shares.restore(header.shares, header.ranks)
            self.rounds_done = header.round
            self._keep_slots(self._phase()[0])
            restored = restore(checkpoint, self.store)
            restore_frozen(checkpoint, self.architecture)
            if odd := self.store.not_finite():
                raise DataError(
                    f"{path}: {odd}; weights must be finite. Resume from an earlier checkpoint."
                )
            if header.local_step:
                changes.append(
                    "saved inside a round by an older version: the round starts again from the mean"
                )
            changes += self._begin_state(header, restored)
        self.method = self._next_method(restored=restored)
        self._make_evaluator()
        self.tally.restore(
            Counts(header.round, header.examples, header.seconds, header.bytes, header.loss)
        )
        self._check_time_limit()
        return changes

    def _begin_state(self, header: Header, restored: Mapping[str, torch.Tensor]) -> list[str]:
        """Note the round since which ranks' own optimizer states count; return a note if the
        checkpoint lacks them."""
        self.state_since = header.state_since
        run, since = self._phase()
        if (
            not spec_of(run.method.name).own_slots(run)
            or since >= header.round
            or kinds_of(restored)
        ):
            return []
        self.state_since = header.round
        why = "the checkpoint has no such states"
        if header.ranks != self.communicator.size:
            why = f"the checkpoint is from {header.ranks} ranks, and this run has {self.communicator.size}"
        return [
            f"optimizer_state = keep: each rank begins with a new optimizer state, because {why}"
        ]
