"""The settings and counts that a method's description reads, and the elements that ranks receive in
an exchange."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from istmpi.config.method_settings import MethodSettings
    from istmpi.config.sections import Optimizer, Train
    from istmpi.data.settings import Data
    from istmpi.optim.course import Course


class ModelSettings(Protocol):
    @property
    def init(self) -> str: ...


class RunSettings(Protocol):
    """The settings that a method's description reads (of `istmpi.config.Run`, which knows all
    methods)."""

    @property
    def data(self) -> Data: ...

    @property
    def model(self) -> ModelSettings: ...

    @property
    def method(self) -> MethodSettings: ...

    @property
    def optimizer(self) -> Optimizer: ...

    @property
    def train(self) -> Train: ...

    def last_rounds(self, course: Course | None = None) -> set[int]: ...


class HeldCounts(Protocol):
    """The counts of elements that a method's description reads (of `istmpi.cost.holdings`)."""

    ranks: int

    @property
    def held_elements(self) -> int | Fraction: ...

    @property
    def network_elements(self) -> int: ...


def count_trained(run: RunSettings, held: HeldCounts) -> int | Fraction:
    """Return the elements that all ranks together hold while they train."""
    return held.held_elements


def count_reduced(run: RunSettings, held: HeldCounts) -> int:
    """Return the elements that all ranks together receive in an all-reduce by a ring."""
    return 2 * (held.ranks - 1) * held.network_elements


def count_gathered(run: RunSettings, held: HeldCounts) -> int:
    """Return the elements that all ranks together receive if each gets all others' networks."""
    return held.ranks * (held.ranks - 1) * held.network_elements
