"""The local optimizers, and the per-element state that may travel with a weight."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from istmpi.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer: how it is made from the run's settings, and the state that it keeps for every element.

    A slot starts at zero. ``counts_steps``: the optimizer also counts its steps, the same number for all elements.
    """

    name: str
    slots: tuple[str, ...]
    counts_steps: bool
    flops: int
    """Operations of a step for every element, bias corrections and the like that are the same for all left out."""
    make: Callable[..., "torch.optim.Optimizer"]

    def state(self, slots: Mapping[str, "torch.Tensor"], steps: int) -> dict[str, Any]:
        """The optimizer's own state of one parameter, from its slots and the local steps done so far."""
        import torch

        return {**slots, **({"step": torch.tensor(float(steps))} if self.counts_steps else {})}


def optimizer_spec(settings: object) -> OptimizerSpec:
    """The optimizer of a run's settings; ConfigError with the nearest name where there is none."""
    if settings.name not in OPTIMIZERS:
        raise ConfigError(f"optimizer.name = {settings.name!r} is not known{did_you_mean(settings.name, OPTIMIZERS)}")
    return OPTIMIZERS[settings.name](settings)


@cache
def _optimizer(kind: str) -> type["torch.optim.Optimizer"]:
    import torch

    torch_class = getattr(torch.optim, kind)
    methods = {name: inspect.unwrap(getattr(torch_class, name)) for name in ("step", "zero_grad", "add_param_group")}
    return type(kind, (torch_class,), {**methods, "step": torch.no_grad()(methods["step"])})


def _sgd(settings) -> OptimizerSpec:
    def make(parameters):
        return _optimizer("SGD")(
            parameters, lr=settings.lr, momentum=settings.momentum, weight_decay=settings.weight_decay
        )

    flops = 2 + 2 * bool(settings.momentum) + 2 * bool(settings.weight_decay)
    return OptimizerSpec("sgd", ("momentum_buffer",) if settings.momentum else (), False, flops, make)


def _adam(kind: str) -> Callable[[Any], OptimizerSpec]:
    def adam(settings) -> OptimizerSpec:
        def make(parameters):
            return _optimizer(kind)(parameters, lr=settings.lr, weight_decay=settings.weight_decay)

        # Two moving averages (3 and 4), the root, what divides by it (3) and the update (2).
        flops = 13 + 2 * bool(settings.weight_decay)
        return OptimizerSpec(settings.name, ("exp_avg", "exp_avg_sq"), True, flops, make)

    return adam


OPTIMIZERS: dict[str, Callable[[Any], OptimizerSpec]] = {"sgd": _sgd, "adam": _adam("Adam"), "adamw": _adam("AdamW")}
