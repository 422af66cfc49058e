"""Logits that allow for the classes that a rank's own examples have (arXiv 2007.07314; between ranks arXiv 2209.00189).

Ranks whose examples are of other classes each pull all logits towards their own. With the log of each class's share
of its examples added to the logits in the loss, a rank learns what tells classes apart and not how many of them it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from istmpi.data.batches import Batches
from istmpi.errors import ConfigError
from istmpi.exits import outputs_of
from istmpi.tasks import TASKS

if TYPE_CHECKING:
    from istmpi.exits import Outputs

ABSENT = -1e4
"""The value in place of the log of 0: a class of which a rank has no example takes no part in its losses."""


def require_usable(strength: float, task: str, method: str) -> None:
    """Refuse an adjustment of logits for a run that cannot have one."""
    if strength and not TASKS[task].one_class:
        raise ConfigError(f"train.logit_adjustment = {strength:g} needs classes, which these data lack. Leave it out.")
    if strength and method == "codistillation":
        raise ConfigError(
            f"train.logit_adjustment = {strength:g} does not go with codistillation, whose ranks also learn from each "
            f"other's predictions. Leave it out, or use another method."
        )


class LogitAdjustment:
    """The term added to the logits of a rank's batches: ``strength`` times the log of each class's share of them."""

    def __init__(self, batches: Batches, strength: float):
        self._batches, self._strength = batches, strength
        self._added: torch.Tensor | None = None

    def __call__(self, outputs: Outputs) -> Outputs:
        if not self._strength:
            return outputs
        adjusted = [logits + self._added_to(logits) for logits in outputs_of(outputs)]
        return adjusted if isinstance(outputs, list | tuple) else adjusted[0]

    def _added_to(self, logits: torch.Tensor) -> torch.Tensor:
        if self._added is None:
            labels = self._batches.labels
            with np.errstate(divide="ignore"):
                shares = np.log(np.bincount(labels, minlength=logits.shape[1]) / len(labels))
            self._added = torch.from_numpy(self._strength * np.maximum(shares, ABSENT)).to(logits)
        return self._added
