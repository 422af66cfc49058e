"""Scores the full network by a user's function, and calibrates batch normalisations with it."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from istmpi import rng
from istmpi.amounts import amounts_in
from istmpi.code import calling
from istmpi.data.callable.split import control_random_numbers
from istmpi.devices import HOST
from istmpi.errors import ConfigError, DivergedError, IstmpiError
from istmpi.evaluation.blocks import AddedUp, SharedBlocks
from istmpi.evaluation.full import FullNetwork
from istmpi.foreign import MOST
from istmpi.program.guard import Guard, require_on
from istmpi.program.loaders import count_examples, share_batches
from istmpi.training.loop import Training
from istmpi.trees import list_tensors, map_tensors

ScoreOf = Callable[[nn.Module, Any], Any]
Sums = dict[str, np.ndarray]
"""The sum over examples of each score, and the number of examples, ``[2]``."""


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
                f"same_loader = False does not go with {training.run.method.name}: its ranks pass "
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
        sums: Sums = {}
        with torch.no_grad():
            for batch in share_batches(loader, rank, ranks, self._training.run.train.seed):
                with calling("the score"):
                    returned = score(module, self._to_device(batch))
                amounts = amounts_in(returned, count_examples(batch), "the score")
                if not sums:
                    sums = {name: np.zeros(2) for name in amounts}
                # A pair has a count of its own; only a mean is weighted by the rows.
                elif all(amount.is_mean for amount in amounts.values()):
                    self._note_unequal_rows(batch)
                if sums.keys() != amounts.keys():
                    raise ConfigError(
                        f"the score has {[*amounts]} for a batch, but {[*sums]} for earlier "
                        "batches."
                    )
                for name, amount in amounts.items():
                    sums[name] += np.array([amount.total, amount.count])
        return sums

    def _to_device(self, batch: Any) -> Any:
        """Return a batch with its tensors on the network's device."""
        device = self._network.device
        if device == HOST:
            return batch
        # A batch of another type, such as a graph's, moves itself.
        is_tree = type(batch) in (dict, list, tuple) or isinstance(batch, torch.Tensor)
        if not is_tree and hasattr(batch, "to"):
            return batch.to(device)
        return map_tensors(lambda x: x.to(device) if x.device == HOST else x, batch)

    def _note_unequal_rows(self, batch: Any) -> None:
        rows = {len(tensor) for tensor in list_tensors(batch) if tensor.ndim}
        if len(rows) > 1 and not self._noted:
            self._noted = True
            self._note(
                "the tensors of a batch to evaluate have different first axes: the first tensor's "
                "rows count as examples. Put the batch's axis first, or return a sum and a count."
            )

    def _average_over_ranks(self, sums: Sums) -> dict[str, float]:
        """Return each score's mean over the examples of all ranks. Collective."""
        # A rank without a batch has no sums; that is an error only if all have none.
        per_rank = [values for values in self._communicator.allgather(sums) if values]
        with self._communicator.agreed():
            if not per_rank:
                raise ConfigError("the loader to evaluate on has no batch.")
            totals = _add_ranks(per_rank)
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
        seed = training.run.train.seed
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
        network.calibrate_by(lambda: score(self._module, self._to_device(batch)))
        # The score may leave out a layer, whose moments then stay unknown.
        if None not in network.moments.values():
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


def _add_ranks(per_rank: list[Sums]) -> Sums:
    """Return the sums over all ranks. Raises ConfigError if ranks have other scores, or no
    examples."""
    names = [*per_rank[0]]
    for sums in per_rank:
        if set(sums) != set(names):
            raise ConfigError(
                f"the score has {names} on a rank and {[*sums]} on another. Return equal names."
            )
    totals = {name: np.zeros(2) for name in names}
    for sums in per_rank:
        for name in names:
            totals[name] += sums[name]
    for name, (_, count) in totals.items():
        if not count:
            raise ConfigError(
                f"the score {name or '(a pair)'} has 0 examples in all batches; return at least 1."
            )
    return totals
