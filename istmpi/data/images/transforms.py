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
    kinds = {name: kind for name, kind in vars(v2).items() if isinstance(kind, type) and issubclass(kind, v2.Transform)}
    try:
        call = ast.parse(text, mode="eval").body
        name, arguments, named = (call.func, call.args, call.keywords) if isinstance(call, ast.Call) else (call, [], [])
        values = [ast.literal_eval(each) for each in arguments]
        by_name = {each.arg: ast.literal_eval(each.value) for each in named}
        name = name.id
    except (SyntaxError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{subject} must be a name with plain arguments, as RandomRotation(15).") from error
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

    changed = []
    with drawing() as seed:
        for number, image in enumerate(images):
            seed(rng.key(key, "transforms", number))
            tensor = torch.from_numpy(np.ascontiguousarray(image))
            for name in names:
                try:
                    tensor = transform(name)(tensor)
                except ConfigError:
                    raise
                except Exception as error:
                    raise ConfigError(f"data.transforms: {name!r} fails on an image: {short(error)}.") from error
            kind = f"{tuple(tensor.shape)} of {tensor.dtype}".replace("torch.", "")
            if kind != f"{image.shape} of {image.dtype}":
                raise ConfigError(
                    f"data.transforms = {[*names]} make {kind} of an image {image.shape} of {image.dtype}. Give some "
                    f"that keep shape and type."
                )
            changed.append(tensor.numpy())
    return np.stack(changed)
