"""The form that all batches of a user's data set must have, so that its splits fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from istmpi.code import shown
from istmpi.errors import DataError
from istmpi.trees import list_tensors
from istmpi.units import counted


@dataclass(frozen=True)
class Form:
    """The form of examples that are a tensor of numbers with a class or numbers: those of the
    training data."""

    example: tuple[int, ...]
    target: tuple[int, ...]
    target_kind: str
    """``integer`` or ``float``."""
    classes: int
    """The number of classes; 0 for numbers to predict."""

    def require(self, inputs: Any, target: Any, rows: int, name: str) -> None:
        """Raise DataError, which begins with ``name``, if a batch of ``rows`` examples has another
        form."""
        if not isinstance(inputs, torch.Tensor) or not inputs.is_floating_point():
            raise DataError(
                f"{name} has examples of {_name_type(inputs)}, and the first training examples are "
                "floats. Give all examples one type."
            )
        if name_kind(target) != self.target_kind:
            raise DataError(
                f"{name} has targets of {name_kind(target)}, and the first training examples have "
                f"targets of {self.target_kind}. Give all splits targets of one type."
            )
        _require_shape("examples", inputs, self.example, rows, name)
        _require_shape("targets", target, self.target, rows, name)
        if self.classes:
            wrong = target[(target < 0) | (target >= self.classes)]
            if len(wrong):
                raise DataError(
                    f"{name} has class {int(wrong[0])}; there are {self.classes}, numbered from 0."
                )


def _require_shape(
    what: str, tensor: torch.Tensor, expected: tuple[int, ...], rows: int, name: str
) -> None:
    if tensor.shape[:1] != (rows,):
        raise DataError(
            f"{name}: its collate function makes {what} of shape {tuple(tensor.shape)} from "
            f"{counted(rows, 'example')}; the first axis must have {counted(rows, 'row')}."
        )
    if tuple(tensor.shape[1:]) != expected:
        raise DataError(
            f"{name} has {what} of shape {tuple(tensor.shape[1:])}, and the first training "
            f"examples have {expected}. Give all {what} one shape."
        )


def name_kind(target: Any) -> str:
    """Return ``float`` or ``integer`` for a tensor of numbers, otherwise the target's type."""
    # A bool is neither a class nor a number to predict: the user must say which.
    if not isinstance(target, torch.Tensor) or target.dtype == torch.bool or target.is_complex():
        return _name_type(target)
    if target.is_floating_point():
        return "float"
    return "integer"


def _name_type(value: Any) -> str:
    if isinstance(value, Mapping):
        return "dict"
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return type(value).__name__
    return str(dtype).removeprefix("torch.")


def _find_fault(tensor: torch.Tensor) -> str:
    """Return why a tensor cannot be sent to a network; empty if it can."""
    if tensor.is_meta:
        return "on the device meta, without values"
    if tensor.is_quantized:
        return "quantized"
    if tensor.layout != torch.strided or tensor.is_nested:
        return f"of the layout {tensor.layout}"
    return ""


def require_tensors(inputs: tuple[Any, ...], batch: Any, name: str) -> None:
    """Raise DataError if a batch has tensors that cannot be sent to a network, or inputs that are
    no tensors."""
    # Such tensors would fail later, with an error of torch that names no data set.
    for tensor in list_tensors((inputs, batch)):
        fault = _find_fault(tensor)
        if fault:
            raise DataError(
                f"{name} has tensors that are {fault}. Give plain tensors, or write a collate "
                "function."
            )
    for named in inputs:
        keys = named if isinstance(named, Mapping) else ()
        for key in keys:
            if not isinstance(key, str):
                raise DataError(
                    f"{name} has inputs with the key {shown(key)}. Keys must be names of arguments "
                    "of forward."
                )
    tensors = [*list_tensors(inputs)]
    if not tensors:
        raise DataError(
            f"{name} has inputs without tensors. Turn texts, arrays and other objects into tensors."
        )
    if not all(prod(tensor.shape) for tensor in tensors):
        raise DataError(f"{name} has inputs without values, of shape {tuple(tensors[0].shape)}.")
