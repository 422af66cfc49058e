"""Plain values and arrays out of a pickle, read by a machine of our own that calls nothing the pickle names.

Python's unpickler cannot be made safe by a list of allowed names: ``numpy.ndarray`` alone lays an array of objects over
any bytes, and a state can be set on whatever a name stands for. Here a name stays a text, and an array is made by this
module, of bytes alone.
"""

import pickletools
from math import prod
from typing import BinaryIO

import numpy as np

MOST_BYTES = 2**28
"""The most bytes that a pickle may have; CIFAR's largest has 155 million."""
MOST_STEPS = 10**6
"""CIFAR's largest takes some 200,000."""
_NUMBERS = {"u1", "b1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"}
_CSR = {f"scipy.sparse.{module} csr_matrix" for module in ("csr", "_csr")}
_VALUES = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()
_MISFIT = "its steps do not fit together"


class PickleError(ValueError):
    """A pickle that is damaged, or holds something else than plain values and arrays."""


def read_pickle(file: BinaryIO, numbers: bool = False) -> object:
    """Return the pickled value: dictionaries, lists, tuples, numbers, texts, bytes and arrays of uint8; else
    PickleError.

    Text of Python 2 comes as bytes. With ``numbers`` also arrays of numbers, dictionaries whose keys are whole numbers,
    and CSR matrices of scipy's, as dictionaries of their arrays.
    """
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise PickleError(f"it has more than {MOST_BYTES} bytes")
    machine = _Machine(numbers)
    try:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if step == MOST_STEPS * (20 if numbers else 1):
                raise PickleError(f"it takes more than {step} steps")
            machine.do(opcode.name, argument)
    except PickleError:
        raise
    except ValueError as error:  # pickletools' own, which may quote all of a damaged text
        raise PickleError(_short(error)) from error
    if len(machine.stack) != 1:
        raise PickleError(_MISFIT)
    return _plain(machine.pop())


class _Name(str):
    """A class or a function that a pickle names: "numpy ndarray"."""


class _Array:
    """An announced array; its bytes come later, and the pickle may refer to it before."""

    values: np.ndarray | dict[str, object] | None = None

    def fill(self, state: object) -> None:
        """Take (1, shape, dtype, whether in Fortran's order, bytes)."""
        if self.values is not None or not isinstance(state, tuple) or len(state) != 5:
            raise PickleError("it has an array without a form")
        _, shape, dtype, fortran, content = state
        lengths = shape if isinstance(shape, tuple) else ()
        if not 1 <= len(lengths) <= 4 or not all(type(length) is int and length >= 0 for length in lengths):
            raise PickleError("it has an array without a shape")
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise PickleError("it has an array of something else than bytes")
        if np.dtype(dtype.code).itemsize * prod(shape) != len(content):
            raise PickleError(f"it has an array of shape {shape} in {len(content)} bytes")
        self.values = np.frombuffer(content, dtype.code).reshape(shape, order="F" if fortran else "C")


class _Matrix(_Array):
    def fill(self, state: object) -> None:
        if self.values is not None or not isinstance(state, dict):
            raise PickleError("it has a matrix without a form")
        self.values = {_text(key): _plain(item) for key, item in state.items() if isinstance(key, str | bytes)}


class _Dtype:
    """The dtype of bytes, or of little-endian numbers."""

    def __init__(self, code: str):
        self.code = code

    def fill(self, state: object) -> None:
        if np.dtype(self.code).itemsize > 1 and not (isinstance(state, tuple) and state[1:2] in (("<",), (b"<",))):
            raise PickleError("it has numbers whose bytes are in another order")


