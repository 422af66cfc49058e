"""A schedule of a user's optimizer that follows the plan of the run: by name, as `istmpi train` has
it, or a function of the fraction of the run."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from istmpi.code import calling, shown
from istmpi.errors import ConfigError
from istmpi.optim.schedules import rate_at
from istmpi.optim.spec import OptimizerSettings

OwnSchedule = str | Callable[..., Any]
FindPlace = Callable[[int], tuple[float, int]]
"""Returns a local step's number in the plan of the run, and the plan's number of local steps."""
READ = ("warm_up", "least_lr", "milestones", "decay")
"""The settings that schedules read."""


def read_factor(schedule: OwnSchedule | None) -> Callable[[float], float] | None:
    """Return ``schedule`` if it is a function with the single parameter ``fraction``; otherwise
    None."""
    if not callable(schedule):
        return None
    try:
        names = [*inspect.signature(schedule).parameters]
    except (TypeError, ValueError):
        # Some functions of compiled libraries have no signature.
        return None
    return schedule if names == ["fraction"] else None


@dataclass(frozen=True)
class Curve:
    """The learning rate of each parameter group over the local steps of the run's plan.

    ``factor``: a function of the fraction of the run that is done, 0 to 1, whose result multiplies
    a group's own rate after the warm-up; None for the schedule of the ``settings``.
    """

    settings: OptimizerSettings
    factor: Callable[[float], float] | None
    find_place: FindPlace

    def rate(self, lr: float, step: int) -> float:
        """Return the rate of a group whose own rate is ``lr``. Raises ConfigError for a wrong
        factor, or a least rate above ``lr``."""
        settings: Any = self.settings
        if settings.least_lr > lr:
            raise ConfigError(
                f"least_lr = {settings.least_lr:g} is above the learning rate {lr:g} of a group."
            )
        planned_step, steps = self.find_place(step)
        rate = rate_at(replace(settings, lr=lr), planned_step, steps)
        if self.factor is None or planned_step < settings.warm_up:
            return rate
        with calling("schedule"):
            factor = self.factor(planned_step / max(steps, 1))
        if not isinstance(factor, int | float) or not isfinite(factor) or factor < 0:
            raise ConfigError(
                f"schedule returns {shown(factor)} at local step {step + 1}; it must be a number "
                "of at least 0, by which the learning rate is multiplied."
            )
        return rate * factor
