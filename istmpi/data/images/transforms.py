"""Random changes of training images by names of torchvision's, as ``RandomRotation(15)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from istmpi import rng
from istmpi.code import short
from istmpi.errors import ConfigError, did_you_mean


@cache
def transform(text: str) -> Callable[[Any], Any]:
    """Return the transform of ``torchvision.transforms.v2`` that a name with plain arguments makes; ConfigError."""
    subject = f"data.transforms: {text!r}"
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: it belongs to another torch
        raise ConfigError(
            f"{subject} needs torchvision, which cannot be imported ({short(error)}). Install the one for your torch, "
            f"from the index that torch came from: pip install torchvision."
        ) from error
    try:
        call = ast.parse(text, mode="eval").body
        name, given, named = (call.func, call.args, call.keywords) if isinstance(call, ast.Call) else (call, [], [])
        values = [*map(ast.literal_eval, given)]
        by_name, name = {each.arg: ast.literal_eval(each.value) for each in named}, name.id
    except (SyntaxError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{subject} must be a name with plain arguments, as RandomRotation(15).") from error
    kinds = {name: kind for name, kind in vars(v2).items() if isinstance(kind, type) and issubclass(kind, v2.Transform)}
    if name not in kinds:
        raise ConfigError(f"{subject} is no transform of torchvision.transforms.v2{did_you_mean(name, kinds)}")
    try:
        return kinds[name](*values, **by_name)
    except Exception as error:
        raise ConfigError(f"{subject} cannot be made: {short(error)}.") from error


def transformed(names: Sequence[str], images: np.ndarray, key: int) -> np.ndarray:
    """Return a key's version of images ``[b, channels, height, width]``, as the data have them; each draws its own."""
    import torch

    from istmpi.data.callable.drawing import drawing

    steps, changed = [transform(name) for name in names], np.empty_like(images)
    with drawing() as seed:
        for number, image in enumerate(images):
            seed(rng.key(key, "transforms", number))
            before = after = torch.from_numpy(image)
            try:
                for step in steps:
                    after = step(after)
                if (after.shape, after.dtype) != (before.shape, before.dtype):
                    raise ValueError(f"{[*before.shape]} {before.dtype} becomes {[*after.shape]} {after.dtype}")
            except Exception as error:
                raise ConfigError(f"data.transforms = {[*names]} fail on an image: {short(error)}.") from error
            changed[number] = after.numpy()
    return changed
