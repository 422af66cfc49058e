"""Trains on every rank, round by round, with evaluations; saves its state and resumes from it."""

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from istmpi.checkpoint.format import Header, Piece
from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.reader import Checkpoint, open_checkpoint
from istmpi.checkpoint.state import (
    Moments,
    collect_inputs,
    deployment_pieces,
    frozen_pieces,
    model_pieces,
    own_data_piece,
    own_pieces,
    read_moments,
    restore,
    restore_frozen,
)
from istmpi.config.methods import find_method_spec
from istmpi.engine.partition import Partition
from istmpi.engine.slots import list_kinds
from istmpi.errors import DataError, DivergedError, IstmpiError
from istmpi.evaluation.blocks import ValuesOf
from istmpi.evaluation.evaluator import Score, Then
from istmpi.evaluation.planning import choose_form
from istmpi.foreign import forbid_exit
from istmpi.methods.base import drive
from istmpi.training.best import Best
from istmpi.training.prepared import Prepared
from istmpi.training.progress import Counts, Progress
from istmpi.training.same_data import list_changes, require_same_subnets, summarise_split
from istmpi.training.share_log import adapt_shares


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
                yield self._score()
            while not (self.done or self.stop.reason):
                if not drive(self.attempt(), partial(self._take_step, self.rounds_done)):
                    return
                # decision 64: a stop must be quick, so the resumed run evaluates.
                if self.evaluation_due and (self.done or not self.stop.reason):
                    yield self._score()
                else:
                    yield self.progress()

    def _take_step(self, number: int, local_step: int) -> None:
        # A round may begin with another method, so it is looked up at each step.
        self.method.take(number, local_step)

    @property
    def evaluation_due(self) -> bool:
        every = self.run.evaluate.rounds_between(self.run.train.rounds)
        return self.done or self.rounds_done % every == 0

    def _score(self) -> Progress:
        """Score the validation split if the run has one; the test split otherwise, and at the end
        of the run."""
        validation: Score | None = None
        score: Score | None = None
        if self.best:
            validation = self._validate(self.best)
        # The validation's score may end the run.
        if self.done or not self.best:
            score = self.evaluate()
        return self.progress(score, validation)

    @property
    def done(self) -> bool:
        return bool(self.ended)

    @property
    def ended(self) -> str:
        """Why the run is done, in words; empty if it is not."""
        if self.rounds_done >= self.run.train.rounds:
            return f"all {self.run.train.rounds} rounds are done"
        if self.time_is_up:
            return f"train.max_minutes = {self.run.train.max_minutes:g} reached"
        if self.told_to_end:
            return "ended by the program"
        if self.best and self.best.exhausted:
            return self.best.describe(self.score_name)
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
        # Outside the round, which may be dropped: the new size stays.
        self._grow_if_due()
        # An evaluation may have left weights for a save.
        self.evaluator.release()
        method = self.method
        number = self.rounds_done
        self.communicator.whereabouts.begin_round(number + 1)
        examples = method.examples
        self.tally.begin(partial(method.agree_on_deal, number))
        with self.clock("other"):
            loss = yield from method.attempt(number)
            if loss is None:
                return False
            # At the end of a phase, the weights go to their owners; these bytes are this round's.
            self.rounds_done = number + 1
            self.method = self._make_method(method)
        examples = method.examples - examples
        # Ranks that add up outputs train on the same examples, which count once.
        if method.spec.sums_outputs and self.communicator.rank:
            examples = 0
        last = self.tally.end(examples)
        last = adapt_shares(self.shares, method, number, last)
        self.tally.count(last, self.rounds_done, loss)
        self._check_time_limit()
        # A program's own work follows, which must not count as a round's.
        if self.dataset.network is not None:
            self.tally.part()
        return True

    def progress(self, score: Score | None = None, validation: Score | None = None) -> Progress:
        """Return the state of the run after its last round, with its scores if there are any."""
        steps = self.method.first_step(self.rounds_done)
        tally = self.tally
        counts = tally.counts
        last = tally.last_round
        # An evaluation follows its round, so its seconds are known only now.
        if last:
            last = last.with_phases(tally.since_the_round("evaluate"))
        spent = self.clock.seconds
        return Progress(
            round=self.rounds_done,
            local_steps=steps,
            examples=counts.examples,
            seconds=counts.seconds,
            bytes=counts.bytes,
            loss=counts.loss,
            learning_rate=self.method.rate(max(steps - 1, 0)),
            score=score,
            score_name=self.score_name,
            ranks=self.communicator.size,
            last_round=last,
            validation=validation,
            slowest=tally.pace.slowest(self.hosts),
            evaluating=spent["evaluate"] / (sum(spent.values()) or 1.0),
        )

    @property
    def position(self) -> str:
        """The rounds that are done, in words."""
        done = self.rounds_done
        rounds = self.run.train.rounds
        # A resumed run may have got fewer rounds.
        if done > rounds:
            return f"after {done} rounds"
        return f"after {done} of {rounds} rounds"

    def evaluate(self, split: str = "test") -> Score:
        self.tally.part()
        with self.clock("evaluate"):
            if not self.method.spec.sums_outputs:
                self.method.publish()
            # Scoring computes the moments of batch normalisations.
            self.calibrated_after = self.rounds_done
            self._fit_scale()
            try:
                details = self.done and split == "test"
                self.arrange(max(self.rounds_done - 1, 0), then=(split, details))
                with self.store.borrowing(self.method.values_on_all_ranks()):
                    return self.evaluator.score(split, details=details)
            except DivergedError as error:
                cure = " Lower optimizer.lr."
                if error.of_function:
                    cure = ""
                error.args = (f"{error} {self.position}; its weights are kept.{cure}",)
                raise

    def arrange(self, number: int, values_of: ValuesOf | None = None, then: Then = None) -> None:
        """Make the evaluator score the run's form (evaluate.form), with subnets of round
        ``number``. Collective. ``then`` is as for `Evaluator.arrange`.

        ``values_of`` is as for `SharedBlocks`; by default it has what this rank holds of its
        subnet.
        """
        form = choose_form(self.run)
        if form == "merged":
            return
        deal = self.method.holders(number)
        if not isinstance(deal, Partition):
            return
        if values_of is None:
            # What a rank holds of its subnet need not move.
            values_of = partial(self._find_values, deal, form)
        self.evaluator.arrange(deal, form, values_of, then)

    def _find_values(self, deal: Partition, form: str, number: int) -> Mapping[str, torch.Tensor]:
        # A run may go on with another method object, so it is looked up at each call.
        if form == "sum":
            return self.method.values_of_subnet(number)
        return self.method.values_of_part(deal)

    def _validate(self, best: Best) -> Score:
        score = self.evaluate("validation")
        # Ranks may differ in the last bit of a score; all must decide the same.
        best.take(self.rounds_done, self.communicator.broadcast_from_root(score.score))
        return score

    def _fit_scale(self) -> None:
        # Without dealt units the factor is 1, and there is nothing to fit.
        if self.run.model.scale == "fitted" and self.store.scale and self.method.spec.deals:
            self.store.fitted = self.evaluator.fit_scale()

    @property
    def checkpoint_due(self) -> bool:
        every = self.run.checkpoint.every
        if not every or self.rounds_done % every:
            return False
        return not self.done and not self.stop.reason

    def not_finite(self) -> str:
        """Describe a value of the network that is not finite on some rank; empty if all are finite.
        Collective."""
        # Owners have the newest values only after this.
        self.method.publish()
        with self.communicator.agreed() as agreement:
            agreement.value = self.store.not_finite()
        return next(filter(None, agreement.by_rank), "")

    def collect_state(
        self, calibrated: bool = False, may_save: Callable[[], None] | None = None
    ) -> tuple[Header, list[Piece], IstmpiError | None]:
        """Return the header and this rank's pieces of a checkpoint, and why this rank must not save
        them; None if it may. Collective.

        ``calibrated``: for prediction, with a classifier's temperature and present moments. A rank
        must not save if ``may_save`` raises an IstmpiError, or a weight is not finite.
        """
        self.tally.part()
        self.method.publish()
        refusal = self._find_refusal(may_save)
        if calibrated:
            with self.store.borrowing(self.method.values_on_all_ranks()):
                self._calibrate()
        moments: Moments = {}
        if self.calibrated:
            moments = self.evaluator.network.collect_moments()
        network = self.architecture
        pieces = [*model_pieces(self.store), *frozen_pieces(network, self.store)]
        pieces += deployment_pieces(
            moments, network.batch_norms, collect_inputs(self.dataset), self.communicator.rank
        )
        pieces += own_pieces(self.method.of_this_rank(), self.store)
        if self.run.data.differs:
            pieces.append(own_data_piece(summarise_split(self.dataset.train), self.store))
        return self.header(calibrated), pieces, refusal

    def _find_refusal(self, may_save: Callable[[], None] | None) -> IstmpiError | None:
        if may_save:
            try:
                may_save()
            except IstmpiError as error:
                return error
        fault = self.store.not_finite()
        if not fault:
            return None
        return DivergedError(f"the network is not finite {self.position}: {fault}; not saved.")

    def _calibrate(self) -> None:
        """Compute what prediction needs and training does not: moments and temperature."""
        # A program calibrates with a loader of its own.
        if not self.calibrated and self.dataset.network is None:
            self._fit_scale()
            if self.method.spec.sums_outputs:
                self.arrange(max(self.rounds_done - 1, 0))
            self.evaluator.calibrate()
            self.calibrated_after = self.rounds_done
        if self.dataset.scoring.one_class:
            split = "train"
            # decision 25: examples that were not trained on give a better temperature.
            if self.best:
                split = "validation"
            self._temperature = self.evaluator.fit_temperature(split)
        self.evaluator.release()

    def resume(self, path: Path | Copy) -> list[str]:
        """Resume from a checkpoint of any number of ranks; return the differences from the
        checkpoint's run.

        Raises on every rank ConfigError if the checkpoint belongs to another run, DataError if it
        is damaged or a weight is not finite.
        """
        full_size = self.sizes[0].dataset
        # A training that was made to resume from this file has counted its rounds already.
        if path != self.start:
            self._count_epochs(full_size, path)
            with self.communicator.agreed():
                self._plan(full_size)
        with self.communicator.agreed(), open_checkpoint(path) as checkpoint:
            self._recall_examples(checkpoint, full_size)
            header = checkpoint.header
            # The store must have the shapes of the saved size before values come in.
            if header.side in self.sizes and header.side != self.size.side:
                self._take_size(self.sizes[header.side], {})
            changes = list_changes(checkpoint, self)
            restored = self._load(checkpoint)
            if header.local_step:
                changes.append(
                    "saved inside a round by an older version: the round starts again from the mean"
                )
            changes += self._begin_state(header, restored)
            moments = self._find_moments(checkpoint)
        # The old ones hold values from before the checkpoint's came in.
        self.method = self._make_method(restored=restored)
        self._make_evaluator()
        if moments:
            self.evaluator.network.moments = moments
            self.calibrated_after = self.rounds_done
        self.tally.restore(Counts.from_header(header))
        self._check_time_limit()
        return changes

    def _find_moments(self, checkpoint: Checkpoint) -> Moments:
        """Return the moments of the batch normalisations in a program's checkpoint, which has no
        data to compute them again. Other runs compute theirs; so do subnets side by side."""
        if self.dataset.network is None or checkpoint.header.blocks:
            return {}
        return read_moments(checkpoint)

    def _load(self, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
        """Take the values of a checkpoint that owners store; return this rank's own values."""
        header = checkpoint.header
        self.shares.restore(header.shares, header.ranks)
        self.rounds_done = header.round
        run, _ = self._find_phase()
        self._keep_slots(run)
        restored = restore(checkpoint, self.store)
        restore_frozen(checkpoint, self.architecture)
        fault = self.store.not_finite()
        if fault:
            raise DataError(
                f"{checkpoint.path}: {fault}; weights must be finite. Resume from an earlier "
                "checkpoint."
            )
        return restored

    def _begin_state(self, header: Header, restored: Mapping[str, torch.Tensor]) -> list[str]:
        """Note the round since which ranks' own optimizer states count; return a note if the
        checkpoint lacks them. Raises ConfigError if a sum of subnets would get other subnets."""
        require_same_subnets(header, self.run, self.communicator.size)
        # decision 70: a mean of the ranks' states would be the state of none.
        self.state_since = header.state_since
        run, since = self._find_phase()
        keeps_states = bool(find_method_spec(run.method.name).own_slots(run))
        if not keeps_states or since >= header.round or list_kinds(restored):
            return []
        self.state_since = header.round
        ranks = self.communicator.size
        why = "the checkpoint has no such states"
        if header.ranks != ranks:
            why = f"the checkpoint is from {header.ranks} ranks, and this run has {ranks}"
        return [
            f"optimizer_state = keep: each rank begins with a new optimizer state, because {why}"
        ]
