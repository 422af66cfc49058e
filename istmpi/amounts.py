"""The values of a user's loss and score.

They are a mean over a batch's rows, a pair (sum, count), or a dict of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Any

from istmpi.code import shown
from istmpi.errors import ConfigError

FORMS = "one number (the mean over a batch's rows), a pair (sum, count) or a dict of these"


@dataclass(frozen=True)
class Amount:
    """A mean over ``count`` things, or their sum.

    Things are the rows of a batch, its tokens, or their weights.
    """

    value: Any
    """A number, or a tensor of one number with its gradient."""
    count: float
    is_mean: bool
    """True if ``value`` is a mean, and ``count`` the batch's rows; False if it is a sum."""

    @property
    def mean(self) -> Any:
        """The mean, with its gradient; 0 if nothing counts."""
        if self.is_mean:
            return self.value
        if not self.count:
            return self.value * 0
        return self.value / self.count

    @property
    def total(self) -> float:
        """The sum, without its gradient."""
        value = self.value
        if hasattr(value, "detach"):
            value = value.detach()
        if self.is_mean:
            return float(value) * self.count
        return float(value)


def amounts_in(returned: Any, rows: int, subject: str) -> dict[str, Amount]:
    """Return the amounts that a user's function returned for a batch of ``rows``, by their names.

    Without a dict, the name is empty. Raises ConfigError, which begins with ``subject``, for other
    forms, other than real numbers, or a wrong count.
    """
    named = returned if isinstance(returned, Mapping) else {"": returned}
    if not named:
        raise ConfigError(f"{subject} returns an empty dict; it must return {FORMS}.")
    amounts = {}
    for name, value in named.items():
        if not isinstance(name, str) or (not name and isinstance(returned, Mapping)):
            raise ConfigError(
                f"{subject} returns a dict with the key {shown(name)}; its keys must be names."
            )
        place = f"{subject}: {name}" if name else subject
        if type(value) is tuple and len(value) == 2:
            total, count = value
            amounts[name] = Amount(_number(total, place), _count(count, place), is_mean=False)
        else:
            amounts[name] = Amount(_number(value, place), rows, is_mean=True)
    return amounts


def _number(value: Any, subject: str) -> Any:
    """Return a number, or a tensor of one number, as it is.

    Raises ConfigError for all other values.
    """
    with suppress(Exception):  # a user's object may raise anything
        if not hasattr(value, "is_meta"):  # no tensor
            if isinstance(value, int | float) or value.shape == ():
                float(value)  # it fails for huge integers and arrays of text
                return value
        if value.shape == () and not value.is_meta and not value.is_complex():
            return value
    raise ConfigError(f"{subject} returns {_describe(value)}; it must return {FORMS}.")


def _count(value: Any, subject: str) -> float:
    count = float(_number(value, f"{subject}: its count"))
    if not isfinite(count) or count < 0:
        raise ConfigError(
            f"{subject} returns a pair (sum, count) with the count {count:g}; it must be at "
            "least 0."
        )
    return count


def _describe(value: Any) -> str:
    """Describe a value by its type, and a tensor or array by its type and shape."""
    with suppress(Exception):
        if hasattr(value, "dtype"):
            kind = str(value.dtype).removeprefix("torch.")
            return f"a value of shape {tuple(value.shape)} and type {kind}"
    return f"a value of type {type(value).__name__}"
