"""Numbers of positions: integers, or fractions where they are expected over deals."""

from collections.abc import Iterable
from fractions import Fraction
from typing import TypeVar

Number = int | Fraction
Length = TypeVar("Length", int, Number)


def total(numbers: Iterable[Length]) -> Length:
    """Return the sum of integers as an integer, and of fractions as a number."""
    result: Length = 0
    for number in numbers:
        result = result + number
    return result


def product_of(numbers: Iterable[Length]) -> Length:
    """Return the product of integers as an integer, and of fractions as a number."""
    result: Length = 1
    for number in numbers:
        result = result * number
    return result
