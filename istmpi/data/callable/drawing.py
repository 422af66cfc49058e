"""Random numbers that a data set of the user's draws while an example is read: a function of a key alone.

Python's and NumPy's global states are set meanwhile, and restored. What torch draws in this thread comes from a
generator of its own instead, for a step that computes in another thread draws from the global one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

_LOCK = threading.Lock()
_DRAWS = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"} | {
    f"{name}_" for name in "bernoulli cauchy exponential geometric log_normal normal random uniform".split()
}
_LIKE = {"rand_like": torch.rand, "randn_like": torch.randn}


class _FromGenerator(TorchFunctionMode):
    def __init__(self, generator: torch.Generator):
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self, function: Callable, types: Any, inputs: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        named, name = dict(named or {}), function.__name__
        if name in _LIKE:  # in torch before 2.10 they take no generator
            function, inputs, named = _LIKE[name], (inputs[0].shape,), {"dtype": inputs[0].dtype, **named}
        if name in _DRAWS or name in _LIKE:
            named["generator"] = named.get("generator") or self._generator
        return function(*inputs, **named)


@contextmanager
def drawing() -> Iterator[Callable[[int], None]]:
    """A context in which one thread at a time reads examples; its value is a function that takes the next key."""
    generator = torch.Generator()

    def seed(key: int) -> None:
        random.seed(key)
        np.random.seed(key & 0xFFFFFFFF)
        generator.manual_seed(key >> 1)

    with _LOCK:
        before = random.getstate(), np.random.get_state()
        try:
            with _FromGenerator(generator):
                yield seed
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
