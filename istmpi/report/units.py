"""Numbers as people read them."""

from dataclasses import dataclass


def size(nbytes: float) -> str:
    """Bytes with a decimal prefix: ``1.21 MB``."""
    return f"{_scaled(nbytes)}B"


def number(value: float) -> str:
    """A count with a decimal prefix: ``36.8 M``."""
    return _scaled(value).rstrip()


def energy(joules: float) -> str:
    """Joules with a decimal prefix: ``3.6 MJ``."""
    return f"{_scaled(joules)}J"


def duration(seconds: float) -> str:
    """Seconds as ``4.2 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


@dataclass(frozen=True)
class Scale:
    """The unit of an axis, and how many of what is counted it has."""

    factor: float
    unit: str


def bytes_scale(most: float) -> Scale:
    """In which unit an axis up to so many bytes is read best: ``MB`` rather than 10^8."""
    return _scale(most, ((1, "bytes"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB")))


def count_scale(most: float) -> Scale:
    """The same for examples."""
    return _scale(most, ((1, "examples"), (1e3, "thousand examples"), (1e6, "million examples")))


def seconds_scale(most: float) -> Scale:
    """The same for seconds: an axis goes on in a unit until it has ten of the next."""
    return _scale(most / 10, ((1, "s"), (60, "min"), (3600, "h")))


def _scale(most: float, units: tuple[tuple[float, str], ...]) -> Scale:
    return Scale(*max((one for one in units if one[0] <= most), default=units[0]))


def _scaled(value: float) -> str:
    value = float(value)
    prefixes = iter(("", "k", "M", "G", "T", "P"))
    prefix = next(prefixes)
    while 999.5 <= abs(value) < float("inf") and prefix != "P":
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.3g} {prefix}"
