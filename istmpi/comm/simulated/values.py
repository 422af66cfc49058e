"""What travels in a simulated job: buffers as bytes, and Python objects."""

import pickle
from typing import Any

import numpy as np

from istmpi.errors import SimulationError


def array(buffer: Any) -> np.ndarray:
    """A buffer as mpi4py takes it: an array or other memory, or a list that begins with one."""
    memory = buffer[0] if isinstance(buffer, list | tuple) else buffer
    return memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, dtype=np.uint8)


def bytes_of(buffer: Any) -> np.ndarray:
    """The same memory as bytes."""
    values = array(buffer)
    assert values.flags.c_contiguous, "MPI takes contiguous memory"
    return values.reshape(-1).view(np.uint8)


def exactly(values: bytes, nbytes: int, call: str) -> np.ndarray:
    """What arrived, of which there must be as much as was expected."""
    if len(values) != nbytes:
        raise SimulationError(f"{call}: {len(values)} bytes were sent where {nbytes} were expected")
    return np.frombuffer(values, dtype=np.uint8)


_ATOMS = (type(None), bool, int, float, str, bytes)


def packed(value: Any) -> Any:
    """What travels of an object: itself where nobody can change it, else its pickle."""
    return value if _frozen(value) else _Pickle(pickle.dumps(value))


def _frozen(value: Any) -> bool:
    return type(value) in _ATOMS or (type(value) is tuple and all(map(_frozen, value)))


class _Pickle(bytes):
    """An object on its way."""


def unpacked(value: Any) -> Any:
    """The object that arrived, the receiver's own."""
    return pickle.loads(value) if type(value) is _Pickle else value
