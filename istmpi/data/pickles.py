"""Reads plain values and arrays from a pickle of CIFAR or Planetoid, safely.

A class or function that the pickle names is refused, or replaced with one of this module. NumPy's
are not safe: ``numpy.ndarray`` can make an array of objects from any bytes.
"""

import io
import pickle

import numpy as np

from istmpi.foreign import reason

_NUMBERS = {"u1", "b1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"}


class PickleError(ValueError):
    """A pickle that is damaged, or holds more than plain values and arrays."""


def read_pickle(content: bytes, kind: type = object) -> object:
    """Return the pickled value, which must be of type ``kind`` and made of plain values and arrays
    of numbers.

    Text of Python 2 is returned as bytes, and a CSR matrix as a dictionary of its arrays. Raises
    PickleError for other content.
    """
    try:
        value = _plain(_Reader(io.BytesIO(content), encoding="bytes").load())
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

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, fortran, content = state
        if (
            not isinstance(dtype, _Dtype)
            or not isinstance(content, bytes)
            or min(shape, default=0) < 0
        ):
            raise PickleError("it has an array that does not hold numbers")
        self.values = np.frombuffer(content, dtype.code).reshape(
            shape, order="F" if fortran else "C"
        )


class _Dtype:
    def __init__(self, code: str | bytes, *_: object):
        self.code = _text(code)
        if self.code not in _NUMBERS:
            raise PickleError(f"it has an array of {self.code[:20]!r}, not of numbers")

    def __setstate__(self, state: tuple) -> None:
        if _text(state[1]) not in "<|":
            raise PickleError("it has numbers in another byte order")


class _Matrix(_Array):
    def __setstate__(self, state: dict) -> None:
        self.values = {_text(key): _plain(item) for key, item in state.items()}


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
    "_codecs encode": lambda text, _: text.encode("latin-1"),
}


class _Reader(
    pickle._Unpickler
):  # the one in Python: the one in C allocates memory for any memo number
    def find_class(self, module: str, name: str) -> object:
        if (key := f"{module} {name}") not in _NAMES:
            raise PickleError(f"it asks for {repr(f'{module}.{name}')[:80]}")
        return _NAMES[key]


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: _plain(item) if isinstance(item, _Array) else item for key, item in value.items()
        }
    return value.values if isinstance(value, _Array) else value


def _text(code: str | bytes) -> str:
    return code.decode("latin-1") if isinstance(code, bytes) else code
