"""The way between device and host memory, from where MPI sends."""

from collections.abc import Mapping

import torch


def empty_on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Host tensors to receive values for these: the very same ones where they are in host memory already."""
    return {
        name: tensor if tensor.device.type == "cpu" else torch.empty_like(tensor, device="cpu")
        for name, tensor in tensors.items()
    }


def on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return these tensors' values in host memory, without a copy where they are there already."""
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def copy_from_host(staged: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """The values that arrived in host memory, to where they are needed."""
    for name, tensor in tensors.items():
        if staged[name] is not tensor:
            tensor.copy_(staged[name])
