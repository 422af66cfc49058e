"""Copies between a rank's device and host memory, from which MPI sends.

A GPU copies to and from page-locked memory several times as fast as other memory. The copies of a
call follow each other on a stream of their own, and the call waits once, for all of them. A tensor
in host memory stays where it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch

Tensors = Mapping[str, torch.Tensor]


def empty_on_host(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return host tensors to receive values for ``tensors``; a tensor in host memory is returned
    itself."""
    staged = {}
    for name, tensor in tensors.items():
        staged[name] = tensor
        if tensor.device.type == "cuda":
            staged[name] = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return staged


def on_host(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors in host memory; a tensor that is in host memory is not copied."""
    staged = empty_on_host(tensors)
    with _copying(tensors.values()):
        for name, tensor in tensors.items():
            if staged[name] is not tensor:
                staged[name].copy_(tensor.detach(), non_blocking=True)
    return staged


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in host memory, as `on_host` does."""
    return on_host({"": tensor})[""]


def copy_from_host(staged: Tensors, tensors: Tensors) -> None:
    """Overwrite ``tensors`` with the values that ``staged`` has for them, unless it has the tensor
    itself."""
    with _copying(tensors.values()):
        for name, tensor in tensors.items():
            if staged[name] is not tensor:
                tensor.copy_(staged[name], non_blocking=True)


@contextmanager
def _copying(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Open a context for copies to or from the tensors' GPU, if they are on one."""
    gpus = [tensor.device for tensor in tensors if tensor.device.type == "cuda"]
    if not gpus:
        yield
        return
    stream = _make_stream(gpus[0])
    # Steps that still compute these values come first.
    stream.wait_stream(torch.cuda.current_stream(gpus[0]))
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@cache
def _make_stream(gpu: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(gpu)
