"""A local step of a user's own loop against a bare PyTorch loop of the same network, optimizer and batches.

    python -m benchmarks.scale.own_loop

One rank, local SGD, so that both train the same widths. Rounds of 50 local steps and as many bare steps take turns; a
ratio is of two neighbours in time. The weights after both are the same but for rounding.
"""

import tempfile
import time
from statistics import median

import torch
from torch import nn
from torch.nn import functional

import istmpi
from benchmarks.reporting import report

STEPS, ROUNDS = 50, 41


class Dense(nn.Module):
    """Three dense layers."""

    def __init__(self, features, outputs, hidden=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )

    def forward(self, x):
        return self.layers(x)


class Convolutions(nn.Module):
    """Two convolutions of images of 16 pixels, and a dense layer."""

    def __init__(self, features, outputs, channels=16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(features, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(channels, channels, 3)
        )
        self.last = nn.Linear(channels * 36, outputs)

    def forward(self, x):
        return self.last(self.layers(x).flatten(1))


CASES = {
    "dense, 256 wide, batches of 128": (Dense, {}, (128, 64)),
    "dense, 1,024 wide, batches of 128": (Dense, {"hidden": 1024}, (128, 64)),
    "dense, 16 wide, batches of 8": (Dense, {"hidden": 16}, (8, 64)),
    "convolutions, 16 channels, batches of 32": (Convolutions, {}, (32, 3, 16, 16)),
}


def optimizer_of(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def bare(network, optimizer, batches):
    began = time.perf_counter()
    for x, y in batches:
        optimizer.zero_grad()
        functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return (time.perf_counter() - began) / len(batches)


def ratio_of(kind, arguments, shape):
    """Return the milliseconds of a bare step, and the ratios of neighbours in time."""
    torch.manual_seed(0)
    batches = [(torch.randn(shape), torch.randint(10, shape[:1])) for _ in range(STEPS)]
    arguments = {"features": shape[1], "outputs": 10, **arguments}
    settings = {"method": "local-sgd", "optimizer_state": "reset", "threads": 1, "local_steps": STEPS}
    job = istmpi.Distributed(kind, arguments, example=batches[0][0], optimizer=optimizer_of, **settings)
    network = kind(**arguments)
    optimizer, ratios, steps = optimizer_of(network.parameters()), [], []
    with tempfile.TemporaryDirectory() as folder:
        for round in job.rounds(ROUNDS, folder=f"{folder}/run", watch=istmpi.Watch()):
            taken = round.take(batches)
            began = time.perf_counter()
            for number, (x, y) in enumerate(taken, 1):
                round.step(functional.cross_entropy(round.module(x), y))
                if number == STEPS:
                    own = (time.perf_counter() - began) / STEPS
            steps.append(bare(network, optimizer, batches))
            ratios.append(own / steps[-1])
    return 1e3 * median(steps), ratios[1:]


def main():
    torch.set_num_threads(1)
    rows = []
    for name, case in CASES.items():
        step, ratios = ratio_of(*case)
        low, middle, high = (round(sorted(ratios)[len(ratios) * quarter // 4], 3) for quarter in (1, 2, 3))
        rows.append({"network": name, "bare step, ms": round(step, 3), "ratio": middle, "quartiles": f"{low}, {high}"})
    report("own-loop", "A local step of a user's own loop against a bare PyTorch loop", rows, "Medians of 40 rounds.")


if __name__ == "__main__":
    main()
