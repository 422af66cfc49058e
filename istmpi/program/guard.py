"""Checks of a user's loop: its inputs are on the module's device, and it replaces no values that
istmpi does not know of."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from istmpi.errors import ConfigError
from istmpi.trees import list_tensors

WATCHED = 2**24
"""Buffers of fewer bytes than this, and frozen parameters, are checked: a loop that changes them
gets a ConfigError."""


def require_on(
    device: torch.device, network: str, inputs: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Raise ConfigError if an input tensor is on another device. ``network``: the first words of
    the error."""
    if not named and all(type(x) is torch.Tensor and x.device == device for x in inputs):
        return  # the usual case; every pass comes here
    for x in list_tensors((inputs, named)):
        if x.device != device:
            raise ConfigError(
                f"{network} on {device} and its input on {x.device}. Use batch.to({str(device)!r})."
            )


class Check:
    """A check before a pass of a module. A copy of the module, such as an average of weights, has
    no check."""

    def __init__(self, check: Callable[..., None] | None = None):
        self._check = check

    def __call__(self, *inputs: Any) -> None:
        if self._check:
            self._check(*inputs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Check":
        return Check()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Check, ()


class Guard:
    """Calls a check before each pass of the last watched module."""

    _handle: RemovableHandle | None = None

    def watch(self, module: nn.Module, check: Callable[..., None]) -> None:
        # Rounds may reuse a module, which would then have a check for each of them.
        if self._handle:
            self._handle.remove()
        self._handle = module.register_forward_pre_hook(check, with_kwargs=True)


class Contents:
    """The memory of a module's parameters, and the values of its buffers, at a point in time."""

    def __init__(self, module: nn.Module, frozen: Collection[str]):
        """``frozen``: buffers that nothing writes to, so that they need no copy."""
        self._module = module
        self._places = {name: values.data_ptr() for name, values in module.named_parameters()}
        self._buffers: dict[str, tuple[int, torch.Tensor | None]] = {}
        """The version and the values (None for frozen ones) of each checked buffer."""
        for name, values in module.named_buffers():
            if name in frozen:
                self._buffers[name] = values._version, None
            elif values.nbytes < WATCHED:
                self._buffers[name] = values._version, values.clone()

    def find_change(self) -> str:
        """Return a sentence, without a stop, about a replaced parameter or a changed buffer; empty
        if there is none."""
        for name, parameter in self._module.named_parameters():
            # Optimizers write in place, so another address means another tensor.
            if self._places.get(name) != parameter.data_ptr():
                return (
                    f"parameter {name} of round.module was replaced. Change its values in place, "
                    "under torch.no_grad()"
                )
        for name, values in self._module.named_buffers():
            if name in self._buffers and self._is_changed(name, values):
                return (
                    f"buffer {name} of round.module was changed: buffers are neither sent nor "
                    "saved. Keep such values in the program, or make them parameters"
                )
        return ""

    def _is_changed(self, name: str, values: torch.Tensor) -> bool:
        version, before = self._buffers[name]
        # Comparing values is slow, and a version changes with each write.
        if version == values._version:
            return False
        return before is None or not torch.equal(before, values)


def find_fault(loss: Any) -> str:
    """Say what is wrong with a loss: it must be one real number with a gradient. Empty if nothing
    is."""
    kind = ""
    if not isinstance(loss, torch.Tensor):
        kind = type(loss).__name__
    elif loss.numel() != 1:
        kind = str(tuple(loss.shape))
    if kind:
        return (
            f"the loss is {kind}; it must be a tensor of one number. Take the mean over the batch"
        )
    if loss.is_complex():
        return "the loss is complex; it must be a real number"
    if not loss.requires_grad:
        return (
            "the loss has no gradient. Compute it from round.module, without torch.no_grad or "
            "detach"
        )
    return ""


def find_fault_of_sum(summed: bool, together: bool) -> str:
    """Return what is wrong if a loop asks for the sum of all subnets' outputs; empty if nothing is.

    ``summed``: True if it has asked before in this local step. ``together``: True if its batches
    are those of all ranks.
    """
    if summed:
        return "round.outputs is called a second time in a local step. Keep what it has returned"
    if not together:
        return "ranks add up outputs for the same batches: call round.take(loader) for these"
    return ""


def find_fault_of_update(closure: object, lacks_sum: bool) -> str:
    """Return what is wrong if a loop calls the optimizer's step; empty if nothing is.

    ``lacks_sum``: True if the loss needs the outputs of all subnets, for which the loop did not
    ask.
    """
    if closure is not None:
        return (
            "round.optimizer.step takes no closure: compute the loss once, and call loss.backward()"
        )
    if lacks_sum:
        return (
            "the loss of this method needs the outputs of all subnets. Write loss = "
            "my_loss(round.outputs(round.module(x)), y)"
        )
    return ""