class _Machine:
    """The stack and the memo of a pickle, an opcode at a time."""

    def __init__(self, numbers: bool):
        self.numbers = numbers
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}

    def do(self, opcode: str, argument: object) -> None:
        push = self.stack.append
        if opcode in _VALUES:
            push(argument)
        elif opcode in ("BINSTRING", "SHORT_BINSTRING"):
            push(argument.encode("latin-1"))
        elif opcode in _CONSTANTS:
            push(_CONSTANTS[opcode])
        elif opcode in _TUPLES:
            push(tuple([self.pop() for _ in range(_TUPLES[opcode])][::-1]))
        elif opcode in ("EMPTY_LIST", "EMPTY_DICT"):
            push([] if opcode == "EMPTY_LIST" else {})
        elif opcode == "MARK":
            push(_MARK)
        elif opcode == "TUPLE":
            push(tuple(self.above_mark()))
        elif opcode in ("APPEND", "APPENDS"):
            values = self.above_mark() if opcode == "APPENDS" else [self.pop()]
            self.top(list).extend(values)
        elif opcode in ("SETITEM", "SETITEMS"):
            values = self.above_mark() if opcode == "SETITEMS" else [self.pop(), self.pop()][::-1]
            kinds = bytes | str | int if self.numbers else bytes | str
            if len(values) % 2 or not all(isinstance(key, kinds) for key in values[::2]):
                raise PickleError("it has a dictionary with other keys than texts")
            self.top(dict).update(zip(values[::2], values[1::2]))
        elif opcode in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if opcode == "MEMOIZE" else argument] = self.top()
        elif opcode in ("BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise PickleError("it refers to what it does not hold")
            push(self.memo[argument])
        elif opcode == "GLOBAL":
            push(_Name(argument))
        elif opcode == "STACK_GLOBAL":
            name, module = self.pop(str), self.pop(str)
            push(_Name(f"{module} {name}"))
        elif opcode == "REDUCE" or (opcode == "NEWOBJ" and self.numbers):
            arguments, name = self.pop(tuple), self.pop(_Name)
            push(_made(name, arguments, self.numbers, opcode == "NEWOBJ"))
        elif opcode == "BUILD":
            state, value = self.pop(), self.top()
            if not isinstance(value, _Array | _Dtype):
                raise PickleError("it sets the state of something that has none")
            value.fill(state)
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            raise PickleError(f"it has {opcode}, which they do not")

    def top(self, kind: type = object) -> object:
        if not self.stack or self.stack[-1] is _MARK or not isinstance(self.stack[-1], kind):
            raise PickleError(_MISFIT)
        return self.stack[-1]

    def pop(self, kind: type = object) -> object:
        self.top(kind)
        return self.stack.pop()

    def above_mark(self) -> list[object]:
        values = []
        while self.stack and self.stack[-1] is not _MARK:
            values.append(self.stack.pop())
        if not self.stack:
            raise PickleError(_MISFIT)
        self.stack.pop()
        return values[::-1]


def _made(name: _Name, arguments: tuple, numbers: bool, new: bool) -> object:
    """Return the object for a call in the pickle: an array or matrix to be filled, a dtype, a dictionary, or bytes."""
    match name, arguments:
        case _, () if new and name in _CSR:
            return _Matrix()
        case _ if new:
            pass
        # NumPy 2 renamed its core; the published pickles are older.
        case "numpy.core.multiarray _reconstruct" | "numpy._core.multiarray _reconstruct", ("numpy ndarray", _, _):
            return _Array()
        case "numpy dtype", ("u1" | b"u1", *_):
            return _Dtype("u1")
        case "numpy dtype", (str() | bytes() as code, *_) if numbers and _text(code) in _NUMBERS:
            return _Dtype(np.dtype(_text(code)).newbyteorder("<").str)
        case "numpy dtype", (str() | bytes() as code, *_):
            raise PickleError(f"it has an array of {_short(repr(_text(code)))}, not of bytes")
        case "copy_reg _reconstructor" | "copyreg _reconstructor", (_Name() as kind, *_) if numbers and kind in _CSR:
            return _Matrix()
        case "collections defaultdict", (_Name(),) if numbers:
            return {}
        case "_codecs encode", (str() as text, "latin1"):
            return text.encode("latin-1")
    raise PickleError(f"it asks for {_short(repr(name.replace(' ', '.')))}")


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) if isinstance(item, _Array) else item for key, item in value.items()}
    if isinstance(value, _Array):
        if value.values is None:
            raise PickleError("it has an array without a form")
        return value.values
    return value


def _text(code: str | bytes) -> str:
    return code.decode("latin-1") if isinstance(code, bytes) else code


def _short(text: object) -> str:
    return str(text)[:80]
