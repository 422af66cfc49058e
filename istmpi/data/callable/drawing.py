"""Random numbers that a data set of the user's draws while an example is read, as a function of a key.

Python's and NumPy's global states are set meanwhile, and restored. What torch draws in this thread comes from a
generator of its own, for the step in another thread draws from the global one.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

_ONE_AT_A_TIME = threading.RLock()
_DRAWS = {
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "bernoulli_", "cauchy_"),
    *("exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"),
}
_LIKE = {"rand_like": torch.rand, "randn_like": torch.randn}


class _FromGenerator(TorchFunctionMode):
    def __init__(self, generator: torch.Generator):
        super().__init__()
        self._generator = generator

    def __torch_function__(self, function: Callable, types: Any, inputs: Any = (), named: Any = None) -> Any:
        name, named = function.__name__, dict(named or {})
        if name in _LIKE:  # it takes no generator in torch before 2.10
            function, inputs, named = _LIKE[name], (inputs[0].shape,), {"dtype": inputs[0].dtype, **named}
        if name in _DRAWS or name in _LIKE:
            named.setdefault("generator", self._generator)
        return function(*inputs, **named)


@contextmanager
def drawing() -> Iterator[Callable[[int], None]]:
    """A context for one thread at a time; its value is a function that takes the key of what is read next."""
    generator = torch.Generator()

    def seed(key: int) -> None:
        random.seed(key)
        np.random.seed(key & 0xFFFFFFFF)
        generator.manual_seed(key >> 1)

    with _ONE_AT_A_TIME:
        before = random.getstate(), np.random.get_state()
        try:
            with _FromGenerator(generator):
                yield seed
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
