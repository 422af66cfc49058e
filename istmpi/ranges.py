"""Which values the settings of a run may have, beside their types."""

import math
from collections.abc import Iterator
from typing import Any

from istmpi.errors import ConfigError, did_you_mean

MOST_OF_NAME = 200
"""Bytes of a run's name: it names a folder, with a number behind it."""
MOST_OF_ARGUMENT = 2**64
"""No number that a network's constructor is given is larger."""

_CHOICES = {
    "data.placement": ("shared", "sharded", "by-label", "local"),
    "method.optimizer_state": ("reset", "carry"),
    "train.device": ("auto", "cpu", "cuda"),
    "model.dtype": ("float32", "float64"),
    "checkpoint.writer": ("auto", "mpio", "direct"),
}

_AT_LEAST = {
    "data.crop": 0,
    "data.cutout": 0,
    "method.local_steps": 1,
    "method.epochs": 1,
    "method.threshold": 0,
    "method.burn_in": 0,
    "train.rounds": 1,
    "train.max_minutes": 0,
    "train.batch": 1,
    "train.seed": 0,
    "train.threads": 0,
    "evaluate.every": 0,
    "evaluate.batch": 1,
    "evaluate.calibration_examples": 2,
    "checkpoint.every": 0,
    "checkpoint.keep": 1,
    "checkpoint.max_failures": 1,
    "optimizer.weight_decay": 0,
    "optimizer.warm_up": 0,
}

_AT_MOST = {
    "train.seed": 2**64 - 1,
    "train.threads": 1024,  # not this host's cores, for a run is repeated elsewhere; with very many torch crashes
}

_INTERVALS = {
    "data.alpha": (0, float("inf"), "()"),
    "optimizer.lr": (0, float("inf"), "()"),
    "optimizer.momentum": (0, 1, "[)"),
    "method.outer_lr": (0, float("inf"), "()"),
    "method.outer_momentum": (0, 1, "[)"),
    "model.dropout": (0, 1, "[)"),
    "method.redeal": (0, 1, "[]"),
    "method.fraction": (0, 1, "(]"),
}


def check(name: str, value: Any, source: str) -> None:
    """Refuse a value out of the range of its setting, which has a dotted ``name``; the ConfigError tells ``source``."""
    where = f"{source}: {name} = {value!r}"
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigError(f"{where} is not known{did_you_mean(value, _CHOICES[name])}")
    if name in _AT_LEAST and not value >= _AT_LEAST[name]:
        raise ConfigError(f"{where} must be at least {_AT_LEAST[name]}.")
    if name in _AT_MOST and not value <= _AT_MOST[name]:
        raise ConfigError(f"{where} must be at most {_AT_MOST[name]}.")
    if name in _INTERVALS:
        low, high, (left, right) = _INTERVALS[name]
        if not ((value > low or (left == "[" and value == low)) and (value < high or (right == "]" and value == high))):
            raise ConfigError(f"{where} must lie in {left}{low}, {high}{right}.")
    numbers = value if isinstance(value, tuple) else (value,)
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        raise ConfigError(f"{where} must be finite.")
    if name == "model.arguments":
        for argument, given in value.items():
            if not all(abs(number) <= MOST_OF_ARGUMENT for number in _numbers(given)):
                raise ConfigError(f"{source}: model.{argument} must be finite, and its numbers below 2^64.")
    if name == "name" and (value in ("", ".", "..") or "/" in value or len(value.encode()) > MOST_OF_NAME):
        raise ConfigError(f"{where} names the folder of the run in runs/: it must be a name without /, not too long.")
    if name == "model.hidden" and not (value and all(width >= 1 for width in value)):
        raise ConfigError(f"{where} must name at least one hidden layer, each at least one unit wide.")


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in a value as TOML has it, lists and tables included."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)
