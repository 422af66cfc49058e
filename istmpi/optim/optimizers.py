"""The local optimizers, and the per-element state that may travel with a weight."""

import json
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from istmpi.code import import_user_module
from istmpi.errors import ConfigError, did_you_mean
from istmpi.optim.spec import OptimizerSettings, OptimizerSpec
from istmpi.settings import shown

if TYPE_CHECKING:
    import torch

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
"""The names of optimizers, and their classes in `istmpi.optim.local`."""
PROGRAM = "program"
"""The name of an optimizer that a user's program makes (`istmpi.optim.own_optimizer`)."""


def choose_optimizer(settings: OptimizerSettings) -> OptimizerSpec:
    """Return the optimizer of a run's settings. Raises ConfigError if its name or a setting does
    not fit."""
    if settings.name not in ("adam", "adamw"):
        _require_no_moments(settings)
    if ":" in settings.name:
        return _load_class(settings)
    if settings.name == PROGRAM:
        state = settings.state or ()
        slots = tuple(name for name in state if name != "step")
        # The operations are an estimate: the step, and a moving average for each slot.
        return OptimizerSpec(
            name=PROGRAM,
            slots=slots,
            counts_steps="step" in state,
            flops=2 + 4 * len(slots),
            make=_refuse,
        )
    if settings.name == "sgd":
        return _choose_sgd(settings)
    if settings.name in OPTIMIZERS:
        return _choose_adam(settings)
    raise ConfigError(
        f"optimizer.name = {settings.name!r} is not known{did_you_mean(settings.name, OPTIMIZERS)}"
    )


def _list_moments(settings: OptimizerSettings) -> dict[str, Any]:
    """Return the settings of moving averages that the run sets."""
    moments = {"betas": settings.betas, "eps": settings.eps}
    return {name: value for name, value in moments.items() if value is not None}


def _require_no_moments(settings: OptimizerSettings) -> None:
    for name, value in _list_moments(settings).items():
        raise ConfigError(
            f"optimizer.{name} = {shown(value)} is for adam and adamw, not {settings.name}. Leave "
            "it out, or write it into optimizer.arguments of a class."
        )


def _choose_sgd(settings: OptimizerSettings) -> OptimizerSpec:
    slots = ("momentum_buffer",) if settings.momentum else ()
    # A product and a sum for each: the step itself, momentum and weight decay.
    flops = 2 + 2 * bool(settings.momentum) + 2 * bool(settings.weight_decay)
    return _choose_ours(settings, slots, flops, momentum=settings.momentum)


def _choose_adam(settings: OptimizerSettings) -> OptimizerSpec:
    # Two moving averages (3 and 4), a root (1), the quotient by it (3) and the update (2).
    flops = 13 + 2 * bool(settings.weight_decay)
    return _choose_ours(settings, ("exp_avg", "exp_avg_sq"), flops, **_list_moments(settings))


def _choose_ours(
    settings: OptimizerSettings, slots: tuple[str, ...], flops: int, **arguments: Any
) -> OptimizerSpec:
    """Return the spec of an optimizer of `istmpi.optim.local`, made with ``arguments``."""

    def make(parameters: "Iterable[torch.Tensor]") -> "torch.optim.Optimizer":
        # A plan of a run on a login node reads the spec, and must not import torch.
        from istmpi.optim import local

        kind = getattr(local, OPTIMIZERS[settings.name])
        return kind(parameters, lr=settings.lr, weight_decay=settings.weight_decay, **arguments)

    return OptimizerSpec(
        name=settings.name,
        slots=slots,
        counts_steps=settings.name != "sgd",
        flops=flops,
        make=make,
    )


def _refuse(parameters: object) -> "torch.optim.Optimizer":
    raise ConfigError(
        f"optimizer.name = {PROGRAM!r} is set by a program: run the program, or give another "
        "optimizer."
    )


def _load_class(settings: OptimizerSettings) -> OptimizerSpec:
    """Return the spec of a user's optimizer class."""
    arguments: dict[str, Any] = {"lr": settings.lr}
    # A class may not know these two, so only values that change something are passed.
    if settings.momentum:
        arguments["momentum"] = settings.momentum
    if settings.weight_decay:
        arguments["weight_decay"] = settings.weight_decay
    arguments |= settings.arguments or {}
    return _probe_class(settings.name, json.dumps(arguments, sort_keys=True))


@cache
def _probe_class(place: str, arguments: str) -> OptimizerSpec:
    """``arguments`` is JSON, because a dict is no key of a cache."""
    from istmpi.optim.probe import probe

    module, name = import_user_module("optimizer.name =", place, "Class")
    kind = getattr(module, name, None)
    if kind is None:
        raise ConfigError(f"optimizer.name = {place} has no class {name}.")
    named = json.loads(arguments)
    return probe(place, lambda parameters: kind(parameters, **named))
