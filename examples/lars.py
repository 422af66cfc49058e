"""LARS (You, Gitman, Ginsburg 2017): momentum whose rate is each tensor's own, by the norms of weight and gradient.

mpirun -n 4 istmpi train digits --method data-parallel --optimizer examples/lars.py:Lars --lr 4 --batch 128
"""

import torch


class Lars(torch.optim.Optimizer):
    """Trains matrices and kernels by LARS, vectors (biases, normalisations) by plain momentum."""

    def __init__(self, params, lr=1.0, momentum=0.9, weight_decay=0.0, trust=0.02):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, group)

    def _move(self, weight, group):
        change = weight.grad
        rate = group["lr"] * group["trust"]
        if weight.ndim > 1:
            change = change + group["weight_decay"] * weight
            norm, slope = weight.norm(), change.norm()
            if norm > 0 and slope > 0:
                change = change * (norm / slope)
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].mul_(group["momentum"]).add_(change, alpha=float(rate))
        weight.sub_(state["momentum"])
