"""Plain values and arrays of bytes out of a pickle, read by a machine of our own that calls nothing the pickle names.

Python's unpickler cannot be made safe by a list of allowed names: ``numpy.ndarray`` alone lays an array of objects over
any bytes, and a state can be set on whatever a name stands for. Here a name stays a text, an array is made by this
module, of bytes alone, and a pickle is no larger than CIFAR's are.
"""

import pickletools
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

MOST_BYTES = 2**28
"""Of one pickle; the largest of CIFAR's, the training images of CIFAR-100, has 155 million."""
MOST_STEPS = 10**6
"""Opcodes of one pickle; the same one has some 200,000."""


class PickleError(ValueError):
    """A pickle that is damaged, or holds something else than plain values and arrays of bytes."""


def read_pickle(file: BinaryIO, numbers: bool = False) -> object:
    """The pickled value: dictionaries, lists, tuples, numbers, texts, bytes and arrays of uint8; else a PickleError.

    Text of Python 2 comes as bytes, as with ``encoding="bytes"`` of pickle's own. With ``numbers`` also arrays of
    numbers, dictionaries whose keys are whole numbers, and CSR matrices of scipy's, as dictionaries of their arrays.
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
        raise PickleError(_short(str(error))) from error
    return _plain(machine.result())


class _Name(str):
    """A class or a function that a pickle names: "numpy ndarray"."""


@dataclass(eq=False)
class _Array:
    """An array that ``_reconstruct`` has announced; its bytes come later, and the pickle may refer to it before."""

    numbers: bool = False
    values: np.ndarray | None = None

    def fill(self, state: object) -> None:
        """From (1, shape, dtype, whether in Fortran's order, bytes)."""
        if self.values is not None or not isinstance(state, tuple) or len(state) != 5:
            raise PickleError("it has an array without a form")
        _, shape, dtype, fortran, content = state
        if not isinstance(shape, tuple) or not 1 <= len(shape) <= 4 or not all(_is_count(length) for length in shape):
            raise PickleError("it has an array without a shape")
        if not isinstance(dtype, _Dtype) or not isinstance(content, bytes):
            raise PickleError("it has an array of something else than bytes")
        wanted = np.dtype(dtype.code).itemsize
        for length in shape:
            wanted *= length
        if wanted != len(content):
            raise PickleError(f"it has an array of shape {shape} in {len(content)} bytes")
        self.values = np.frombuffer(content, dtype.code).reshape(shape, order="F" if fortran else "C")


@dataclass(frozen=True)
class _Dtype:
    """The dtype of bytes, or of numbers in the order of bytes that nearly all machines have."""

    code: str

    def fill(self, state: object) -> None:
        """Of bytes it does not matter what a pickle says of their order; of numbers it must be that one."""
        if np.dtype(self.code).itemsize > 1 and not (isinstance(state, tuple) and state[1:2] in (("<",), (b"<",))):
            raise PickleError("it has numbers whose bytes are in another order")


@dataclass(eq=False)
class _Matrix:
    """A CSR matrix of scipy's: the arrays that it is made of come later."""

    values: dict[str, object] | None = None

    def fill(self, state: object) -> None:
        if self.values is not None or not isinstance(state, dict):
            raise PickleError("it has a matrix without a form")
        texts = {key.decode("latin-1") if isinstance(key, bytes) else key: item for key, item in state.items()}
        self.values = {key: _plain(item) for key, item in texts.items() if isinstance(key, str)}


_NUMBERS = {"u1", "b1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"}
_CSR = {f"scipy.sparse.{module} csr_matrix" for module in ("csr", "_csr")}
_MARK = object()
_VALUES = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass
class _Machine:
    """The stack and the memo of a pickle that is being read, an opcode at a time."""

    numbers: bool = False
    stack: list[object] = field(default_factory=list)
    memo: dict[int, object] = field(default_factory=dict)

    def do(self, opcode: str, argument: object) -> None:
        if opcode in _VALUES:
            self.stack.append(argument)
        elif opcode in ("BINSTRING", "SHORT_BINSTRING"):
            self.stack.append(argument.encode("latin-1"))
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode])
        elif opcode in _TUPLES:
            values = [self.pop() for _ in range(_TUPLES[opcode])]
            self.stack.append(tuple(reversed(values)))
        elif opcode in ("EMPTY_LIST", "EMPTY_DICT"):
            self.stack.append([] if opcode == "EMPTY_LIST" else {})
        elif opcode == "MARK":
            self.stack.append(_MARK)
        elif opcode == "TUPLE":
            self.stack.append(tuple(self.above_mark()))
        elif opcode in ("APPEND", "APPENDS"):
            values = self.above_mark() if opcode == "APPENDS" else [self.pop()]
            self.top(list).extend(values)
        elif opcode in ("SETITEM", "SETITEMS"):
            values = self.above_mark() if opcode == "SETITEMS" else [self.pop(), self.pop()][::-1]
            self.set_items(values)
        elif opcode in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if opcode == "MEMOIZE" else argument] = self.top(object)
        elif opcode in ("BINGET", "LONG_BINGET"):
            if argument not in self.memo:
                raise PickleError("it refers to what it does not hold")
            self.stack.append(self.memo[argument])
        elif opcode == "GLOBAL":
            self.stack.append(_Name(argument))
        elif opcode == "STACK_GLOBAL":
            name, module = self.pop_text(), self.pop_text()
            self.stack.append(_Name(f"{module} {name}"))
        elif opcode == "REDUCE":
            arguments, name = self.pop(), self.pop()
            self.stack.append(_made(name, arguments, self.numbers))
        elif opcode == "NEWOBJ" and self.numbers:
            arguments, name = self.pop(), self.pop()
            if name not in _CSR or not isinstance(name, _Name) or arguments != ():
                raise PickleError(f"it asks for {_short(repr(name))}")
            self.stack.append(_Matrix())
        elif opcode == "BUILD":
            state, value = self.pop(), self.top(object)
            if not isinstance(value, _Array | _Dtype | _Matrix):
                raise PickleError("it sets the state of something that has none")
            value.fill(state)
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            raise PickleError(f"it has {opcode}, which they do not")

    def result(self) -> object:
        if len(self.stack) != 1:
            raise PickleError("its steps do not fit together")
        return self.pop()

    def pop(self) -> object:
        value = self.top(object)
        self.stack.pop()
        return value

    def pop_text(self) -> str:
        self.top(str)
        return self.stack.pop()

    def top(self, kind: type) -> object:
        """What lies on the stack's top; a PickleError unless it is of a kind."""
        if not self.stack or self.stack[-1] is _MARK or not isinstance(self.stack[-1], kind):
            raise PickleError("its steps do not fit together")
        return self.stack[-1]

    def above_mark(self) -> list[object]:
        values = []
        while self.stack and self.stack[-1] is not _MARK:
            values.append(self.stack.pop())
        if not self.stack:
            raise PickleError("its steps do not fit together")
        self.stack.pop()
        return values[::-1]

    def set_items(self, values: list[object]) -> None:
        keys = values[::2]
        allowed = bytes | str | int if self.numbers else bytes | str
        if len(values) % 2 or not all(isinstance(key, allowed) for key in keys):
            raise PickleError("it has a dictionary with other keys than texts")
        self.top(dict).update(zip(keys, values[1::2]))


