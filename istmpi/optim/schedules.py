"""Schedules of the learning rate after its warm-up, over all local steps of a run; `SCHEDULES`
lists them.

A schedule's functions take the optimizer's settings and the run's number of steps; ``rate`` also
takes a step's number. Steps are numbered from 0, through all rounds; the number has a fraction if
the run's ranks have changed (`istmpi.optim.course`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi

from istmpi.errors import ConfigError
from istmpi.optim.spec import OptimizerSettings
from istmpi.settings import shown

COOL_DOWN = 0.2
"""The last fraction of a run, in which warm-up-stable-decay falls."""
RISE = 0.3
"""The first fraction of a run, in which one-cycle rises."""
BEGIN = 25
"""The divisor of lr that gives one-cycle's first rate."""
END = 25e4
"""The divisor of lr that gives one-cycle's last rate, without least_lr."""


@dataclass(frozen=True)
class Schedule:
    """A schedule: a step's rate, a description in words, the step by which a warm-up must be over,
    and settings."""

    rate: Callable[[OptimizerSettings, float, int], float]
    words: Callable[[OptimizerSettings, int], str]
    moves_at: Callable[[OptimizerSettings, int], int] = lambda settings, steps: steps
    reads: tuple[str, ...] = ("least_lr",)


def _fall(
    shape: Callable[[float], float], how: str, since: Callable[[OptimizerSettings, int], int]
) -> Schedule:
    """Return a schedule that falls from lr to least_lr, from step ``since`` on, as ``shape`` falls
    from 1 to 0."""

    def rate(settings: OptimizerSettings, step: float, steps: int) -> float:
        # The fall may have no steps, so it counts as one at least.
        part = max(step - since(settings, steps), 0) / max(steps - since(settings, steps), 1)
        return settings.least_lr + (settings.lr - settings.least_lr) * shape(part)

    def words(settings: OptimizerSettings, steps: int) -> str:
        last = steps - since(settings, steps)
        return f"falling to {settings.least_lr:g} {how} over the last {last:,} local steps"

    return Schedule(rate, words, since)


def _half_cosine(part: float) -> float:
    return (1 + cos(pi * part)) / 2


def _list_falls(settings: OptimizerSettings, steps: int) -> list[int]:
    return [round(at * steps) for at in settings.milestones]


def _step(settings: OptimizerSettings, step: float, steps: int) -> float:
    falls = sum(step >= at for at in _list_falls(settings, steps))
    return max(settings.lr * settings.decay**falls, settings.least_lr)


def _describe_step(settings: OptimizerSettings, steps: int) -> str:
    shares = " and ".join(f"{at:.4g}" for at in settings.milestones)
    at = ", ".join(f"{step:,}" for step in _list_falls(settings, steps))
    return f"times {settings.decay:g} after {shares} of the run (local steps {at} of {steps:,})"


def _one_cycle(settings: OptimizerSettings, step: float, steps: int) -> float:
    """Return the rate of a rise to lr and a fall to least_lr, both along half a cosine."""
    # As in PyTorch's OneCycleLR, which counts its steps from 0.
    top = RISE * steps - 1
    high = settings.lr
    if step > top:
        low = settings.least_lr or high / END
        part = min((step - top) / (steps - 1 - top), 1.0)
    else:
        low = high / BEGIN
        part = 1 - step / top
    return low + (high - low) * _half_cosine(part)


_STEPS = "milestones", "decay"

SCHEDULES = {
    "constant": Schedule(
        lambda settings, step, steps: settings.lr, lambda settings, steps: "", reads=()
    ),
    "cosine": _fall(_half_cosine, "along a cosine", lambda settings, steps: settings.warm_up),
    "linear": _fall(
        lambda part: 1 - part, "in equal steps", lambda settings, steps: settings.warm_up
    ),
    "step": Schedule(
        _step,
        _describe_step,
        lambda settings, steps: _list_falls(settings, steps)[0],
        (*_STEPS, "least_lr"),
    ),
    "warm-up-stable-decay": _fall(
        lambda part: 1 - part,
        "in equal steps",
        lambda settings, steps: steps - round(COOL_DOWN * steps),
    ),
    "one-cycle": Schedule(
        _one_cycle,
        lambda settings, steps: f"up over {RISE:.0%} of {steps:,} local steps and down again",
        lambda *_: 0,
    ),
}


def rate_at(settings: OptimizerSettings, step: float, steps: int) -> float:
    """Return a local step's learning rate: it rises to lr in the warm-up (as LinearLR), then
    follows the schedule."""
    if step < settings.warm_up:
        # Above 0 from the first step on, which would otherwise be lost.
        return settings.lr * ((step + 1) / settings.warm_up)
    return SCHEDULES[settings.schedule].rate(settings, step, steps)


def describe(settings: OptimizerSettings, steps: int) -> str:
    """Return a run's learning rate in words: its value, warm-up and schedule."""
    words = [f"{settings.lr:g}"]
    if settings.warm_up:
        words.append(f"warmed up over {settings.warm_up:,} of {steps:,} local steps")
    fall = SCHEDULES[settings.schedule].words(settings, steps)
    if fall:
        words.append(fall)
    return ", ".join(words)


def require_effective(settings: OptimizerSettings) -> None:
    """Raise ConfigError for a setting that the schedule does not read."""
    for name in {"least_lr", *_STEPS} - {*SCHEDULES[settings.schedule].reads}:
        value = getattr(settings, name)
        # The class has the default, so another value was set on purpose.
        if value != getattr(type(settings), name):
            raise ConfigError(
                f"optimizer.{name} = {shown(value)} has no effect with schedule = "
                f"{settings.schedule!r}. Leave it out."
            )


def require_usable(settings: OptimizerSettings, steps: int) -> None:
    """Raise ConfigError for a warm-up or a least rate that does not fit ``steps`` local steps."""
    warm_up = settings.warm_up
    if warm_up > steps:
        raise ConfigError(
            f"optimizer.warm_up = {warm_up} is more than the {steps:,} local steps of the run, "
            f"which would never reach optimizer.lr = {settings.lr}. Train more rounds, or warm up "
            "over fewer."
        )
    moves_at = SCHEDULES[settings.schedule].moves_at(settings, steps)
    if warm_up > moves_at:
        cure = "Warm up over fewer" if moves_at else "Leave warm_up out"
        raise ConfigError(
            f"optimizer.warm_up = {warm_up} goes beyond local step {moves_at:,} of {steps:,}, from "
            f"which on schedule = {settings.schedule!r} moves the rate itself. {cure}."
        )
    if settings.least_lr > settings.lr:
        raise ConfigError(
            f"optimizer.least_lr = {settings.least_lr:g} is above optimizer.lr = {settings.lr:g}."
        )
