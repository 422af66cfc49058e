"""Peak memory of each rank while a user's own loop trains a network that is larger than any of them holds.

    mpirun -n 4 python -m benchmarks.scale.own_memory [WIDTH]

Three hidden layers of WIDTH units (22,000: 3.9 GB), a class that says LARGE; 3 rounds and an evaluation.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import istmpi
from benchmarks.reporting import report
from benchmarks.scale.memory import status


class Large(nn.Module):
    """Dense layers."""

    LARGE = True

    def __init__(self, features, outputs, hidden=(64, 64, 64)):
        super().__init__()
        widths = [features, *hidden]
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))
        self.last = nn.Linear(widths[-1], outputs)

    def forward(self, x):
        for layer in self.layers:
            x = functional.relu(layer(x))
        return self.last(x)


def peak() -> float:
    """The highest resident memory in MB since this was last asked for."""
    most = status("VmHWM")
    Path("/proc/self/clear_refs").write_text("5")
    return most


def main():
    width = int(sys.argv[1]) if len(sys.argv) > 1 else 22_000
    communicator, rows = istmpi.world(), []
    x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))

    def note(stage):
        most = communicator.allgather(peak())
        rows.append({"until": stage, "highest peak of a rank, MB": int(max(most)), "lowest": int(min(most))})

    def loss_of(module, batch):
        return functional.cross_entropy(module(batch[0]), batch[1])

    note("MPI and torch are up")
    arguments = {"features": 64, "outputs": 10, "hidden": [width] * 3}
    settings = {"method": "ist", "local_steps": 3, "lr": 0.01, "redeal": 0.1}
    job = istmpi.Distributed(Large, arguments, communicator, example=x, **settings)
    note("it is examined and initialised")
    with tempfile.TemporaryDirectory() as folder:
        for round in job.rounds(3, folder=f"{folder}/run", watch=istmpi.Watch(), network=False):
            for _ in round.steps():
                round.step(loss_of(round.module, (x, y)))
            note(f"round {round.number} is done")
        job.evaluate(loss_of, [(x, y)] * communicator.size)
        note("it is evaluated")
    if communicator.rank == 0:
        architecture = job.training.architecture
        weights = sum(each.size(architecture.lengths) * each.itemsize for each in architecture.parameters.values())
        title = f"Memory of a user's own loop, {weights / 1e6:,.0f} MB of weights on {communicator.size} ranks"
        report("own-loop-memory", title, rows, "Resident memory, Python, torch and MPI included.", "mpirun -n 4")


if __name__ == "__main__":
    main()
