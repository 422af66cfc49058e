"""Finds the state of an optimizer by a few steps on small parameters."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from istmpi.code import ends_the_program
from istmpi.errors import ConfigError
from istmpi.optim.spec import OptimizerSpec

SHAPES = ((3, 5), (4,))
"""The shapes of the parameters."""
STEPS = 3

Make = Callable[..., torch.optim.Optimizer]


def probe(name: str, make: Make) -> OptimizerSpec:
    """Find an optimizer's spec by a few steps on small parameters. Raises ConfigError if that
    fails.

    The state can be kept from round to round if it has only a count of steps, tensors of a
    parameter's shape that start at zero and change in place, and values that no step reads.
    """
    trial = _Trial(name, make)
    slots, counts_steps, problem = _classify(trial.states[0][0], SHAPES[0])
    # An estimate: the step, and a moving average for each slot.
    flops = 2 + 4 * len(slots)
    if slots or counts_steps:
        kept = OptimizerSpec(
            name=name, slots=slots, counts_steps=counts_steps, flops=flops, make=make
        )
        if trial.needs_nothing_else(kept):
            problem = ""
        elif not problem:
            problem = "it does not start at zero, or it has more values"
    if problem:
        slots = ()
    return OptimizerSpec(
        name=name,
        slots=slots,
        counts_steps=counts_steps,
        flops=flops,
        make=make,
        problem=problem,
    )


class _Trial:
    """Steps of an optimizer with fixed gradients. ``values`` and ``states`` are those after each
    step, ``[step][parameter]``."""

    def __init__(self, name: str, make: Make):
        self._name = name
        self._make = make
        generator = torch.Generator().manual_seed(0)
        self._start = _draw(generator)
        self._gradients = [_draw(generator) for _ in range(STEPS)]
        self.values: list[list[torch.Tensor]] = []
        self.states: list[list[dict[str, Any]]] = []
        parameters, optimizer = self._begin(self._start)
        for number in range(STEPS):
            self.values.append(self._step(parameters, optimizer, number))
            self.states.append([_copy(optimizer.state[parameter]) for parameter in parameters])

    def needs_nothing_else(self, spec: OptimizerSpec) -> bool:
        """Return True if steps repeat from zeros, and from slots in the middle of a run."""
        try:
            return self.repeats(spec, 0) and self.repeats(spec, 2)
        except ConfigError:
            # The step reads a value that is no slot.
            return False

    def repeats(self, spec: OptimizerSpec, number: int) -> bool:
        """Return True if a new optimizer with the slots from before a step takes this step again
        in the same way, and in place."""
        parameters, optimizer = self._begin(self.values[number - 1] if number else self._start)
        slots = []
        for place, parameter in enumerate(parameters):
            if number:
                state = self.states[number - 1][place]
                slots.append({slot: state[slot].clone() for slot in spec.slots})
            else:
                slots.append({slot: torch.zeros_like(parameter.detach()) for slot in spec.slots})
            optimizer.state[parameter] = spec.state(slots[place], number)
        values = self._step(parameters, optimizer, number)
        if not all(map(torch.equal, values, self.values[number])):
            return False
        return all(
            # Rounds move the slots' memory, so an optimizer must not replace it.
            optimizer.state[parameter][slot].data_ptr() == tensor.data_ptr()
            for parameter, tensors in zip(parameters, slots, strict=True)
            for slot, tensor in tensors.items()
        )

    def _begin(
        self, values: Sequence[torch.Tensor]
    ) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
        """Return parameters with these values, and their optimizer."""
        parameters = [nn.Parameter(tensor.clone()) for tensor in values]
        try:
            optimizer = self._make(parameters)
        except BaseException as error:
            if ends_the_program(error):
                raise
            raise ConfigError(
                f"{self._name} cannot be created: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"{self._name} is {type(optimizer).__name__}, not a torch.optim.Optimizer. Several "
                "parts of a network take groups=, several networks a job each."
            )
        groups = getattr(optimizer, "param_groups", ())  # a class may not call super().__init__
        optimized = {id(parameter) for group in groups for parameter in group["params"]}
        if optimized.isdisjoint(map(id, parameters)):
            raise ConfigError(
                f"the {self._name} does not have the parameters it was given. Make it of these "
                "parameters."
            )
        return parameters, optimizer

    def _step(
        self, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, number: int
    ) -> list[torch.Tensor]:
        """Take the step of this number; return the new values."""
        for parameter, gradient in zip(parameters, self._gradients[number], strict=True):
            parameter.grad = gradient.clone()
        try:
            optimizer.step()
        except BaseException as error:
            if ends_the_program(error):
                raise
            raise ConfigError(
                f"{self._name} cannot step with gradients alone: {type(error).__name__}: {error}"
            ) from error
        return [parameter.detach().clone() for parameter in parameters]


def _draw(generator: torch.Generator) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def _copy(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if hasattr(value, "clone") else value for key, value in state.items()
    }


def _classify(
    state: Mapping[str, Any], shape: tuple[int, ...]
) -> tuple[tuple[str, ...], bool, str]:
    """Return the slots in a parameter's state, True if it counts steps, and a problem (or "") if it
    has more."""
    slots = tuple(key for key, value in state.items() if getattr(value, "shape", None) == shape)
    for key, value in state.items():
        if key not in slots and key != "step" and value is not None:
            return slots, "step" in state, f"{key} differs in shape from its parameter"
    return slots, "step" in state, ""
