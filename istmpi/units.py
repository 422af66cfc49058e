"""Numbers and lists as people read them."""

from collections.abc import Mapping, Sequence


def in_seconds(value: float) -> str:
    """Write seconds so that columns compare at a glance: ``0.0213 s``, ``2,417 s``."""
    if value < 999.5:  # the next number would be rounded to 1e+03
        return f"{value:.3g} s"
    return f"{value:,.0f} s"


def counted(count: int, noun: str) -> str:
    """Write a count with its noun, which is given in the singular."""
    if count == 1:
        return f"{count:,} {noun}"
    return f"{count:,} {noun}s"


def list_first(words: Sequence[object]) -> str:
    """Write the first four words with commas, and ``...`` in place of the others."""
    shown = ", ".join(map(str, words[:4]))
    if len(words) > 4:
        shown += ", ..."
    return shown


def size(value: float, unit: str = "B") -> str:
    """Write bytes, or a figure in another unit, with a decimal prefix: ``1.21 MB``."""
    return f"{_scaled(value)}{unit}"


def number(value: float) -> str:
    return _scaled(value).rstrip()


def duration(seconds: float) -> str:
    """Write seconds as ``4.2 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


SECONDS = {"s": 1, "min": 60, "h": 3600}
BYTES = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}


def axis_unit(largest: float, units: Mapping[str, float]) -> tuple[str, float]:
    """Return the unit for an axis up to ``largest``, with its factor: ``MB`` rather than 10^8."""
    least = 10 if units is SECONDS else 1  # 90 s rather than 1.5 min
    (chosen, factor), *larger = units.items()
    for unit, factor_of_unit in larger:
        if least * factor_of_unit <= largest:
            chosen = unit
            factor = factor_of_unit
    return chosen, factor


def _scaled(value: float) -> str:
    value = float(value)
    for prefix in ("", "k", "M", "G", "T"):
        # 999.5 would be rounded to 1e+03; infinity has no prefix.
        if not 999.5 <= abs(value) < float("inf"):
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} P"
