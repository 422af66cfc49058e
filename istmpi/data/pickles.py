"""Reads plain values and arrays from a pickle of CIFAR or Planetoid, safely.

A class or function that the pickle names is refused, or replaced with one of this module. NumPy's
are not safe: ``numpy.ndarray`` can make an array of objects from any bytes.
"""

import io
import pickle
from typing import Any, Literal, TypeVar

import numpy as np

from istmpi.foreign import reason

_NUMBERS = {"u1", "b1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"}


Kind = TypeVar("Kind")


class PickleError(ValueError):
    """A pickle that is damaged, or holds more than plain values and arrays."""


def read_pickle(content: bytes, kind: type[Kind]) -> Kind:
    """Return the pickled value, which must be of type ``kind`` and made of plain values and arrays
    of numbers.

    Text of Python 2 is returned as bytes, and a CSR matrix as a dictionary of its arrays. Raises
    PickleError for other content.
    """
    try:
        value = _unwrap(_Reader(io.BytesIO(content), encoding="bytes").load())
    except PickleError:
        raise
    except Exception as error:  # damage shows as anything
        raise PickleError(f"it is damaged ({reason(error)[:80]})") from error
    if not isinstance(value, kind):
        raise PickleError(f"it holds no {kind.__name__}")
    return value


class _Array:
    """An array, which a pickle first creates and then fills."""

    values: np.ndarray | dict[str, object] | None = None

    def __setstate__(self, state: Any) -> None:
        # NumPy's state of an array; its version comes first.
        _, shape, dtype, fortran, content = state
        is_plain = isinstance(dtype, _Dtype) and isinstance(content, bytes)
        if not is_plain or min(shape, default=0) < 0:
            raise PickleError("it has an array that does not hold numbers")
        order: Literal["F", "C"] = "F" if fortran else "C"
        self.values = np.frombuffer(content, dtype.code).reshape(shape, order=order)


class _Dtype:
    def __init__(self, code: str | bytes, *_: object):
        self.code = _decode(code)
        if self.code not in _NUMBERS:
            raise PickleError(f"it has an array of {self.code[:20]!r}, not of numbers")

    def __setstate__(self, state: tuple) -> None:
        if _decode(state[1]) not in "<|":
            raise PickleError("it has numbers in another byte order")


class _Matrix(_Array):
    def __setstate__(self, state: Any) -> None:
        self.values = {_decode(key): _unwrap(item) for key, item in state.items()}


class _Unused:
    """Replaces a class that a pickle only passes to a function, as it passes numpy.ndarray to
    _reconstruct."""


_NAMES = {
    **dict.fromkeys(
        ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"),
        lambda *_: _Array(),
    ),
    **dict.fromkeys(("copy_reg _reconstructor", "copyreg _reconstructor"), lambda *_: _Matrix()),
    **dict.fromkeys(("scipy.sparse.csr csr_matrix", "scipy.sparse._csr csr_matrix"), _Matrix),
    **dict.fromkeys(
        ("numpy ndarray", "__builtin__ object", "builtins object", "__builtin__ list"), _Unused
    ),
    "numpy dtype": _Dtype,
    "collections defaultdict": lambda *_: {},
    # Protocol 2 has no bytes of Python 3, but text to encode.
    "_codecs encode": lambda text, _: text.encode("latin-1"),
}


# The reader in Python: the one in C allocates memory for any memo number.
class _Reader(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> object:
        key = f"{module} {name}"
        if key not in _NAMES:
            raise PickleError(f"it asks for {repr(f'{module}.{name}')[:80]}")
        return _NAMES[key]


def _unwrap(value: object) -> object:
    """Return the content of an `_Array`, and of those in a dictionary."""
    if isinstance(value, _Array):
        return value.values
    if not isinstance(value, dict):
        return value
    plain = {}
    for key, item in value.items():
        plain[key] = item.values if isinstance(item, _Array) else item
    return plain


def _decode(code: str | bytes) -> str:
    if isinstance(code, bytes):
        return code.decode("latin-1")
    return code
