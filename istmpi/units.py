"""The text for a number of seconds."""


def in_seconds(value: float) -> str:
    """Always in seconds, so that columns compare at a glance, never as a power of ten: ``0.0213 s``, ``2,417 s``."""
    return f"{value:.3g} s" if value < 999.5 else f"{value:,.0f} s"
