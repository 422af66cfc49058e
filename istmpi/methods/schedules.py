"""Courses of the learning rate over the local steps of a run, behind its warm-up; a new one is an entry of `SCHEDULES`.

settings    those of the optimizer (`istmpi.config.sections.Optimizer`)
step        a local step, numbered from 0 through all rounds, behind the warm-up
steps       the local steps of the whole run, the warm-up included
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Any

from istmpi.errors import ConfigError

COOL_DOWN = 0.2
"""The last part of a run, in which warm-up-stable-decay falls."""
RISE = 0.3
"""The first part of a run, in which one-cycle rises."""
FROM, TO = 25, 25e4
"""lr divided by these is where one-cycle begins and, without a least rate, ends."""


@dataclass(frozen=True)
class Schedule:
    """A course: the rate of a step, the course in words, and the reason why a run cannot follow it; empty if it can."""

    rate: Callable[[Any, int, int], float]
    words: Callable[[Any, int], str]
    problem: Callable[[Any, int], str] = lambda settings, steps: ""


def falls(settings: Any, steps: int) -> list[int]:
    """Return the local steps at which ``step`` lets the rate fall."""
    return [round(at * steps) for at in settings.milestones]


def _between(high: float, low: float, part: float) -> float:
    return low + (high - low) * part


def _half_cosine(part: float) -> float:
    """Return the height of half a cosine from 1 to 0, this part of the way along it."""
    return (1 + cos(pi * part)) / 2


def _cosine(settings: Any, step: int, steps: int) -> float:
    part = (step - settings.warm_up) / max(steps - settings.warm_up, 1)
    return _between(settings.lr, settings.least_lr, _half_cosine(part))


def _linear(settings: Any, step: int, steps: int) -> float:
    return _between(settings.lr, settings.least_lr, (steps - step) / max(steps - settings.warm_up, 1))


def _step(settings: Any, step: int, steps: int) -> float:
    return max(settings.lr * settings.decay ** sum(step >= at for at in falls(settings, steps)), settings.least_lr)


def _cool_down(steps: int) -> int:
    return steps - round(COOL_DOWN * steps)


def _stable(settings: Any, step: int, steps: int) -> float:
    first = _cool_down(steps)
    return settings.lr if step < first else _between(settings.lr, settings.least_lr, (steps - step) / (steps - first))


def _one_cycle(settings: Any, step: int, steps: int) -> float:
    """Return the rate as PyTorch's OneCycleLR, by cosines."""
    top, end = RISE * steps - 1, steps - 1
    if step <= top:
        return _between(settings.lr, settings.lr / FROM, _half_cosine(1 - step / top))
    return _between(settings.lr, settings.least_lr or settings.lr / TO, _half_cosine((step - top) / (end - top)))


def _falls_within_the_warm_up(settings: Any, steps: int) -> str:
    for at, fall in zip(settings.milestones, falls(settings, steps)):
        if fall < settings.warm_up:
            return (
                f"optimizer.milestones: {at} is local step {fall:,} of {steps:,}, within the warm-up "
                f"(optimizer.warm_up = {settings.warm_up}). Warm up over fewer, or let the learning rate fall later."
            )
    return ""


def _no_stable_part(settings: Any, steps: int) -> str:
    if settings.warm_up <= _cool_down(steps):
        return ""
    return (
        f"optimizer.warm_up = {settings.warm_up} of {steps:,} local steps goes into the last {COOL_DOWN:.0%}, in which "
        f"warm-up-stable-decay falls. Warm up over fewer."
    )


def _warmed_up_twice(settings: Any, steps: int) -> str:
    if not settings.warm_up:
        return ""
    return (
        f"optimizer.warm_up = {settings.warm_up} does not go with one-cycle, which rises by itself over the first "
        f"{RISE:.0%} of the run. Leave one out."
    )


def _step_in_words(settings: Any, steps: int) -> str:
    shares = " and ".join(f"{at:.4g}" for at in settings.milestones)
    at = ", ".join(f"{step:,}" for step in falls(settings, steps))
    return f"times {settings.decay:g} behind {shares} of the run (local steps {at} of {steps:,})"


SCHEDULES: dict[str, Schedule] = {
    "constant": Schedule(lambda settings, step, steps: settings.lr, lambda settings, steps: ""),
    "cosine": Schedule(
        _cosine,
        lambda settings, steps: (
            f"falling to {settings.least_lr:g} along a cosine over the last {steps - settings.warm_up:,} local steps"
        ),
    ),
    "linear": Schedule(
        _linear,
        lambda settings, steps: (
            f"falling to {settings.least_lr:g} in equal steps over the last {steps - settings.warm_up:,} local steps"
        ),
    ),
    "step": Schedule(_step, _step_in_words, _falls_within_the_warm_up),
    "warm-up-stable-decay": Schedule(
        _stable,
        lambda settings, steps: (
            f"falling to {settings.least_lr:g} in equal steps over the last "
            f"{steps - _cool_down(steps):,} of {steps:,} local steps"
        ),
        _no_stable_part,
    ),
    "one-cycle": Schedule(
        _one_cycle,
        lambda settings, steps: (
            f"along cosines from {settings.lr / FROM:g} up, over {RISE:.0%} of {steps:,} local "
            f"steps, and down to {settings.least_lr or settings.lr / TO:g}"
        ),
        _warmed_up_twice,
    ),
}


def rate_at(settings: Any, step: int, steps: int) -> float:
    """Return the learning rate of a local step: up to lr in the warm-up as PyTorch's LinearLR, then the schedule."""
    if step < settings.warm_up:
        return settings.lr * ((step + 1) / settings.warm_up)
    return SCHEDULES[settings.schedule].rate(settings, step, steps)


def in_words(settings: Any, steps: int) -> str:
    warm = f"warmed up over {settings.warm_up:,} of {steps:,} local steps" * bool(settings.warm_up)
    words = f"{settings.lr:g}", warm, SCHEDULES[settings.schedule].words(settings, steps)
    return ", ".join(filter(None, words))


def require_usable(settings: Any, steps: int) -> None:
    """Raise ConfigError where a run of so many local steps would not get to what is said of the learning rate."""
    problem = ""
    if settings.warm_up > steps:
        problem = (
            f"optimizer.warm_up = {settings.warm_up} is more than the {steps:,} local steps of the run, which would "
            f"never reach optimizer.lr = {settings.lr}. Train more rounds, or warm up over fewer."
        )
    elif settings.least_lr > settings.lr:
        problem = f"optimizer.least_lr = {settings.least_lr:g} is above optimizer.lr = {settings.lr:g}. Lower it."
    if problem := problem or SCHEDULES[settings.schedule].problem(settings, steps):
        raise ConfigError(problem)
