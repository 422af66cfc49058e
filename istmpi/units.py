"""The texts for a number of seconds, and for a number of things."""


def in_seconds(value: float) -> str:
    """Always in seconds, so that columns compare at a glance, never as a power of ten: ``0.0213 s``, ``2,417 s``."""
    return f"{value:.3g} s" if value < 999.5 else f"{value:,.0f} s"


def counted(count: int, noun: str) -> str:
    """A count with its noun, which is given as that of one."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
