"""Reads foreign files and names, which may hold anything, into plain values or a one-line error."""

import errno
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from istmpi.errors import DataError, IstmpiError, UserError, kind_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MEGABYTE = 2**20
TOML_BYTES = MEGABYTE
JSON_BYTES = 64 * MEGABYTE
METRICS_BYTES = 512 * MEGABYTE
"""The most bytes of a metrics.jsonl, which is read into memory whole, as TOML and JSON are."""
MOST_SCORE = 1e300
"""The largest absolute value of a score or a loss: float32 ends at 3e38, and sums of some have
room."""
MOST = 1e30
"""The largest absolute value of a number in a file of a run or a cluster."""
LINE = 1000
"""The most characters of a message. The middle of a longer message is cut, because the cure is at
the end."""

_ADDRESS = re.compile(r"\s*<[^<>]* at 0x[0-9a-fA-F]+>")
_LIMITS = (RecursionError, OverflowError)
"""Errors of any reader for a file that is nested too deeply, or has too large a number."""
_VERDICT = re.compile(r" (does not hold|cannot be|is not) .*")
"""The end of a message's subject that blames a file."""
_OF_MEMORY = re.compile("allocate memory|out of memory")
"""The words of torch in a RuntimeError of a CPU or a GPU without room."""
_EXITS = ("_sitebuiltins", "<frozen _sitebuiltins>", "leaving")
"""The files of Python and istmpi that define exit and quit."""
_UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM)


def printable(text: str) -> str:
    """Escape the characters of a text that cannot be printed.

    They are new lines, ESC, bytes that are not UTF-8 and others.
    """
    if text.isprintable():
        return text
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    if character.isprintable():
        return character
    return ascii(character)[1:-1]


def one_line(message: object) -> str:
    """Return a text in one printable line; of a long one, its beginning and its end."""
    line = printable(str(message))
    if len(line) <= LINE:
        return line
    return f"{line[: LINE // 2]} ... {line[-LINE // 3 :]}"


def plain_value(value: Any) -> Any:
    """Return a JSON value to compare and show.

    Each text is printable and cut to `LINE`; a nested value becomes JSON text.
    """
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
        return [plain_value(item) for item in value]
    if isinstance(value, bool | None) or is_figure(value):
        return value
    return one_line(json.dumps(value)[:LINE])


def whole_number(text: str) -> int:
    """Read a whole number from a file's text.

    Raises ValueError for other text, and for forms like 1_0.
    """
    return int(_require_ascii_digits(text))


def number(text: str) -> float:
    """Read a number from a file's text.

    Raises ValueError for other text, and for forms like 1_0.
    """
    return float(_require_ascii_digits(text))


def is_whole_number(text: str) -> bool:
    return _can_read(whole_number, text)


def is_number(text: str) -> bool:
    return _can_read(number, text)


def in_ascii_digits(text: str) -> bool:
    """Return False for a text with ``_`` or characters beyond ASCII.

    Python accepts them in numbers.
    """
    return text.isascii() and "_" not in text


def _require_ascii_digits(text: str) -> str:
    if not in_ascii_digits(text):
        raise ValueError(f"{text!r} is not a number")
    return text


