"""The processes of a host train one subnet together: all of its GPUs, as DDP uses them inside a node.

    mpirun -n 4 python examples/replica_groups.py                    # two groups of two processes, on one host
    mpirun -n 4 python examples/replica_groups.py ist 512 60 1       # four ranks
    istmpi-run --ranks-per-host 8 python examples/replica_groups.py ist 512 60 0    # a group on each host

Each member of a group takes its part of every batch. The run's numbers are those of as many ranks as there are groups.
"""

import sys
from importlib.resources import files

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import istmpi


class Net(nn.Module):
    def __init__(self, features, hidden=512):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        return self.layers(x)


def accuracy(module, batch):
    x, y = batch
    return (module(x).argmax(1) == y).double().mean()


def splits():
    with np.load(files("istmpi.data") / "digits.npz") as arrays:
        x, y = torch.tensor(arrays["x"]).double() / 16, torch.tensor(arrays["y"]).long()
    return TensorDataset(x[:1437], y[:1437]), TensorDataset(x[1437:], y[1437:])


method, hidden, rounds, group_size, *_ = [*sys.argv[1:], *["ist", "512", "60", "2"][len(sys.argv) - 1 :]]
train, test = splits()
job = istmpi.Distributed(
    Net,
    {"features": 64, "hidden": int(hidden)},
    example=train[:31][0],
    group_size=int(group_size),
    method=method,
    local_steps=5,
    redeal=0.1,
    dtype="float64",
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    optimizer_state="carry",
    checkpoint_every=1,
)
loader = DataLoader(train, batch_size=31, shuffle=True)
for round in job.rounds(int(rounds), folder=f"runs/replica-groups-{method}-{group_size}", resume="auto"):
    for x, y in round.take(loader):  # this member's part of the group's batch
        x, y = x.to(round.device), y.to(round.device)
        round.step(functional.cross_entropy(round.module(x), y))
    score = job.evaluate(accuracy, DataLoader(test, batch_size=90), name="accuracy")
    if job.is_first:  # one process of the job; every member has the score
        print(f"round {round.number}: accuracy {score:.3f}")
job.export(f"runs/replica-groups-{method}-{group_size}/network.pt")
