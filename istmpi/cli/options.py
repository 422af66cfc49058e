"""Options of commands, and quantities such as 2.5Gbit, 100us, 250G and 16GB.

Other texts raise ConfigError.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from istmpi.errors import ConfigError
from istmpi.foreign import MOST, in_ascii_digits, one_line, whole_number

MOST_UNITS = 2**40
MOST_WHOLE = 2**63 - 1
MOST_RANKS = 100_000
TINY = 1e-9
"""A least number up to this one stands for any number above 0."""

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_BINARY = {f"{prefix}iB": 1024.0**power for power, prefix in enumerate("kMGT", 1)} | {"KiB": 1024.0}
_QUANTITY = re.compile(r"\s*([0-9.eE+-]+?)\s*([^\d\s.]*)\s*")


class _Range(click.ParamType):
    """A click range whose message says in words what a number must be."""

    kind = "a number"

    def _limits(self) -> tuple[float | None, bool, float | None]:
        """Return the least number, True if it is excluded, and the largest number."""
        raise NotImplementedError

    def _describe_range(self) -> str:
        least, above, largest = self._limits()
        if least is not None and 0 < least <= TINY:
            # Words for a guard such as 1e-9: nobody means that number.
            least = 0
            above = True
        low = ""
        if least is not None:
            low = f"{'above' if above else 'at least'} {least:g}"
        # Such a largest number is only a guard; no user comes near it.
        if largest is None or largest >= 1e6:
            return low
        if least is not None and not above:
            return f"{least:g} to {largest:,g}"
        return f"{low}, at most {largest:,g}".lstrip(", ")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            # Python also reads digits of other scripts.
            if not in_ascii_digits(str(value)):
                raise click.BadParameter(value)
            number = super().convert(value, param, ctx)
        except click.BadParameter:
            rule = self.kind
            _, _, largest = self._limits()
            # So long a number is not of a wrong kind, but too large.
            if largest == MOST_WHOLE and len(str(value)) >= len(str(MOST_WHOLE)):
                rule += " below 2^63"
            limits = self._describe_range()
            if limits:
                rule += f", {limits}"
            self.fail(f"{value!r} must be {rule}.", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class WholeRange(_Range, click.IntRange):
    kind = "a whole number"

    def __init__(self, min: int | None = None, max: int = MOST_WHOLE):
        super().__init__(min, max)

    def _limits(self) -> tuple[float | None, bool, float | None]:
        return self.min, self.min_open, self.max


class FiniteRange(_Range, click.FloatRange):
    """A range of finite numbers. Click's own ranges accept NaN."""

    def _limits(self) -> tuple[float | None, bool, float | None]:
        return self.min, self.min_open, self.max


class YesOrNo(click.ParamType):
    name = "yes|no"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        if value not in ("yes", "no"):
            self.fail(f"{value!r} must be yes or no.", param, ctx)
        return value == "yes"


def bandwidth(option: str, text: str) -> float:
    """Return the bytes per second of ``2.5Gbit`` or ``300MB``."""
    units = _list_units("bit", 1 / 8) | _list_units("B")
    # A rate is written with or without its second.
    units |= {f"{unit}/s": factor for unit, factor in units.items()}
    return _quantity(option, text, units, "a rate per second in bit or B, such as 2.5Gbit")


def latency(option: str, text: str) -> float:
    """Return the seconds of ``100us``."""
    return _quantity(option, text, _SECONDS, "a time in s, ms, us or ns, such as 100us")


def speeds(option: str, text: str) -> tuple[float, ...]:
    """Return the FLOP/s of ``250G``, or of each rank in ``250G,250G,100G``."""
    units = _PREFIXES | _list_units("FLOP/s") | _list_units("FLOPS")
    expected = "FLOP/s with a prefix, such as 250G, or a comma-separated value for each rank"
    return tuple(_quantity(option, part, units, expected) for part in text.split(","))


def memory(option: str, text: str) -> float:
    """Return the bytes of ``16GB`` or ``16GiB``. Raises ConfigError, which names ``option``."""
    return _quantity(option, text, _list_units("B") | _BINARY, "bytes, such as 16GB")


def ranks(option: str, text: str) -> list[int]:
    """Return the numbers of ranks in ``1,2,4``, or in ``3..10``.

    A range has both ends and the powers of two between them.
    """
    expected = (
        f"numbers of ranks from 1 to {MOST_RANKS}, such as 1,2,4, or a range of powers of two, "
        "such as 1..1024"
    )
    if ".." not in text:
        return sorted({*_whole_numbers(option, text, ",", expected, MOST_RANKS)})
    low, *_, high = _whole_numbers(option, text, "..", expected, MOST_RANKS)
    if text.count("..") > 1 or low > high:
        raise _refuse(option, text, expected)
    powers = [2**power for power in range(MOST_RANKS.bit_length())]
    return sorted({low, high, *(count for count in powers if low <= count <= high)})