def _made(name: object, arguments: object, numbers: bool) -> object:
    """What a call in the pickle stands for: an array to be filled, a dtype, or bytes as Python 3 writes.

    With ``numbers`` also a matrix to be filled, and a dictionary with a default, which it has no use of here.
    """
    if not isinstance(name, _Name) or not isinstance(arguments, tuple):
        raise PickleError("its steps do not fit together")
    match name, arguments:
        # NumPy 2 renamed its core; the published pickles are older.
        case "numpy.core.multiarray _reconstruct" | "numpy._core.multiarray _reconstruct", ("numpy ndarray", _, _):
            return _Array()
        case "numpy dtype", ("u1" | b"u1", *_):
            return _Dtype("u1")
        case "numpy dtype", (str() | bytes() as code, *_) if numbers and _text(code) in _NUMBERS:
            return _Dtype(np.dtype(_text(code)).newbyteorder("<").str)
        case "copy_reg _reconstructor" | "copyreg _reconstructor", (_Name() as kind, *_) if numbers and kind in _CSR:
            return _Matrix()
        case "collections defaultdict", (_Name(),) if numbers:
            return {}
        case "numpy dtype", (str() | bytes() as code, *_):
            raise PickleError(f"it has an array of {_short(repr(_text(code)))}, not of bytes")
        case "_codecs encode", (str() as text, "latin1"):
            return text.encode("latin-1")
    raise PickleError(f"it asks for {_short(repr(name.replace(' ', '.')))}")


def _plain(value: object) -> object:
    """A value with its arrays as arrays, also those of a dictionary."""
    if isinstance(value, dict):
        return {key: _plain(item) if isinstance(item, _Array) else item for key, item in value.items()}
    if isinstance(value, _Array | _Matrix):
        if value.values is None:
            raise PickleError("it has an array without a form")
        return value.values
    return value


def _text(code: str | bytes) -> str:
    return code.decode("latin-1") if isinstance(code, bytes) else code


def _short(text: str) -> str:
    return text[:80]


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
