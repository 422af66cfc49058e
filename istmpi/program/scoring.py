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
from istmpi.data.callable.split import drawing
from istmpi.devices import HOST
from istmpi.errors import ConfigError, DivergedError
from istmpi.foreign import MOST
from istmpi.program.round import require_on
from istmpi.program.streams import examples_in, own_batches
from istmpi.training.loop import Training
from istmpi.trees import mapped, tensors_of

ScoreOf = Callable[[nn.Module, Any], Any]


class Scoring:
    """Computes mean scores of the full network, and remembers the last loader to calibrate on.
    Collective."""

    def __init__(self, job: Any, training: Training):
        self._job, self._training, self._communicator = job, training, training.communicator
        self._noted = False
        self._calibration: tuple[ScoreOf, Iterable[Any]] | None = None
        self.examples = 0

    def means(
        self,
        score: ScoreOf,
        loader: Iterable[Any],
        calibrate: Iterable[Any] | None,
        same_loader: bool,
    ) -> dict[str, float]:
        """Return each score's mean by its name ("" for a single score). Errors are as for
        `Distributed.evaluate`."""
        training, communicator = self._training, self._communicator
        full, sums = training.evaluator.network, {}
        with training.clock("evaluate"):
            training.method.publish()
            if calibrate is not None and training.architecture.batch_norms:
                self._calibration = score, calibrate
                self._calibrate()
            else:
                self.require_calibrated()
                full.load_moments(full.moments)
            share = (communicator.rank, communicator.size) if same_loader else (0, 1)
            self._job.guard.watch(
                full.module,
                lambda _, *given: require_on(full.device, "the network to evaluate is", *given),
            )
            with torch.no_grad():
                for batch in own_batches(loader, *share, training.run.train.seed):
                    with calling("the score"):
                        returned = score(full.module, self._here(batch))
                    amounts = amounts_in(returned, examples_in(batch), "the score")
                    values = {
                        name: np.array([each.total, each.count]) for name, each in amounts.items()
                    }
                    if sums and all(each.is_mean for each in amounts.values()):
                        self._look_at(batch)
                    if sums and sums.keys() != values.keys():
                        raise ConfigError(
                            f"the score has {[*values]} for a batch, but {[*sums]} for earlier "
                            "batches."
                        )
                    sums = {key: sums.get(key, 0.0) + value for key, value in values.items()}
            full.finish()
            full.release()
            return self._over_ranks(sums)

    def _here(self, batch: Any) -> Any:
        device = self._training.evaluator.network.device
        if device == HOST:
            return batch
        if (
            type(batch) not in (dict, list, tuple)
            and not isinstance(batch, torch.Tensor)
            and hasattr(batch, "to")
        ):
            return batch.to(device)
        return mapped(lambda x: x.to(device) if x.device == HOST else x, batch)

    def _look_at(self, batch: Any) -> None:
        if not self._noted and len({len(each) for each in tensors_of(batch) if each.ndim}) > 1:
            self._noted = True
            self._job.note(
                "the tensors of a batch to evaluate have different first axes: the first tensor's "
                "rows count as "
                "examples. Put the batch's axis first, or return a sum and a count."
            )

    def _over_ranks(self, sums: dict[str, np.ndarray]) -> dict[str, float]:
        per_rank = [values for values in self._communicator.allgather(sums) if values]
        with self._communicator.agreed():
            if not per_rank:
                raise ConfigError("the loader to evaluate on has no batch.")
            names = [*per_rank[0]]
            if odd := [[*each] for each in per_rank if {*each} != {*names}]:
                raise ConfigError(
                    f"the score has {names} on a rank and {odd[0]} on another. Return equal names."
                )
            totals = {key: sum(values[key] for values in per_rank) for key in names}
            for key, (_, count) in totals.items():
                if not count:
                    raise ConfigError(
                        f"the score {key or '(a pair)'} has 0 examples in all batches; return at "
                        "least 1."
                    )
        self.examples = int(totals[names[0]][1])
        means = {key: float(total / count) for key, (total, count) in totals.items()}
        large = {key: value for key, value in means.items() if MOST < abs(value) < np.inf}
        if large:
            error = ConfigError(
                f"the score is {large.get('', large)}; a record holds at most {MOST:g}. Scale it."
            )
            error.everywhere = True
            raise error
        if not np.isfinite([*means.values()]).all():
            error = DivergedError(
                f"the score of the full network is not finite {self._training.position}: "
                f"{means.get('', means)}."
            )
            error.everywhere = True
            raise error
        return means

    def _calibrate(self) -> None:
        (score, loader), training, communicator = (
            self._calibration,
            self._training,
            self._communicator,
        )
        full, seed = training.evaluator.network, training.run.train.seed
        shares = (
            (communicator.rank, communicator.size),
            (0, 1),
        )  # it may have fewer batches than there are ranks
        with drawing() as draw:
            draw(rng.key(seed, "calibrate", communicator.rank, training.rounds_done))
            batches = chain.from_iterable(own_batches(loader, *share, seed) for share in shares)
            if (batch := next(batches, None)) is None:
                raise ConfigError("calibrate: the loader has no batch.")
        full.calibrate_by(lambda: score(full.module, self._here(batch)))
        if None not in full.moments.values():
            training.calibrated_after = training.rounds_done

    def calibrated_again(self) -> bool:
        """Calibrate again on the last loader, if any; return True if the network's moments are
        known."""
        training = self._training
        if not training.architecture.batch_norms or training.calibrated:
            return True
        if self._calibration:
            training.method.publish()
            self._calibrate()
            training.evaluator.network.release()
        return training.calibrated

    def require_calibrated(self) -> None:
        if not self.calibrated_again():
            raise ConfigError(
                "the network has batch normalisations, whose moments are unknown after this round. "
                "Call evaluate with "
                "calibrate=, a loader of training data, and a score that passes its batches "
                "through the network."
            )
