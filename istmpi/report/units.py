"""Numbers as people read them."""


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


def _scaled(value: float) -> str:
    value = float(value)
    prefixes = iter(("", "k", "M", "G", "T", "P"))
    prefix = next(prefixes)
    while 999.5 <= abs(value) < float("inf") and prefix != "P":
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.3g} {prefix}"
