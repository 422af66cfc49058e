"""The inputs and the scores that a program gives, checked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from istmpi.errors import ConfigError
from istmpi.trees import Named, tensors_of


def require_class(network: Any) -> None:
    if not isinstance(network, type):
        raise ConfigError(
            f"the network is an instance of {type(network).__name__}. Give the class, and a dict of the constructor's "
            f"arguments."
        )


def inputs_of(example: Any) -> tuple[Any, ...]:
    """Return an example as a batch's inputs; ConfigError where it has no tensor."""
    if isinstance(example, Mapping):
        inputs: tuple[Any, ...] = (Named(example),)
    else:
        inputs = example if type(example) is tuple else (example,)
    if next(tensors_of(inputs), None) is None:
        raise ConfigError(f"example = {type(example).__name__}: give the inputs of a batch, tensors or trees of them.")
    return inputs


def sums_of(returned: Any, rows: int) -> tuple[dict[str, float], int]:
    """Return the sums of a batch's scores by their names, "" for a single one, and its number of examples."""
    if isinstance(returned, tuple) and len(returned) == 2:
        total, count = returned
        return {"": _number(total)}, int(_number(count))
    if isinstance(returned, Mapping):
        return {name: _number(value) * rows for name, value in returned.items()}, rows
    return {"": _number(returned) * rows}, rows


def _number(value: Any) -> float:
    with suppress(TypeError, ValueError, RuntimeError):
        return float(value)
    what = f"{value.numel()} numbers" if isinstance(value, torch.Tensor) else type(value).__name__
    raise ConfigError(f"the score is {what}; it must be one number for a batch, or a dict of named numbers.")
