"""The local optimizers, and the per-element state that may travel with a weight."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from istmpi.code import ends_the_program, module_of
from istmpi.errors import ConfigError, did_you_mean
from istmpi.settings import shown

if TYPE_CHECKING:
    import torch


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

    def kept_slots(self) -> tuple[str, ...]:
        if self.problem:
            raise ConfigError(
                f"the state of {self.name} cannot be kept between rounds: {self.problem}. Use optimizer_state "
                "= reset with a method that allows it, or another optimizer."
            )
        return self.slots

    def state(self, slots: Mapping[str, "torch.Tensor"], steps: int) -> dict[str, Any]:
        import torch

        return {**slots, **({"step": torch.tensor(float(steps))} if self.counts_steps else {})}


def optimizer_spec(settings: object) -> OptimizerSpec:
    """Return the optimizer of a run's settings. Raises ConfigError if its name or a setting does
    not fit."""
    for name, value in () if settings.name in ("adam", "adamw") else _moments(settings).items():
        cure = "Leave it out, or write it into optimizer.arguments of a class."
        raise ConfigError(
            f"optimizer.{name} = {shown(value)} is for adam and adamw, not {settings.name}. {cure}"
        )
    if ":" in settings.name:
        return _of_a_class(settings)
    if settings.name == PROGRAM:
        slots = tuple(name for name in settings.state or () if name != "step")
        return OptimizerSpec(PROGRAM, slots, slots != settings.state, 2 + 4 * len(slots), _none)
    if settings.name not in OPTIMIZERS:
        raise ConfigError(
            f"optimizer.name = {settings.name!r} is not known{did_you_mean(settings.name, OPTIMIZERS)}"
        )
    return _of_torch(settings)


def _moments(settings: object) -> dict[str, Any]:
    return {
        name: value for name in ("betas", "eps") if (value := getattr(settings, name)) is not None
    }


@cache
def _optimizer(kind: str) -> type["torch.optim.Optimizer"]:
    import torch

    torch_class = getattr(torch.optim, kind)
    methods = {
        name: inspect.unwrap(getattr(torch_class, name)) for name in ("step", "add_param_group")
    }
    methods |= {"step": torch.no_grad()(methods["step"]), "zero_grad": _forget_gradients}
    return type(kind, (torch_class,), methods)


def _forget_gradients(optimizer, **_) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
"""The names of optimizers, and their classes in torch.optim."""


def _of_torch(settings) -> OptimizerSpec:
    kind, sgd = OPTIMIZERS[settings.name], settings.name == "sgd"
    arguments = {"momentum": settings.momentum} if sgd else _moments(settings)
    arguments |= {"lr": settings.lr, "weight_decay": settings.weight_decay}
    slots = (("momentum_buffer",) * bool(settings.momentum)) if sgd else ("exp_avg", "exp_avg_sq")
    # Adam: two moving averages (3 and 4), a root (1), the quotient by it (3) and the update (2).
    flops = (2 + 2 * bool(settings.momentum) if sgd else 13) + 2 * bool(settings.weight_decay)
    return OptimizerSpec(
        settings.name,
        slots,
        not sgd,
        flops,
        lambda parameters: _optimizer(kind)(parameters, **arguments),
    )


PROGRAM = "program"
"""The name of an optimizer that a user's program makes (`istmpi.optim.own_optimizer`)."""


def _none(parameters: object) -> "torch.optim.Optimizer":
    raise ConfigError(
        f"optimizer.name = {PROGRAM!r} is set by a program: run the program, or give another optimizer."
    )


def _of_a_class(settings) -> OptimizerSpec:
    shared = {"momentum": settings.momentum, "weight_decay": settings.weight_decay}
    arguments = {"lr": settings.lr} | {key: value for key, value in shared.items() if value}
    arguments |= settings.arguments or {}
    return _probed_class(settings.name, json.dumps(arguments, sort_keys=True))


