"""Schedules of the learning rate after its warm-up, over all local steps of a run; `SCHEDULES`
lists them.

A schedule's functions take the optimizer's settings and the run's number of steps; ``rate`` also
takes a step's number. Steps are numbered from 0, through all rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Any

from istmpi.errors import ConfigError
from istmpi.settings import shown

COOL_DOWN, RISE = 0.2, 0.3
"""The last fraction of a run, in which warm-up-stable-decay falls, and the first, in which
one-cycle rises."""
BEGIN, END = 25, 25e4
"""Divisors of lr that give one-cycle's first rate and, without least_lr, its last rate."""


@dataclass(frozen=True)
class Schedule:
    """A schedule: a step's rate, a description in words, the step by which a warm-up must be over,
    and settings."""

    rate: Callable[[Any, int, int], float]
    words: Callable[[Any, int], str]
    moves_at: Callable[[Any, int], int] = lambda settings, steps: steps
    reads: tuple[str, ...] = ("least_lr",)


def _falling(
    shape: Callable[[float], float], how: str, since: Callable[[Any, int], int]
) -> Schedule:
    """Return a schedule that falls from lr to least_lr, from step ``since`` on, as ``shape`` falls
    from 1 to 0."""

    def rate(settings: Any, step: int, steps: int) -> float:
        part = max(step - since(settings, steps), 0) / max(steps - since(settings, steps), 1)
        return settings.least_lr + (settings.lr - settings.least_lr) * shape(part)

    def words(settings: Any, steps: int) -> str:
        last = steps - since(settings, steps)
        return f"falling to {settings.least_lr:g} {how} over the last {last:,} local steps"

    return Schedule(rate, words, since)


def _half_cosine(part: float) -> float:
    return (1 + cos(pi * part)) / 2


def _falls(settings: Any, steps: int) -> list[int]:
    return [round(at * steps) for at in settings.milestones]


def _step(settings: Any, step: int, steps: int) -> float:
    return max(
        settings.lr * settings.decay ** sum(step >= at for at in _falls(settings, steps)),
        settings.least_lr,
    )


def _step_in_words(settings: Any, steps: int) -> str:
    shares = " and ".join(f"{at:.4g}" for at in settings.milestones)
    at = ", ".join(f"{step:,}" for step in _falls(settings, steps))
    return f"times {settings.decay:g} after {shares} of the run (local steps {at} of {steps:,})"


def _one_cycle(settings: Any, step: int, steps: int) -> float:
    top, high = RISE * steps - 1, settings.lr
    low, part = high / BEGIN, 1 - step / top
    if step > top:
        low, part = settings.least_lr or high / END, (step - top) / (steps - 1 - top)
    return low + (high - low) * _half_cosine(part)


_STEPS = "milestones", "decay"

SCHEDULES = {
    "constant": Schedule(
        lambda settings, step, steps: settings.lr, lambda settings, steps: "", reads=()
    ),
    "cosine": _falling(_half_cosine, "along a cosine", lambda settings, steps: settings.warm_up),
    "linear": _falling(
        lambda part: 1 - part, "in equal steps", lambda settings, steps: settings.warm_up
    ),
    "step": Schedule(
        _step,
        _step_in_words,
        lambda settings, steps: _falls(settings, steps)[0],
        (*_STEPS, "least_lr"),
    ),
    "warm-up-stable-decay": _falling(
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


def rate_at(settings: Any, step: int, steps: int) -> float:
    """Return a local step's learning rate: it rises to lr in the warm-up (as LinearLR), then
    follows the schedule."""
    if step < settings.warm_up:
        return settings.lr * ((step + 1) / settings.warm_up)
    return SCHEDULES[settings.schedule].rate(settings, step, steps)


def in_words(settings: Any, steps: int) -> str:
    warm = f"warmed up over {settings.warm_up:,} of {steps:,} local steps" * bool(settings.warm_up)
    return ", ".join(
        filter(
            None, (f"{settings.lr:g}", warm, SCHEDULES[settings.schedule].words(settings, steps))
        )
    )


def require_effective(settings: Any) -> None:
    for name in {"least_lr", *_STEPS} - {*SCHEDULES[settings.schedule].reads}:
        if (value := getattr(settings, name)) != getattr(type(settings), name):
            raise ConfigError(
                f"optimizer.{name} = {shown(value)} has no effect with schedule = {settings.schedule!r}. Leave it out."
            )


def require_usable(settings: Any, steps: int) -> None:
    warm_up, moves_at = settings.warm_up, SCHEDULES[settings.schedule].moves_at(settings, steps)
    if warm_up > steps:
        raise ConfigError(
            f"optimizer.warm_up = {warm_up} is more than the {steps:,} local steps of the run, which would never reach "
            f"optimizer.lr = {settings.lr}. Train more rounds, or warm up over fewer."
        )
    if warm_up > moves_at:
        raise ConfigError(
            f"optimizer.warm_up = {warm_up} goes beyond local step {moves_at:,} of {steps:,}, from which on schedule = "
            f"{settings.schedule!r} moves the rate itself. {'Warm up over fewer' if moves_at else 'Leave warm_up out'}."
        )
    if settings.least_lr > settings.lr:
        raise ConfigError(
            f"optimizer.least_lr = {settings.least_lr:g} is above optimizer.lr = {settings.lr:g}."
        )