def whole_numbers(option: str, text: str | None) -> list[int]:
    """Return the numbers in ``5,10``, or none without a text. Raises ConfigError, which names
    ``option``."""
    if text is None:
        return []
    return _whole_numbers(option, text, ",", "whole numbers, such as 5,10")


def shape(option: str, text: str) -> tuple[int, ...]:
    expected = "the lengths of an example's axes, such as 3x32x32"
    return tuple(_whole_numbers(option, text, "x", expected))


def widths(option: str, text: str) -> list[int]:
    """Return the lengths of all layers in ``1000-4000-200``: features, hidden widths, labels.

    Raises ConfigError, which names ``option``, unless ``text`` has at least three such numbers.
    """
    expected = "features, hidden widths and labels, such as 1000-4000-4000-200"
    lengths = _whole_numbers(option, text, "-", expected)
    if len(lengths) < 3:
        raise _refuse(option, text, expected)
    return lengths


def _list_units(unit: str, factor: float = 1.0) -> dict[str, float]:
    return {prefix + unit: factor * value for prefix, value in _PREFIXES.items()}


def _quantity(option: str, text: str, units: Mapping[str, float], expected: str) -> float:
    """Return a number times its unit's factor. Raises ConfigError, which names ``expected``."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise _refuse(option, text, expected)
    try:
        number = float(match[1])
    except ValueError:
        raise _refuse(option, text, expected) from None
    # The cost model divides by these, so the reciprocal must be usable, too.
    if not 1 / MOST < number < MOST:
        raise _refuse(option, text, expected)
    return number * units[match[2]]


def _whole_numbers(
    option: str, text: str, separator: str, expected: str, largest: int = MOST_UNITS
) -> list[int]:
    """Return the numbers in a text. Raises ConfigError unless all are from 1 to ``largest``."""
    try:
        numbers = [whole_number(part) for part in text.split(separator)]
    except ValueError:
        # Refused below, like any number out of range.
        numbers = [0]
    if not 1 <= min(numbers) <= max(numbers) <= largest:
        raise _refuse(option, text, expected)
    return numbers


def _refuse(option: str, text: str, expected: str) -> ConfigError:
    return ConfigError(
        f"{option} {one_line(text.strip())!r} must be {expected}, greater than zero."
    )


Decorator = Callable[[Callable], Callable]


def flag(name: str, help: str) -> Decorator:
    # A parameter `json` would hide Python's module.
    names = [name, "as_json"] if name == "--json" else [name]
    return click.option(*names, is_flag=True, help=help)


def text(name: str, metavar: str | None, help: str, **settings: Any) -> Decorator:
    has_default = bool(settings.get("default"))
    return click.option(name, metavar=metavar, help=help, show_default=has_default, **settings)


def whole(
    name: str,
    metavar: str,
    help: str,
    least: int | None = None,
    largest: int = MOST_WHOLE,
    **settings: Any,
) -> Decorator:
    return text(name, metavar, help, type=WholeRange(least, largest), **settings)


def real(
    name: str,
    metavar: str,
    help: str,
    least: float | None = None,
    largest: float | None = None,
    **settings: Any,
) -> Decorator:
    return text(name, metavar, help, type=FiniteRange(least, largest), **settings)


def list_rows(rows: Sequence[tuple[str, str]]) -> str:
    """Return lines of names and their descriptions, in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:{width}}   {text}" for name, text in rows)


as_json = flag("--json", "Print JSON for other programs.")
force = flag("--force", "Replace the file if it exists.")
own_class = text("--model", "FILE.py:Class", "The class of your network; its code is run.")
_subnet = whole(
    "--subnet", "RANK", "Only this rank's subnet of the last deal, as a small network.", 0
)


def subnet(command: Callable) -> Callable:
    """Add --subnet to a command: its ``path`` becomes a `NetworkFile`."""

    @functools.wraps(command)
    def with_network(path: str, subnet: int | None, **values: Any) -> Any:
        from istmpi.deploy.opening import NetworkFile

        return command(path=NetworkFile(Path(path), subnet), **values)

    return _subnet(with_network)


calibrate_on = text(
    "--calibrate-on", "DATA", "Training data of CKPT, for calibration if it needs any."
)