def _can_read(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


@contextmanager
def reading(subject: object, cure: str, *kinds: type[Exception]) -> Iterator[None]:
    """A context in which a library reads a file.

    Errors of the given ``kinds`` and of `_LIMITS` become DataError. ``subject`` begins the message,
    ``cure`` is its last sentence. Errors of istmpi pass unchanged. A MemoryError becomes a
    DataError that does not blame the file.
    """
    try:
        yield
    except IstmpiError:
        raise
    except MemoryError as error:
        # "FILE is not a readable TOML file" would be a wrong verdict.
        place = _VERDICT.sub("", str(subject))
        raise DataError(
            f"{place}: too little memory to read it ({reason(error)}). Give the job more memory."
        ) from error
    except _LIMITS + kinds as error:
        raise DataError(f"{subject}: {reason(error)}. {cure}") from error


def reason(error: BaseException) -> str:
    """Return an error's reason in one line.

    It is the system's text, the first line of the error's text, or the class.
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return f"out of memory ({error})" if str(error) else "out of memory"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number:
        return os.strerror(number)  # HDF5's own run over several clauses
    lines = _ADDRESS.sub("", str(error)).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0].rstrip(".")


def past_a_limit(error: BaseException) -> UserError | None:
    """Return a UserError for an error from too large an input or an unusable path; else None."""
    without_room = isinstance(error, RuntimeError) and _OF_MEMORY.search(str(error))
    if isinstance(error, MemoryError) or without_room:
        return UserError(
            f"a rank needs more memory than it gets: {reason(error)}. Use more ranks, a smaller "
            "batch or network, or more memory; istmpi train --dry-run predicts the memory of a "
            "rank."
        )
    if isinstance(error, _LIMITS):
        return UserError(
            f"the input is too large or too deep: {reason(error)}. Give less, or smaller numbers."
        )
    # Other errors of the system, such as a full disk, are not the user's input.
    if isinstance(error, OSError) and error.errno in _UNUSABLE and error.filename:
        return UserError(
            f"{error.filename}: cannot be used ({error.strerror}). Give another name, or change "
            "its permissions."
        )
    return None


def exit_error(error: BaseException) -> IstmpiError | None:
    """Return an error that names the foreign code that ended the program by ``error``.

    Return None for istmpi's own code.
    """
    code = getattr(error, "code", getattr(error, "exit_code", 1))
    ending = type(error).__name__
    if str(error):
        ending = f"{ending} ({error})"
    # The last frame is in exit or quit itself: the one before called it.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).stem not in _EXITS
    ]
    if not frames:
        return None
    last = frames[-1]
    if Path(last.filename).is_relative_to(Path(__file__).parent):
        return None
    end = IstmpiError(
        f"{last.filename}, line {last.lineno}, ends the program with {ending} before its work is "
        "done. Return, or raise an error with the reason."
    )
    end.exit_code = 1
    if isinstance(code, int) and code % 256:  # a system keeps eight bits of it
        end.exit_code = code
    return end


@contextmanager
def forbid_exit(*others: type[BaseException]) -> Iterator[None]:
    """A context for foreign code that must not end the program: an attempt becomes an IstmpiError.

    An attempt is SystemExit, any of the ``others``, or a KeyboardInterrupt that Ctrl-C cannot have
    raised. Attempts of istmpi's own code pass unchanged.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) + others as error:
        # Ctrl-C raises only under Python's own handler; istmpi's requests a stop instead.
        handler = signal.getsignal(signal.SIGINT)
        pressed = isinstance(error, KeyboardInterrupt) and handler is signal.default_int_handler
        end = None if pressed else exit_error(error)
        if end is None:
            raise
        raise end from error


def exists(path: Path) -> bool:
    """Return True if a path exists; False also if the system refuses the path."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_file(path: Path) -> bool:
    """Return True for a regular file; False also if the system refuses the path."""
    return exists(path) and path.is_file()


def content(path: Path, most_bytes: int) -> bytes:
    """Read a file.

    Raises ValueError if it is not a regular file or has more than ``most_bytes`` bytes.
    """
    # A read from a pipe would wait for a writer.
    if exists(path) and not path.is_file():
        raise ValueError(f"it is {kind_of(path)}, not a file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # Python sets aside as many bytes as are asked for. One more shows that the file grows.
        data = file.read(min(size, most_bytes) + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes // MEGABYTE} MB")
    return data


def read_toml(path: Path, cure: str) -> dict[str, Any]:
    with reading(f"{path} is not a readable TOML file", cure, OSError, ValueError):
        # Windows' editors begin a file with a byte order mark.
        return tomllib.loads(content(path, TOML_BYTES).decode("utf-8-sig"))


def toml_value(text: str) -> Any:
    """Parse a text as one TOML value. Raises ValueError for anything else."""
    if not text.isprintable():
        raise ValueError(f"{printable(text)} has characters that cannot be printed")
    try:
        # A text such as "1, 2" would pass without the second item.
        values = tomllib.loads(f"values = [{text}, 0]")["values"]
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if len(values) != 2:
        raise ValueError(f"{text} is not a single value")
    return values[0]


class Fields:
    """A JSON object that may hold anything.

    Its methods, except `value`, check a value's kind before they return it. A wrong or missing
    value raises DataError: ``subject`` begins its message, ``cure`` is the last sentence.
    """

    def __init__(self, tree: Any, subject: object, cure: str, prefix: str = ""):
        self._subject = subject
        self._cure = cure
        # `refused` puts the prefix before a key; the key of this whole object ends the prefix.
        self._prefix = ""
        if not isinstance(tree, dict):
            name = prefix.rstrip(".") or "its content"
            raise self.refused(name, tree, "must be an object with keys")
        self._prefix = prefix
        self.tree: dict[str, Any] = tree

    @staticmethod
    def parsed(text: str | bytes, subject: object, cure: str) -> "Fields":
        with reading(f"{subject} cannot be read", cure, ValueError):
            return Fields(json.loads(text), subject, cure)

    @staticmethod
    def read(path: Path, subject: object, cure: str) -> "Fields":
        with reading(f"{subject} cannot be read", cure, OSError, ValueError):
            text = content(path, JSON_BYTES).decode("utf-8")
        return Fields.parsed(text, subject, cure)

    def __contains__(self, key: str) -> bool:
        return key in self.tree

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree)

    def refused(self, key: str, value: Any, constraint: str) -> DataError:
        with reading(self._subject, self._cure, ValueError):
            shown = repr(value)
        if len(shown) >= 80:
            shown = f"{shown[:60]}..."
        return DataError(
            f"{self._subject}: {self._prefix}{key} is {shown}; it {constraint}. {self._cure}"
        )

    def value(self, key: str) -> Any:
        if key not in self.tree:
            raise DataError(f"{self._subject}: {self._prefix}{key} is missing. {self._cure}")
        return self.tree[key]

    def score(self, key: str) -> float:
        """Return a score or a loss, which may be as large as a network makes it."""
        return self.figure(key, -MOST_SCORE, MOST_SCORE)

    def figure(self, key: str, least: float = -MOST, largest: float = MOST) -> float:
        value = self.value(key)
        if not is_figure(value, least, largest):
            constraint = "must be a finite number"
            # Otherwise the interval is as wide below 0 as above, and its ends say nothing.
            if least > -largest:
                constraint += f" of at least {least:g}"
            raise self.refused(key, value, constraint)
        return value

    def whole(self, key: str, least: int = 0) -> int:
        value = self.value(key)
        if not isinstance(value, int) or not is_figure(value, least):
            raise self.refused(key, value, f"must be a whole number of at least {least}")
        return value

    def text(self, key: str) -> str:
        value = self.value(key)
        if not isinstance(value, str):
            raise self.refused(key, value, "must be text")
        return printable(value)

    def texts(self, key: str) -> list[str]:
        value = self.value(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refused(key, value, "must be a list of texts")
        return [printable(item) for item in value]

    def figures(self, key: str, least: float = -MOST) -> dict[str, float]:
        inner = self.inner(key)
        return {printable(name): inner.figure(name, least) for name in inner}

    def inner(self, key: str) -> "Fields":
        return Fields(self.value(key), self._subject, self._cure, f"{self._prefix}{key}.")

    def inners(self, key: str) -> list["Fields"]:
        value = self.value(key)
        if not isinstance(value, list):
            raise self.refused(key, value, "must be a list")
        prefix = f"{self._prefix}{key}"
        return [
            Fields(entry, self._subject, self._cure, f"{prefix}[{n}].")
            for n, entry in enumerate(value)
        ]


def is_figure(value: Any, least: float = -MOST, largest: float = MOST) -> bool:
    # A bool is an int to Python. NaN fails both comparisons.
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= largest
    )
