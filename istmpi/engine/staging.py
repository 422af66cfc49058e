"""Copies between device and host memory, from which MPI sends."""

from collections.abc import Mapping

import torch

Tensors = Mapping[str, torch.Tensor]


def empty_on_host(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return host tensors to receive values for these: the same ones where they are in host memory already."""
    return {
        name: tensor if tensor.device.type == "cpu" else torch.empty_like(tensor, device="cpu")
        for name, tensor in tensors.items()
    }


def on_host(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return these tensors' values in host memory, without a copy where they are there already."""
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def copy_from_host(staged: Tensors, tensors: Tensors) -> None:
    """Copy values that arrived in host memory to the tensors that need them."""
    for name, tensor in tensors.items():
        if staged[name] is not tensor:
            tensor.copy_(staged[name])
