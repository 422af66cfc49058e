"""The halvings of a range in which a classifier's temperature lies, and their messages. Pure."""

HALVINGS = 40
"""The number of halvings of the range in which the temperature's logarithm lies."""
_AT_ONCE = 5
"""The halvings of one message, if there are few logits: then all slopes are computed that the
halvings may need."""
_FEW_LOGITS = 2**18
"""The most logits of all ranks for which slopes are computed that may not be needed."""


def choose_halvings_at_once(logits: float) -> int:
    """Return the halvings of one message. ``logits``: the number of all ranks' logits."""
    if logits <= _FEW_LOGITS:
        return _AT_ONCE
    return 1


def count_sums_of_temperature(logits: int) -> int:
    """Return how many times ranks add up numbers for a temperature: the number of examples, and
    slopes for the halvings."""
    return 1 + HALVINGS // choose_halvings_at_once(logits)
