"""The interface for a training loop that a user writes, around a network that all ranks train
(docs/own-loop.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import numpy as np
import torch
from torch import nn

from istmpi.checkpoint.parts import Copy
from istmpi.checkpoint.saver import commit
from istmpi.checkpoint.sight import look_for
from istmpi.checkpoint.writers import choose
from istmpi.comm import Communicator, world
from istmpi.comm.leaving import at_the_end
from istmpi.comm.stopping import StopSign
from istmpi.config import Run
from istmpi.cost import cost
from istmpi.errors import ConfigError
from istmpi.files import appearing
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.program.arguments import (
    build_run,
    describe_data,
    in_python,
    read_init,
    read_inputs,
    read_optimizer,
    require_count,
    require_kind,
    require_one_network,
    require_resumable,
    require_same,
)
from istmpi.program.guard import Guard
from istmpi.program.loaders import count_examples
from istmpi.program.printing import Printing
from istmpi.program.round import Round
from istmpi.program.scores import Scores
from istmpi.program.scoring import ScoreOf, Scoring
from istmpi.program.streams import Streams
from istmpi.record import RunFolder
from istmpi.training.loop import Training
from istmpi.training.run import load_initial_weights, open_run
from istmpi.training.run_record import RunRecord
from istmpi.training.watch import Summary, Watch

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

    has_gradients = False
    """True once a parameter had a gradient."""
    summary: Summary | None = None
    """The summary of the last loop over rounds; None if no round was left to train."""
    _round: Round | None = None  # None outside a loop over rounds
    _in_rounds = False
    _left: Round | None = None
    """The round in which the program left its loop, until the next call of the job."""
    _is_noted = True
    """True if this round is reported."""
    _record: RunRecord | None = None
    _folder: RunFolder | None = None

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
            inputs = read_inputs(example)
        inputs = self.communicator.broadcast_from_root(inputs)  # rank 0 inspects with its own
        with self.communicator.agreed():
            chosen = read_optimizer(optimizer, groups, schedule)
            require_count(examples)
            batch = batch or count_examples(inputs)
            self.run = build_run(network, arguments, method, chosen, batch, settings)
        own_optimizer = chosen if isinstance(chosen, OwnOptimizer) else None
        data = describe_data(inputs, examples, network, self.run.model.name)
        with in_python():
            self.training = Training(
                self.run, self.communicator, data=data, optimizer=own_optimizer
            )
        self.training.init = read_init(settings)
        self.streams = Streams(self.communicator, self.run.train.seed, self.note)
        self.guard = Guard()
        self._noted: set[str] = set()
        self._scoring = Scoring(self.training, self.guard, self.note)
        self._scores = Scores(self.training, own_optimizer)
        if own_optimizer:
            with self.communicator.agreed():
                own_optimizer.require_usable(self.training.architecture.parameters)

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
        self._require_ready(resume)
        run = self.run.override(
            {"train.rounds": rounds, "output.folder": str(folder)}, "Distributed"
        )
        if watch is None and self.communicator.rank == 0:
            watch = Printing()
        begin = partial(self._begin, run)
        resumed = str(resume or "")
        with (
            in_python(),
            open_run(run, self.communicator, begin, watch, resumed, deadline, signals) as recording,
        ):
            _, self._folder, record = recording
            self.run = run
            self.summary = None
            self._scores.clear()
            if record:
                yield from self._record_loop(record, self._folder.path / "loaders", resumed)
                self._end_loop(record, network)

    def _require_ready(self, resume: str | Path | None) -> None:
        """Raise ConfigError inside a loop over rounds, or for an unusable ``resume``."""
        if self._in_rounds:
            raise ConfigError(
                "rounds is called inside a loop over rounds. End this loop first, or use another "
                "job."
            )
        require_resumable(resume)
        if self._left:
            self._together("rounds")

    def _begin(self, run: Run, stop: StopSign, _: Copy | None) -> Training:
        self.training.begin_anew(run, stop)
        return self.training

    def _record_loop(self, record: RunRecord, loaders: Path, resumed: str) -> Iterator[Round]:
        """Load the scores and the loaders' states of a resumed run, and yield the rounds that are
        left. Collective."""
        self._record = record
        training = self.training
        self._scores.restore(self.metrics())
        self.streams.load(loaders, training.rounds_done, resumed)
        if training.architecture.batch_norms and not training.rounds_done:
            self.note(
                "batch normalisations: before save or export, call job.evaluate with "
                "calibrate=loader."
            )
        # A stop may have reached some ranks already.
        reason = training.stop.reason if training.stop.asked() else ""
        training.stop.settle(self.communicator.allgather(reason))
        yield from self._train(record, loaders)
        self._round = None

    def _end_loop(self, record: RunRecord, network: bool) -> None:
        """End the record, and save the ``network`` in the folder. Collective."""
        if self.training.done and network and not self._scoring.calibrate_again():
            self.note(
                "the network is saved without moments of batch normalisation; evaluate it first."
            )
        self.summary = record.end(network)

    def _train(self, record: RunRecord, loaders: Path) -> Iterator[Round]:
        """Yield the rounds that are left; record and save each one. Collective."""
        training = self.training
        kept = self.run.checkpoint.keep
        self._in_rounds = True
        # Weak, so that a job that the program drops can be freed.
        at_the_end.append(WeakMethod(self._note_if_left))
        more = self._has_more()
        while more:
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
            more = self._has_more()
            if not finished:
                self.streams.save(loaders, training.rounds_done, kept, dropped=True)
                break
            record.add(training.progress(self._scores.find()))
            if training.checkpoint_due or training.stop.reason or training.done:
                self.streams.save(loaders, training.rounds_done, kept)
        self._in_rounds = False

    def _leave_loop(self) -> None:
        if self._in_rounds and self._round:
            self._in_rounds = False
            self._left = self._round
            self._is_noted = False

    def _note_if_left(self) -> None:
        """Report once that the program left the loop before its last round."""
        self._leave_loop()  # a loop that the script still holds
        if self._left and not self._is_noted:
            self._is_noted = True
            self.note(f"{self._left.fate} End a loop early with job.end().")

    def _discard_left_round(self) -> None:
        """Discard the round in which the program left the loop, if any. Collective.

        When the loop is left, other ranks may be elsewhere, so a wait could hang. In the next call
        all ranks are here (decision 77).
        """
        if self._left:
            self._note_if_left()
            self._left.discard()
            self._left = None

    def _has_more(self) -> bool:
        """Return True if a round is left to train. Collective."""
        training = self.training
        if training.done or training.stop.reason:
            self._together("the end of the rounds")
            return False
        self._together(f"round {training.rounds_done + 1}")
        return True

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
        if self._in_rounds and self._round and self._round.under_way:
            raise ConfigError(
                "evaluate is called inside a round. Call it after `for batch in round.take(...)`."
            )
        require_kind("name", name, str)
        require_kind("higher_is_better", higher_is_better, bool)
        require_kind("same_loader", same_loader, bool)
        self._together("evaluate")
        means = self._scoring.average(score, loader, calibrate, same_loader)
        # A single score has an empty key: it gets its name here, and is returned as a number.
        named = {key or name: mean for key, mean in means.items()}
        recorded_score = self._scores.keep(named, self._scoring.examples, higher_is_better)
        if self.summary and self._record:
            self.summary = self._record.add_score(recorded_score)
        return means.get("", means)

    def save(self, path: str | Path) -> Path:
        """Save the network in a file like ``network.h5``. Collective. Raises ConfigError if batch
        normalisations have no moments, DivergedError, OutputError."""
        training = self.training
        path = Path(path)
        self._together("save")
        self._scoring.require_calibrated()
        place = look_for(path.parent, self.communicator)
        writer = choose(training.run.checkpoint.writer, self.communicator, place.unseen)
        commit(path, *training.state(), writer, self.communicator)
        return path

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """Return the whole network on rank 0, as a state dict for its class; None on the other
        ranks. Collective.

        Rank 0 has the whole network in memory, other ranks one parameter at a time. Weights include
        the factors of sums over dealt units. Raises ConfigError if the class cannot express them,
        or if batch normalisations lack moments.
        """
        from istmpi.deploy.layers import collect_state
        from istmpi.deploy.program import whole_state

        training = self.training
        self._together("state_dict")
        require_one_network(training.method, training.architecture.name)
        self._scoring.require_calibrated()
        training.method.publish()
        values: dict[str, np.ndarray] = {}
        for name in training.architecture.parameters:
            whole = training.store.whole(name, self.communicator)  # every rank sends its rows
            if self.communicator.rank == 0:
                values[name] = whole.numpy()
        with self.communicator.agreed():
            if self.communicator.rank:
                return None
            moments = training.evaluator.network.moments if training.calibrated else {}
            state = collect_state(values, training.store.full_scale, moments, training.architecture)
            if state.problem:
                raise ConfigError(f"{training.architecture.name}: {state.problem}.")
            return whole_state(state)

    def export(self, path: str | Path) -> None:
        """Save `state_dict` with torch.save on rank 0. Collective. Also raises OutputError."""
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
            lines = []
            if self._folder and self.communicator.rank == 0:
                lines = self._folder.metrics()
        return self.communicator.broadcast_from_root(lines)

    def _together(self, call: str) -> None:
        """Raise ConfigError on every rank if ranks are in different calls. Collective."""
        require_same(self.communicator.allgather(call))
        self._discard_left_round()
        self.streams.compare()
        with in_python():
            load_initial_weights(self.training)

    def note_once(self, message: str) -> None:
        if message not in self._noted:
            self._noted.add(message)
            self.note(message)

    def note(self, message: str) -> None:
        if self._record:
            self._record.note(message)
