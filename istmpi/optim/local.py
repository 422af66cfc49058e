"""SGD, Adam and AdamW as PyTorch computes them, without PyTorch's compiler.

PyTorch's own classes import the compiler when they are created and when they step: 2 seconds and
70 MB on each rank. These use the same functions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

Group = dict[str, Any]


class _Local(torch.optim.Optimizer):
    def add_param_group(self, param_group: Group) -> None:
        # The checks of PyTorch's method are left out: its decorator imports the compiler.
        for name, default in self.defaults.items():
            param_group.setdefault(name, default)
        param_group["params"] = list(param_group["params"])
        self.param_groups.append(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = []
            gradients = []
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameters.append(parameter)
                    gradients.append(parameter.grad)
            self._update(parameters, gradients, group)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Delete all gradients; ``set_to_none`` is ignored."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: Group) -> None:
        """Move the parameters of a group that have gradients."""
        raise NotImplementedError


class SGD(_Local, torch.optim.SGD):
    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: Group) -> None:
        buffers: list[Tensor | None] = []
        if group["momentum"]:
            buffers = [self.state[values].get("momentum_buffer") for values in parameters]
        sgd(
            parameters,
            gradients,
            buffers,
            has_sparse_grad=any(gradient.is_sparse for gradient in gradients),
            foreach=group["foreach"],
            fused=group["fused"],
            lr=group["lr"],
            momentum=group["momentum"],
            weight_decay=group["weight_decay"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
        )
        if group["momentum"]:
            # The first step creates the buffers in the list.
            for values, buffer in zip(parameters, buffers, strict=True):
                self.state[values]["momentum_buffer"] = buffer


class Adam(_Local, torch.optim.Adam):
    # PyTorch's function. As a method, it would get the optimizer as its first argument.
    rule: Callable[..., None] = staticmethod(adam)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: Group) -> None:
        states = [self._find_state(values) for values in parameters]
        beta1, beta2 = group["betas"]
        self.rule(
            parameters,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],  # the largest averages, which only amsgrad reads
            [state["step"] for state in states],
            has_complex=any(values.is_complex() for values in parameters),
            foreach=group["foreach"],
            fused=group["fused"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def _find_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        # A subnet's optimizer may have got the state that travels with its weights.
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


class AdamW(Adam, torch.optim.AdamW):
    rule: Callable[..., None] = staticmethod(adamw)
