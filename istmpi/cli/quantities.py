"""Quantities as people write them: 2.5Gbit, 100us, 250G, 16GB."""

import math
import re
from collections.abc import Callable
from typing import Any

import click

from istmpi.errors import ConfigError
from istmpi.foreign import MOST, in_ascii_digits, one_line, whole_number

MOST_UNITS = 2**40
"""No layer is wider."""

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_QUANTITY = re.compile(r"\s*([0-9.eE+-]+?)\s*([^\d\s.]*)\s*")

MOST_WHOLE = 2**63 - 1
MOST_RANKS = 100_000

TINY = 1e-9
"""A least number that stands for any above zero."""


class WholeRange(click.IntRange):
    """click's range of whole numbers, told in words; of a machine's word at most."""

    def __init__(self, min: int | None = None, max: int = MOST_WHOLE):
        super().__init__(min, max)

    def _describe_range(self) -> str:
        return _words(self.min, self.max)

    def convert(self, value, param, ctx):
        what = "a whole number" + " below 2^63" * (
            self.max == MOST_WHOLE and len(str(value)) > len(str(MOST_WHOLE)) - 1
        )
        return _checked(self, super().convert, value, param, ctx, what)


class FiniteRange(click.FloatRange):
    """click's range of numbers, told in words, without NaN, which lies in every range of click's, and infinity."""

    def _describe_range(self) -> str:
        return _words(self.min, self.max, self.min_open)

    def convert(self, value, param, ctx):
        number = _checked(self, super().convert, value, param, ctx, "a number")
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


class YesOrNo(click.ParamType):
    """One of the two words, as a truth value."""

    name = "yes|no"

    def convert(self, value, param, ctx):
        if value not in ("yes", "no"):
            self.fail(f"{value!r} must be yes or no.", param, ctx)
        return value == "yes"


def _checked(kind: Any, convert: Callable, value: Any, param: Any, ctx: Any, what: str) -> Any:
    """A number by click's ``convert``, whose error names a type where it should say what the number must be."""
    try:
        if not in_ascii_digits(str(value)):
            raise click.BadParameter(value)
        return convert(value, param, ctx)
    except click.BadParameter:
        limits = kind._describe_range()
        kind.fail(f"{value!r} must be {what}{', ' * bool(limits)}{limits}.", param, ctx)


def _words(least: float | None, most: float | None, above: bool = False) -> str:
    """A range as a person says it; nothing of a largest number that is none but for the machine."""
    if least is not None and 0 < least <= TINY:
        least, above = 0, True
    low = f"{'above' if above else 'at least'} {least:g}" if least is not None else ""
    if most is None or most >= 1e6:
        return low
    return f"{least:g} to {most:,g}" if least is not None and not above else f"{low}, at most {most:,g}".lstrip(", ")


def bandwidth(option: str, text: str) -> float:
    """Bytes a second of ``2.5Gbit`` or ``300MB``."""
    number, unit = _split(option, text, "a rate in bit or B a second, as 2.5Gbit")
    unit = unit.removesuffix("/s")
    for suffix, bytes_each in (("bit", 1 / 8), ("B", 1.0)):
        if unit.endswith(suffix) and unit.removesuffix(suffix) in _PREFIXES:
            return number * _PREFIXES[unit.removesuffix(suffix)] * bytes_each
    raise _refused(option, text, "a rate in bit or B a second, as 2.5Gbit")


def latency(option: str, text: str) -> float:
    """Seconds of ``100us``."""
    number, unit = _split(option, text, "a time in s, ms, us or ns, as 100us")
    if unit not in _SECONDS:
        raise _refused(option, text, "a time in s, ms, us or ns, as 100us")
    return number * _SECONDS[unit]


def speeds(option: str, text: str) -> tuple[float, ...]:
    """FLOP/s of ``250G``, or of each rank in ``250G,250G,100G``."""
    expected = "FLOP/s with a prefix, as 250G, or one for each rank with commas"
    found = []
    for one in text.split(","):
        number, unit = _split(option, one, expected)
        if unit.removesuffix("FLOP/s").removesuffix("FLOPS") not in _PREFIXES:
            raise _refused(option, one, expected)
        found.append(number * _PREFIXES[unit.removesuffix("FLOP/s").removesuffix("FLOPS")])
    return tuple(found)


def memory(option: str, text: str) -> float:
    """Bytes of ``16GB`` or ``16GiB``."""
    number, unit = _split(option, text, "bytes, as 16GB")
    if unit.endswith("iB") and unit.removesuffix("iB") in ("k", "K", "M", "G", "T"):
        return number * 1024 ** ("kMGT".index(unit[0].replace("K", "k")) + 1)
    if not unit.endswith("B") or unit.removesuffix("B") not in _PREFIXES:
        raise _refused(option, text, "bytes, as 16GB")
    return number * _PREFIXES[unit.removesuffix("B")]


def ranks(option: str, text: str) -> list[int]:
    """Numbers of ranks: ``1,2,4``, or ``1..1000`` for the powers of two from 1 to 1000, and 1000."""
    expected = f"numbers of ranks from 1 to {MOST_RANKS}, as 1,2,4, or a range of powers of two, as 1..1024"
    first, dots, last = text.partition("..")
    try:
        if dots:
            low, high = whole_number(first), whole_number(last)
            powers = [2**power for power in range(17) if low <= 2**power <= high]
            counts = sorted({low, *powers, high})
        else:
            counts = sorted({whole_number(part) for part in text.split(",")})
    except ValueError:
        raise _refused(option, text, expected) from None
    if counts[0] < 1 or counts[-1] > MOST_RANKS or (dots and low > high):
        raise _refused(option, text, expected)
    return counts


def shape(option: str, text: str) -> tuple[int, ...]:
    """The lengths of an example's axes: ``3x32x32``."""
    expected = "the lengths of an example's axes, as 3x32x32"
    try:
        lengths = tuple(whole_number(part) for part in text.split("x"))
    except ValueError:
        raise _refused(option, text, expected) from None
    if not 1 <= min(lengths) <= max(lengths) <= MOST_UNITS:
        raise _refused(option, text, expected)
    return lengths


def widths(option: str, text: str) -> list[int]:
    """Lengths of all layers, ``1000-4000-200``: features, hidden widths, labels."""
    expected = "features, hidden widths and labels, as 1000-4000-4000-200"
    try:
        lengths = [whole_number(part) for part in text.split("-")]
    except ValueError:
        raise _refused(option, text, expected) from None
    if len(lengths) < 3 or not 1 <= min(lengths) <= max(lengths) <= MOST_UNITS:
        raise _refused(option, text, expected)
    return lengths


def _split(option: str, text: str, expected: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if not 1 / MOST < number < MOST:
        raise _refused(option, text, expected)
    return number, match[2]


def _refused(option: str, text: str, expected: str) -> ConfigError:
    return ConfigError(f"{option} {one_line(text.strip())!r} must be {expected}, greater than zero.")
