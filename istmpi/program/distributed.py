"""The interface for a training loop that a user writes, around a network that all ranks train
(docs/own-loop.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import torch
from torch import nn

from istmpi.checkpoint.saver import commit
from istmpi.checkpoint.writers import choose
from istmpi.comm import Communicator, world
from istmpi.comm.leaving import at_the_end
from istmpi.comm.stopping import StopSign
from istmpi.cost import cost
from istmpi.data.dataset import Dataset
from istmpi.errors import ConfigError
from istmpi.evaluation.evaluator import Score
from istmpi.files import appearing
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.program.arguments import in_python, inputs_of, require_count, require_kind, run_of
from istmpi.program.printing import Printing
from istmpi.program.round import Guard, Round
from istmpi.program.scoring import ScoreOf, Scoring
from istmpi.program.streams import Rows, Streams, examples_in
from istmpi.tasks import LOWER, OWN
from istmpi.training.loop import Training
from istmpi.training.run import begun_with, recorded
from istmpi.training.run_record import RunRecord
from istmpi.training.watch import Summary, Watch
from istmpi.trees import tensors_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from istmpi.program.keywords import Keywords


class Distributed:
    """A network that all ranks train by a method, in rounds of local steps that the user's loop
    takes. Collective.

    ``network``: a class of torch.nn.Module. ``arguments``: the arguments of its constructor;
    integers among them are widths that may be dealt out. ``example``: the inputs of a batch: a
    tensor, a tuple for ``forward(*example)``, or a dict for ``forward(**example)``. ``optimizer``:
    a name, or a function that takes a list of parameters and returns an optimizer; ``groups`` and
    ``schedule`` are described in `OwnOptimizer`. ``examples`` and ``batch``: this rank's number of
    training examples and its batch size, for fedavg, which counts passes over the examples. All
    other arguments are settings of the run: ``seed=1``, ``lr=0.1``. ``init`` may be a function that
    yields pairs of a name and a tensor; only rank 0 calls it.

    Raises ConfigError on every rank if the network or the settings cannot be trained.
    """

    def __init__(
        self,
        network: type[nn.Module],
        arguments: Mapping[str, Any],
        communicator: Communicator | None = None,
        *,
        example: Any,
        method: str = "ist",
        optimizer: str | Callable[[Any], torch.optim.Optimizer] = "sgd",
        groups: Mapping[str, Mapping[str, Any]] | None = None,
        schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
        examples: int = 1,
        batch: int = 0,
        **settings: Unpack[Keywords],
    ):
        self.communicator = communicator or world()
        with self.communicator.agreed():
            inputs = inputs_of(example)
        inputs = self.communicator.broadcast_from_root(inputs)
        with self.communicator.agreed():
            made = (
                None
                if isinstance(optimizer, str)
                else OwnOptimizer(optimizer, groups or {}, schedule)
            )
            if made is None and (groups or schedule):
                raise ConfigError(
                    "groups and schedule go with an optimizer that is a function of parameters."
                )
            batch = batch or examples_in(inputs)
            require_count(examples)
            self.run = run_of(network, arguments, method, made or optimizer, batch, settings)
        shape = tuple(next(tensors_of(inputs)).shape[1:])
        rows, name = Rows(examples, inputs), self.run.model.name
        splits = {"train": rows, "test": rows}
        data = Dataset(
            splits, OWN, shape, 0, None, name, "program", example=inputs, network=network
        )
        with in_python():
            self.training = Training(self.run, self.communicator, data=data, optimizer=made)
        self.training.init = init if callable(init := settings.get("init")) else None
        self._round: Round | None = None
        self._in_rounds = False
        self._noted: set[str] = set()
        self._left: Round | None = None
        """The round in which the program left its loop, until the next call of the job."""
        self._fate = ""
        """What becomes of this round, until it is reported."""
        self.has_gradients = False
        self.summary: Summary | None = None
        """The summary of the last loop over rounds; None if no round was left to train."""
        self.streams = Streams(self.communicator, self.run.train.seed, self.note)
        self._scores: dict[int, Score] = {}
        self._record: RunRecord | None = None
        self._folder: Any = None
        self.guard = Guard()
        self._scoring = Scoring(self, self.training)
        self._made = made
        if made:
            with self.communicator.agreed():
                made.require_usable(self.training.architecture.parameters)

    def rounds(
        self,
        rounds: int,
        *,
        folder: str | Path = "",
        resume: str | Path | None = None,
        watch: Watch | None = None,
        signals: bool = True,
        deadline: float | None = None,
        network: bool = True,
    ) -> Iterator[Round]:
        """Yield the rounds that are left of ``rounds``, one by one. Collective.

        ``folder`` gets the record and the checkpoints; by default it is runs/NAME. ``resume``: a
        checkpoint, a run's folder, or ``"auto"`` to continue the run in ``folder``, if any.
        ``network``: save the trained network in the folder at the end. `istmpi.run_training`
        describes the other arguments, and the errors.
        """
        if self._in_rounds:
            raise ConfigError(
                "rounds is called inside a loop over rounds. End this loop first, or use another "
                "job."
            )
        if resume and resume != "auto" and not Path(resume).exists():
            raise ConfigError(
                f"resume = {resume!r}: give 'auto', a checkpoint, a run's folder, or nothing."
            )
        if self._left:
            self._together("rounds")
        run = self.run.override(
            {"train.rounds": rounds, "output.folder": str(folder)}, "Distributed"
        )

        def begin(stop: StopSign) -> Training:
            self.training.begin_anew(run, stop)
            return self.training

        watch = watch or (Printing() if self.communicator.rank == 0 else None)
        resumed = str(resume or "")
        with (
            in_python(),
            recorded(run, self.communicator, begin, watch, resumed, deadline, signals) as recording,
        ):
            training, self._folder, record = recording
            self.run, self.summary, self._scores = run, None, {}
            if record is None:
                return
            self._record, loaders = record, self._folder.path / "loaders"
            self._take_scores_up()
            self.streams.load(loaders, training.rounds_done, resumed)
            if training.architecture.batch_norms and not training.rounds_done:
                self.note(
                    "batch normalisations: before save or export, call job.evaluate with "
                    "calibrate=loader."
                )
            training.stop.settle(
                self.communicator.allgather(training.stop.asked() and training.stop.reason)
            )
            yield from self._loop(record, loaders)
            self._round = None
            if training.done and network and not self._scoring.calibrated_again():
                self.note(
                    "the network is saved without moments of batch normalisation; evaluate it "
                    "first."
                )
            self.summary = record.end(network)

    def _loop(self, record: RunRecord, loaders: Path) -> Iterator[Round]:
        """Yield the rounds that are left; record and save each one. Collective."""
        training = self.training
        kept = self.run.checkpoint.keep
        self._in_rounds = True
        at_the_end.append(WeakMethod(self._note_if_left))
        goes_on = self._goes_on()
        while goes_on:
            self.streams.begin_round()
            self._round = Round(self, training)
            try:
                yield self._round
            except BaseException:
                # A break, a return and any exception of the loop's body look the same here.
                self._leave_loop()
                raise
            finished = self._round.finished()
            training.told_to_end &= finished  # a repeated round decides again
            goes_on = self._goes_on()
            if not finished:
                self.streams.save(loaders, training.rounds_done, kept, dropped=True)
                break
            record.add(training.progress(self._scores.get(training.rounds_done)))
            if training.checkpoint_due or training.stop.reason or training.done:
                self.streams.save(loaders, training.rounds_done, kept)
        self._in_rounds = False

    def _leave_loop(self) -> None:
        if self._in_rounds and self._round:
            self._in_rounds = False
            self._left = self._round
            self._fate = self._round.leave()

    def _note_if_left(self) -> None:
        """Report once that the program left the loop before its last round."""
        self._leave_loop()  # a loop that the script still holds
        if self._fate:
            self.note(f"{self._fate} End a loop early with job.end().")
        self._fate = ""

    def _discard_left_round(self) -> None:
        """Discard the round in which the program left the loop, if any. Collective.

        When the loop is left, other ranks may be elsewhere, so a wait could hang. In the next call
        all ranks are here (decision 76).
        """
        if self._left:
            self._note_if_left()
            self._left.discard()
            self._left = None

    def _goes_on(self) -> bool:
        ends = self.training.done or self.training.stop.reason
        self._together(
            "the end of the rounds" if ends else f"round {self.training.rounds_done + 1}"
        )
        return not ends

    def _take_scores_up(self) -> None:
        training, lines = self.training, self.metrics()
        scored = [line for line in lines if line.get("score") is not None]
        if scored:
            training.score_name = scored[-1].get("score_name", training.score_name)
        if made := self._made:
            made.scores_known = len(lines) >= training.rounds_done
            made.scores.clear()
            made.scores.update(
                {training.method.first_step(line["round"]): line["score"] for line in scored}
            )

    def end(self) -> None:
        """Make the current round the last one: the loop then ends, and the run is saved. Call it on
        all ranks."""
        self.training.told_to_end = True

    def evaluate(
        self,
        score: ScoreOf,
        loader: Iterable[Any],
        *,
        calibrate: Iterable[Any] | None = None,
        name: str = "score",
        same_loader: bool = True,
        higher_is_better: bool = True,
    ) -> Any:
        """Return the mean of ``score(module, batch)`` over a loader's examples, for the full
        network. Collective.

        ``score`` returns a mean over the batch's examples, a pair (a sum, a number of examples) or
        a dict of these. A batch has as many examples as its first tensor has rows. ``calibrate``: a
        loader whose first batch on each rank gives the moments of batch normalisations; later calls
        use it again. ``same_loader``: each of P ranks takes every P-th batch; otherwise each takes
        all batches of its loader. All ranks return the same result. The record has it as ``name``,
        or under the keys of a dict. A round's first score is the run's; ``higher_is_better`` is its
        direction for `istmpi report`.

        Raises ConfigError inside a round or for an unusable score, DivergedError if a score is not
        finite.
        """
        if self._round and self._round.under_way:
            raise ConfigError(
                "evaluate is called inside a round. Call it after `for batch in round.take(...)`."
            )
        require_kind("name", name, str)
        require_kind("higher_is_better", higher_is_better, bool)
        require_kind("same_loader", same_loader, bool)
        self._together("evaluate")
        means = self._scoring.means(score, loader, calibrate, same_loader)
        named, done = (
            {key or name: value for key, value in means.items()},
            self.training.rounds_done,
        )
        examples = self._scoring.examples
        if before := self._scores.get(done):
            first = self.training.score_name.removesuffix(LOWER)
            examples = examples if first in named else before.examples
            named = {first: before.score, **(before.more or {}), **named}
        else:
            first = next(iter(named))
            self.training.score_name = first + LOWER * (not higher_is_better)
        scored = Score(float("nan"), named.pop(first), examples, more=named or None)
        self._scores = {done: scored}
        if self._made and done:
            self._made.scores[self.training.method.first_step(done)] = scored.score
        if self.summary:
            self.summary = self._record.add_score(scored)
        return means.get("", means)

    def save(self, path: str | Path) -> Path:
        """Save the network in a file like ``network.h5``; each rank writes its rows. Collective.

        Raises ConfigError if batch normalisations have no moments, DivergedError, OutputError.
        """
        training, path = self.training, Path(path)
        self._together("save")
        self._scoring.require_calibrated()
        writer = choose(training.run.checkpoint.writer, self.communicator)
        commit(path, *training.state(), writer, self.communicator)
        return path

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """Return the whole network on rank 0, as a state dict for its class; None on the other
        ranks. Collective.

        Rank 0 has the whole network in memory, other ranks one parameter at a time. Weights include
        the factors of sums over dealt units. Raises ConfigError if the class cannot express them,
        or if batch normalisations lack moments.
        """
        from istmpi.deploy.layers import own_state
        from istmpi.deploy.program import whole_state

        training, values = self.training, {}
        self._together("state_dict")
        self._scoring.require_calibrated()
        training.method.publish()
        store = training.store
        for name in training.architecture.parameters:
            whole = store.whole(name, self.communicator)
            if self.communicator.rank == 0:
                values[name] = whole.numpy()
        with self.communicator.agreed():
            if self.communicator.rank:
                return None
            moments = training.evaluator.network.moments if training.calibrated else {}
            state = own_state(values, store.full_scale, moments, training.architecture)
            if state.problem:
                raise ConfigError(f"{training.architecture.name}: {state.problem}.")
            return whole_state(state)

    def export(self, path: str | Path) -> None:
        """Save `state_dict` with torch.save on rank 0. Collective. Raises errors of `state_dict`,
        and OutputError."""
        state = self.state_dict()
        with self.communicator.agreed():
            if state is not None:
                with appearing(Path(path)) as file:
                    torch.save(state, file)

    def cost(self) -> dict[str, Any]:
        """Return expected costs: all ranks' bytes in a round, products' FLOPs in a step, the
        largest rank's memory."""
        counted = cost(self.run, self.training.architecture, self.communicator.size)
        return {
            "round_bytes": counted.round_bytes,
            "flops_per_local_step": max(part.flops.products for part in counted.parts),
            "memory_of_largest_rank": asdict(counted.largest.memory),
        }

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl, one a round; empty before `rounds` is iterated over.
        Collective."""
        self._together("metrics")
        with self.communicator.agreed():
            lines = self._folder.metrics() if self._folder and self.communicator.rank == 0 else []
        return self.communicator.broadcast_from_root(lines)

    def _together(self, call: str) -> None:
        """Raise ConfigError on every rank if ranks are in different calls. Collective."""
        calls = [
            each if type(each) is str else "another" for each in self.communicator.allgather(call)
        ]
        if len(set(calls)) > 1:
            rank = next(rank for rank, other in enumerate(calls) if other != calls[0])
            raise ConfigError(
                f"rank 0 called {calls[0]} while rank {rank} called {calls[rank]}. Every rank must "
                "make the "
                "same job calls in the same order: move them out of `if rank == 0`."
            )
        self._discard_left_round()
        self.streams.compare()
        with in_python():
            begun_with(self.training)

    def note_once(self, message: str) -> None:
        if message not in self._noted:
            self._noted.add(message)
            self.note(message)

    def note(self, message: str) -> None:
        if self._record:
            self._record.note(message)
