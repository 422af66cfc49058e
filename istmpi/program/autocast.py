"""The passes of a program's module in bfloat16, as `istmpi train` has them with train.autocast."""

from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from istmpi.trees import map_tensors


class Autocast:
    """Computes matrix products of the last watched module in bfloat16, if it is ``on``; its outputs
    are float32."""

    def __init__(self, on: bool):
        self._on = on
        self._handles: list[RemovableHandle] = []

    def watch(self, module: nn.Module, device: torch.device) -> None:
        if not self._on:
            return
        # Rounds may reuse a module, which would then have hooks for each of them.
        for handle in self._handles:
            handle.remove()
        passes = _Pass(device.type)
        self._handles = [
            module.register_forward_pre_hook(passes.begin),
            module.register_forward_hook(passes.end, always_call=True),
        ]


class _Pass:
    """The context of a forward pass, which two hooks open and close; passes may be nested."""

    def __init__(self, device: str):
        self._device = device
        self._open: list[torch.autocast] = []

    def begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        context = torch.autocast(self._device, torch.bfloat16)
        context.__enter__()
        self._open.append(context)

    def end(self, module: nn.Module, inputs: tuple[Any, ...], outputs: Any) -> Any:
        self._open.pop().__exit__(None, None, None)
        # The loss needs more precision than bfloat16 has.
        return map_tensors(_widen, outputs)


def _widen(x: torch.Tensor) -> torch.Tensor:
    if x.is_floating_point():
        return x.float()
    return x
