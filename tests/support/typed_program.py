"""A user's program as a type checker sees it: `tools/types` checks that each marked line is an error."""

import torch
from torch import nn

import istmpi


class Net(nn.Module):
    """A network with one width."""

    def __init__(self, features: int, hidden: int = 8):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.last = nn.Linear(hidden, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return two outputs for each row."""
        return self.last(torch.relu(self.first(x)))


def train(x: torch.Tensor, y: torch.Tensor) -> None:
    """Train for three rounds, and score."""
    job = istmpi.Distributed(
        Net, {"features": 3, "hidden": 8}, example=x, method="ist", local_steps=20, redeal=0.1, clip=1.0, seed=3
    )
    for round in job.rounds(3, folder="runs/mine", resume="auto"):
        for batch, labels in round.take([(x, y)]):
            round.step(nn.functional.cross_entropy(round.module(batch), labels))
    job.export("network.pt")


def mistakes(x: torch.Tensor) -> None:
    """Make mistakes that an editor marks."""
    istmpi.Distributed(Net, {}, example=x, local_step=20)  # type: ignore[call-arg]
    istmpi.Distributed(Net, {}, example=x, local_steps="20")  # type: ignore[arg-type]
    istmpi.Distributed(Net, {}, example=x, wire="int3")  # type: ignore[arg-type]
    job = istmpi.Distributed(Net, {}, example=x)
    job.rounds("3")  # type: ignore[arg-type]
    job.round(3)  # type: ignore[attr-defined]
    istmpi.Distributd(Net, {}, example=x)  # type: ignore[attr-defined]
