"""Scores the full network by a user's function, and calibrates batch normalisations with it."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import numpy as np
from torch import nn

from istmpi import rng
from istmpi.data.callable.split import control_random_numbers
from istmpi.errors import ConfigError, DivergedError, IstmpiError
from istmpi.evaluation.blocks import AddedUp, SharedBlocks
from istmpi.evaluation.full import FullNetwork
from istmpi.foreign import MOST
from istmpi.program.guard import Guard, require_on
from istmpi.program.loaders import share_batches
from istmpi.program.passes import (
    Passes,
    ScoreOf,
    Sums,
    add_sums,
    choose_batches,
    join_parts,
    require_examples,
    to_device,
)
from istmpi.training.loop import Training


class Scoring:
    """Computes mean scores of the full network, and remembers the last loader to calibrate on.
    Collective."""

    def __init__(self, training: Training, guard: Guard, note: Callable[[str], None]):
        self._training = training
        self._communicator = training.communicator
        self._guard = guard
        self._note = note
        self._noted = False
        self._calibration: tuple[ScoreOf, Iterable[Any]] | None = None
        self.examples = 0
        """The number of examples of the last scores, over all ranks."""

    @property
    def _network(self) -> FullNetwork | SharedBlocks:
        """The network to score: subnets that are added up, or the full network."""
        training = self._training
        if self._sums and not isinstance(training.evaluator.network, SharedBlocks):
            training.arrange(0)
        return training.evaluator.network

    @property
    def _sums(self) -> bool:
        return self._training.method.spec.sums_outputs

    @property
    def _module(self) -> nn.Module:
        """The network as the user's score takes it."""
        network = self._network
        if isinstance(network, SharedBlocks):
            return AddedUp(network)
        return network.module

    def average(
        self,
        score: ScoreOf,
        loader: Iterable[Any],
        calibrate: Iterable[Any] | None,
        same_loader: bool,
    ) -> dict[str, float]:
        """Return each score's mean by its name ("" for a single score). Errors are as for
        `Distributed.evaluate`."""
        training = self._training
        if self._sums and not same_loader:
            raise ConfigError(
                f"same_loader = False does not go with {training.method.spec.name}: its ranks pass "
                "the same examples. Give all ranks the same loader."
            )
        network = self._network
        with training.clock("evaluate"):
            if not self._sums:
                training.method.publish()
            with training.store.borrowing(training.method.values_on_all_ranks()):
                self._load(score, calibrate)
            module = self._module
            self._guard.watch(
                module,
                lambda _, *inputs: require_on(
                    network.device, "the network to evaluate is", *inputs
                ),
            )
            sums = self._add_up(module, score, loader, same_loader)
            if self._sums and self._communicator.rank:
                # Every rank has the sums of all examples.
                sums = {}
            network.finish()
            network.release()
            return self._average_over_ranks(sums)

    def _load(self, score: ScoreOf, calibrate: Iterable[Any] | None) -> None:
        """Load the present weights, and moments of batch normalisations: new ones if ``calibrate``
        has examples. Collective."""
        if calibrate is not None and self._training.architecture.batch_norms:
            self._calibration = score, calibrate
            self._calibrate(score, calibrate)
        else:
            self.require_calibrated()
            self._network.load_moments(self._network.moments)

    def _add_up(
        self, module: nn.Module, score: ScoreOf, loader: Iterable[Any], same_loader: bool
    ) -> Sums:
        """Return the sums over this rank's batches; empty without a batch."""
        # Ranks with loaders of their own read all batches, as a single rank does.
        rank = 0
        ranks = 1
        if same_loader and not self._sums:
            rank = self._communicator.rank
            ranks = self._communicator.size
        network = self._network
        seed = self._training.method.seed
        passes = Passes(module, score, network.device, self._note_once)
        helpers = self._training.evaluator.helpers
        if helpers is None or helpers.load(network) == 1:
            return passes.add_up(loader, rank, ranks, seed)
        place, places = choose_batches(rank, ranks, self._training.group)
        part = passes.try_to_add_up(loader, place, places, seed)
        return join_parts([part, *helpers.collect()])

    def _note_once(self, message: str) -> None:
        if not self._noted:
            self._noted = True
            self._note(message)

    def _average_over_ranks(self, sums: Sums) -> dict[str, float]:
        """Return each score's mean over the examples of all ranks. Collective."""
        # A rank without a batch has no sums; that is an error only if all have none.
        per_rank = [values for values in self._communicator.allgather(sums) if values]
        with self._communicator.agreed():
            if not per_rank:
                raise ConfigError("the loader to evaluate on has no batch.")
            totals = add_sums(per_rank)
            require_examples(totals)
        self.examples = int(next(iter(totals.values()))[1])
        means = {name: float(total / count) for name, (total, count) in totals.items()}
        self._require_recordable(means)
        return means

    def _require_recordable(self, means: dict[str, float]) -> None:
        """Raise ConfigError for a score that is too large, DivergedError for one that is not
        finite."""
        large = {name: mean for name, mean in means.items() if MOST < abs(mean) < np.inf}
        error: IstmpiError | None = None
        if large:
            error = ConfigError(
                # A single score has an empty name, and is shown without it.
                f"the score is {large.get('', large)}; a record holds at most {MOST:g}. Scale it."
            )
        elif not np.isfinite([*means.values()]).all():
            error = DivergedError(
                f"the score of the full network is not finite {self._training.position}: "
                f"{means.get('', means)}."
            )
        if error:
            # All ranks have the same means, so all raise, and one line is enough.
            error.everywhere = True
            raise error

    def _calibrate(self, score: ScoreOf, loader: Iterable[Any]) -> None:
        """Set the moments of batch normalisations by a batch of each rank. Collective."""
        training = self._training
        communicator = self._communicator
        seed = training.method.seed
        # A rank without a batch of its own takes another's: there may be fewer than ranks.
        batches = chain(
            share_batches(loader, communicator.rank, communicator.size, seed),
            share_batches(loader, 0, 1, seed),
        )
        with control_random_numbers() as draw:
            draw(rng.key(seed, "calibrate", communicator.rank, training.rounds_done))
            nothing = object()
            batch = next(batches, nothing)
            if batch is nothing:
                raise ConfigError("calibrate: the loader has no batch.")
        network = self._network
        network.calibrate_by(lambda: score(self._module, to_device(batch, network.device)))
        # The score may leave out a layer, whose moments then stay unknown.
        # All ranks must find the same, also where each has the moments of its own subnet.
        if None not in network.collect_moments().values():
            training.calibrated_after = training.rounds_done

    def calibrate_again(self) -> bool:
        """Calibrate again on the last loader, if any; return True if the network's moments are
        known."""
        training = self._training
        if not training.architecture.batch_norms or training.calibrated:
            return True
        # Rounds since the last calibration have changed the weights, and with them the moments.
        if self._calibration:
            training.method.publish()
            self._calibrate(*self._calibration)
            self._network.release()
        return training.calibrated

    def require_calibrated(self) -> None:
        if not self.calibrate_again():
            raise ConfigError(
                "the network has batch normalisations, whose moments are unknown after this round. "
                "Call evaluate with calibrate=, a loader of training data, and a score that passes "
                "its batches through the network."
            )