@cache
def _probed_class(place: str, arguments: str) -> OptimizerSpec:
    module, name = module_of("optimizer.name =", place, "Class")
    kind = getattr(module, name, None)
    if kind is None:
        raise ConfigError(f"optimizer.name = {place} has no class {name}.")
    named = json.loads(arguments)
    return probed(place, lambda parameters: kind(parameters, **named))


def probed(name: str, make: Callable[..., "torch.optim.Optimizer"]) -> OptimizerSpec:
    """Find an optimizer's spec by a few steps on small parameters. Raises ConfigError if that
    fails.

    The state can be kept from round to round if it has only a count of steps, and tensors of a
    parameter's shape that start at zero and change in place.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((3, 5), (4,))]
    gradients = [
        [torch.randn(values.shape, generator=generator) for values in start] for _ in range(3)
    ]

    def begin(values):
        parameters = [torch.nn.Parameter(each.clone()) for each in values]
        try:
            optimizer = make(parameters)
        except BaseException as error:
            if ends_the_program(error):
                raise
            raise ConfigError(
                f"{name} cannot be created: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(f"{name} is {type(optimizer).__name__}, not a torch.optim.Optimizer.")
        groups = getattr(optimizer, "param_groups", ())  # a class may not call super().__init__
        if {id(each) for group in groups for each in group["params"]}.isdisjoint(
            map(id, parameters)
        ):
            raise ConfigError(
                f"the {name} does not have the parameters it was given. Make it of these parameters."
            )
        return parameters, optimizer

    def step(parameters, optimizer, number):
        for parameter, gradient in zip(parameters, gradients[number], strict=True):
            parameter.grad = gradient.clone()
        try:
            optimizer.step()
        except BaseException as error:
            if ends_the_program(error):
                raise
            raise ConfigError(
                f"{name} cannot step with gradients alone: {type(error).__name__}: {error}"
            ) from error
        return [parameter.detach().clone() for parameter in parameters]

    parameters, optimizer = begin(start)
    values, states = [], []
    for number in range(len(gradients)):
        values.append(step(parameters, optimizer, number))
        states.append([dict(optimizer.state[parameter]) for parameter in parameters])
        states[-1] = [{key: _copied(value) for key, value in state.items()} for state in states[-1]]
    slots, counts, problem = _kinds(states[0][0], start[0].shape)
    spec = OptimizerSpec(name, slots, counts, 2 + 4 * len(slots), make, problem)
    for first in (0, 2) if (slots or counts) and not problem else ():
        parameters, optimizer = begin(values[first - 1] if first else start)
        kept = []
        for place, parameter in enumerate(parameters):
            zeros = {slot: torch.zeros_like(parameter.detach()) for slot in slots}
            kept.append(
                {slot: states[first - 1][place][slot].clone() for slot in slots} if first else zeros
            )
            optimizer.state[parameter] = spec.state(kept[-1], first)
        same = all(map(torch.equal, step(parameters, optimizer, first), values[first]))
        in_place = all(
            optimizer.state[parameter][slot].data_ptr() == tensor.data_ptr()
            for parameter, state in zip(parameters, kept, strict=True)
            for slot, tensor in state.items()
        )
        if not (same and in_place):
            problem = "it does not start at zero, or it has more values"
    return OptimizerSpec(name, () if problem else slots, counts, spec.flops, make, problem)


def _copied(value):
    return value.clone() if hasattr(value, "clone") else value


def _kinds(state: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[tuple[str, ...], bool, str]:
    """Return the slots in a parameter's state, True if it counts steps, and a problem (or "") if it
    has more."""
    slots = tuple(key for key, value in state.items() if getattr(value, "shape", None) == shape)
    others = [
        key
        for key, value in state.items()
        if key not in slots and key != "step" and value is not None
    ]
    problem = f"{others[0]} differs in shape from its parameter" if others else ""
    return slots, "step" in state, problem
