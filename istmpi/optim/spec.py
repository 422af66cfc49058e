"""A local optimizer: its settings, its state, and how it is created."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from istmpi.errors import ConfigError

if TYPE_CHECKING:
    import torch


class OptimizerSettings(Protocol):
    """The section ``optimizer`` of a run's settings."""

    @property
    def name(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def betas(self) -> tuple[float, float] | None: ...
    @property
    def eps(self) -> float | None: ...
    @property
    def arguments(self) -> dict[str, Any] | None: ...
    @property
    def state(self) -> Sequence[str] | None: ...
    @property
    def warm_up(self) -> int: ...
    @property
    def schedule(self) -> str: ...
    @property
    def least_lr(self) -> float: ...
    @property
    def milestones(self) -> tuple[float, ...]: ...
    @property
    def decay(self) -> float: ...


@dataclass(frozen=True)
class OptimizerSpec:
    """A local optimizer and its state. ``slots``: the names of the state tensors, which are zero at
    first.

    ``counts_steps``: True if the state also has the number of steps. ``problem``: the reason why
    the state cannot be kept from round to round, empty if it can.
    """

    name: str
    slots: tuple[str, ...]
    counts_steps: bool
    flops: int
    """Operations of a step per element, without operations done once for all elements (bias
    corrections)."""
    make: Callable[..., "torch.optim.Optimizer"]
    problem: str = ""

    def keep_slots(self) -> tuple[str, ...]:
        """Return the names of the state that is kept. Raises ConfigError if it cannot be kept."""
        if self.problem:
            raise ConfigError(
                f"the state of {self.name} cannot be kept between rounds: {self.problem}. Use "
                "optimizer_state = reset with a method that allows it, or another optimizer."
            )
        return self.slots

    def state(self, slots: Mapping[str, "torch.Tensor"], steps: int) -> dict[str, Any]:
        """Return a parameter's entry in the optimizer's state after ``steps`` steps."""
        # Plans on a login node read a spec, but no state, and must not import torch.
        import torch

        if self.counts_steps:
            return {**slots, "step": torch.tensor(float(steps))}
        return {**slots}
