"""The interface for a training loop that a user writes, around a network that all ranks train
(docs/own-loop.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from istmpi.checkpoint.saver import commit
from istmpi.checkpoint.sight import look_for
from istmpi.checkpoint.writers import choose, has_parallel_hdf5
from istmpi.comm import Communicator, world
from istmpi.comm.groups import Help
from istmpi.cost import cost
from istmpi.data.callable.example import read_inputs
from istmpi.data.dataset import Dataset
from istmpi.errors import ConfigError
from istmpi.files import appearing
from istmpi.network.architecture import Architecture
from istmpi.optim.own_optimizer import OwnOptimizer
from istmpi.optim.own_schedule import OwnSchedule
from istmpi.program.arguments import (
    assume_many_rounds,
    build_run,
    describe_data,
    in_python,
    name_schedule,
    read_init,
    read_optimizer,
    require_count,
    require_kind,
    require_one_network,
)
from istmpi.program.autocast import Autocast
from istmpi.program.bests import TORCH, Bests, describe_end, require_best
from istmpi.program.guard import Guard
from istmpi.program.in_group import Place, answered
from istmpi.program.kept import Kept
from istmpi.program.loaders import count_examples
from istmpi.program.loop import Loop
from istmpi.program.member_loop import MemberLoop
from istmpi.program.passes import ScoreOf
from istmpi.program.scores import Scores
from istmpi.program.scoring import Scoring
from istmpi.program.streams import Streams
from istmpi.program.whole import collect_state_dict
from istmpi.training.best import Best
from istmpi.training.loop import Training

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from istmpi.program.keywords import Keywords


class Distributed(Loop):
    """A network that all ranks train by a method, in rounds of local steps that the user's loop
    takes. Collective.

    ``network``: a class of torch.nn.Module. ``arguments``: the arguments of its constructor;
    integers among them are widths that may be dealt out. ``example``: the inputs of a batch: a
    tensor, a tuple for ``forward(*example)``, or a dict for ``forward(**example)``. ``optimizer``:
    a name, or a function that takes a list of parameters and returns an optimizer; ``groups`` and
    ``schedule`` are described in `OwnOptimizer`; a schedule by name also goes with a named
    optimizer. ``examples`` and ``batch``: this rank's number of
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
        schedule: OwnSchedule | None = None,
        examples: int = 1,
        batch: int = 0,
        **settings: Unpack[Keywords],
    ):
        self.place = Place(communicator or world(), settings)
        self.communicator = self.place.communicator
        with self.place.telling():
            with self.communicator.agreed():
                inputs = read_inputs(example)
            inputs = self.communicator.broadcast_from_root(inputs)  # rank 0 inspects with its own
            with self.communicator.agreed():
                chosen = read_optimizer(optimizer, groups, schedule)
                require_count(examples)
                named = name_schedule(schedule, settings)
                batch = batch or count_examples(inputs)
                self.run = build_run(network, arguments, method, chosen, batch, named)
        own_optimizer = None if isinstance(chosen, str) else chosen
        data = describe_data(inputs, examples, network, self.run.model.name)
        with in_python():
            architecture = self._set_up(data, own_optimizer)
        if own_optimizer:
            with self.place.telling(), self.communicator.agreed():
                own_optimizer.require_usable(architecture.parameters)
        if self._follows is None:
            self.training.init = read_init(settings)
        self._equip(own_optimizer)

    def _set_up(self, data: Dataset, optimizer: OwnOptimizer | None) -> Architecture:
        """Make the training of this rank, or the loop of a member that follows its leader; return
        the network. Collective."""
        run = assume_many_rounds(self.run)
        membership = self.place.membership
        if membership and not membership.leads:
            self._follows = MemberLoop(run, self.communicator, data, optimizer, membership)
            return self._follows.architecture
        self.training = Training(
            run, self.communicator, data=data, optimizer=optimizer, membership=membership
        )
        return self.training.architecture

    def _equip(self, own_optimizer: OwnOptimizer | None) -> None:
        """Make what the loop and its evaluations use."""
        self.streams = Streams(self.communicator, self.run.train.seed, self.note)
        self.guard = Guard()
        self.autocast = Autocast(self.run.train.autocast)
        self._kept = Kept(self.communicator, self.note)
        self._bests = Bests()
        self._noted = set()
        if self._follows:
            return
        self._scoring = Scoring(self.training, self.guard, self.note)
        self._scores = Scores(self.training, own_optimizer)

    def evaluate(
        self,
        score: ScoreOf,
        loader: Iterable[Any],
        *,
        calibrate: Iterable[Any] | None = None,
        name: str = "score",
        same_loader: bool = True,
        higher_is_better: bool = True,
        best: str | Path = "",
        patience: int = 0,
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

        ``best``: a file in the run's folder for the network whose first score is the best so far:
        as `save` writes it, or a state dict if the name ends in .pt. ``patience``: call `end` after
        so many evaluations without a better one. Both count the rounds before a resume, too.

        Raises ConfigError inside a round or for an unusable score, DivergedError if a score is not
        finite.
        """
        average = partial(self._average, score, loader, calibrate, same_loader)
        work = partial(self._evaluate, average, name, higher_is_better, best, patience)
        help = self._choose_help(score, loader, same_loader)
        scores, self.best = self.place.answer("evaluate", work, help)
        return scores

    def _average(
        self,
        score: ScoreOf,
        loader: Iterable[Any],
        calibrate: Iterable[Any] | None,
        same_loader: bool,
    ) -> dict[str, float]:
        require_kind("same_loader", same_loader, bool)
        self._together("evaluate")
        return self._scoring.average(score, loader, calibrate, same_loader)

    def _evaluate(
        self,
        average: Callable[[], dict[str, float]],
        name: str,
        higher_is_better: bool,
        best: str | Path,
        patience: int,
    ) -> tuple[Any, Best | None]:
        """Return and record the scores that ranks ``average``, and return the best score."""
        self._require_between_rounds()
        require_kind("name", name, str)
        require_kind("higher_is_better", higher_is_better, bool)
        require_best(best, patience)
        means = average()
        self._record_scores(means, name, higher_is_better, best, patience)
        return means.get("", means), self.best

    def _choose_help(self, score: ScoreOf, loader: Iterable[Any], same_loader: bool) -> Help | None:
        """Return what a member does for its leader's evaluation; None on a rank."""
        if self._follows is None:
            return None
        return partial(self._follows.help, score, loader, same_loader)

    def _record_scores(
        self,
        means: Mapping[str, float],
        name: str,
        higher: bool,
        path: str | Path,
        patience: int,
    ) -> None:
        """Record scores, with ``name`` for a single one; save the network if the first is the best.
        Collective."""
        # A single score has an empty key.
        named = {key or name: mean for key, mean in means.items()}
        recorded_score = self._scores.keep(named, self._scoring.examples, higher)
        if self.summary and self._record:
            self.summary = self._record.add_score(recorded_score)
        if path or patience:
            first = next(iter(named))
            self._watch_best(first, named[first], higher, path, patience)

    def _require_between_rounds(self) -> None:
        if self._in_rounds and self._round and self._round.under_way:
            raise ConfigError(
                "evaluate is called inside a round. Call it after `for batch in round.take(...)`."
            )

    def _watch_best(
        self, name: str, score: float, higher: bool, path: str | Path, patience: int
    ) -> None:
        """Save the network if its score is the best; end the run if it has long not been.
        Collective."""
        # Ranks may differ in the last bit of a score; all must decide the same.
        score = self.communicator.broadcast_from_root(score)
        rounds = self.training.rounds_done
        self.best = best = self._bests.take(name, rounds, score, higher, patience)
        if path and best.round == rounds:
            file = self.folder / path
            if file.suffix in TORCH:
                self.export(file)
            else:
                self.save(file)
        if best.exhausted and self._in_rounds:
            self.note(describe_end(best, name))
            self.end()

    @answered
    def save(self, path: str | Path) -> Path:
        """Save the network in a file like ``network.h5``. Collective. Raises ConfigError if batch
        normalisations have no moments, DivergedError, OutputError."""
        training = self.training
        path = Path(path)
        self._together("save")
        self._scoring.require_calibrated()
        place = look_for(path.parent, self.communicator)
        parallel = all(self.communicator.allgather(has_parallel_hdf5()))
        writer = choose(training.run.checkpoint.writer, parallel, place.unseen)
        header, pieces, refusal = training.collect_state()
        commit(path, header, pieces, writer, self.communicator, refusal)
        return path

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """Return the whole network on rank 0, as a state dict for its class; None on the other
        ranks. Collective.

        Rank 0 has the whole network in memory, other ranks one parameter at a time. Weights include
        the factors of sums over dealt units. Raises ConfigError if the class cannot express them,
        or if batch normalisations lack moments.
        """
        # Members need not get the network.
        state: dict[str, torch.Tensor] | None = None

        def collect() -> None:
            nonlocal state
            state = self._collect_state()

        self.place.answer("state_dict", collect)
        return state

    def _collect_state(self) -> dict[str, torch.Tensor] | None:
        self._together("state_dict")
        require_one_network(self.training.method, self.training.architecture.name)
        self._scoring.require_calibrated()
        return collect_state_dict(self.training)

    @answered
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
        architecture = (self._follows or self.training).architecture
        counted = cost(self.run, architecture, self.communicator.size)
        return {
            "round_bytes": counted.round_bytes,
            "flops_per_local_step": max(part.flops.products for part in counted.parts),
            "memory_of_largest_rank": asdict(counted.largest.memory),
        }
