"""Local steps of a subnet in our loop against the same narrow network in a bare PyTorch loop over the same examples.

    python benchmarks/local_step.py

Ours is `Method.local_steps` as a round calls it, on one rank: batches drawn and read, losses kept, checked and agreed
on. Bare is what one would write by hand: plain torch.nn layers, ready lists of row numbers, no bookkeeping at all. Both
start from the same weights and must end with the same. They take turns; every ratio is of two neighbours in time.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from reporting import report
from torch import nn
from torch.nn import functional

from istmpi.cli.main import main
from istmpi.comm import Communicator, world
from istmpi.comm.stopping import StopSign
from istmpi.config import Run
from istmpi.data.batches import Batches
from istmpi.data.dense import DenseSplit
from istmpi.engine.axes import narrowed
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.methods.base import InterruptedRound, Job
from istmpi.methods.ist import IST
from istmpi.models.mlp import MLP
from istmpi.record import Clock
from istmpi.tasks import CLASSIFICATION

EXAMPLES = 2048


@dataclass
class Pair:
    """The subnet of rank 0 in our loop, and its twin in plain PyTorch."""

    features: int
    hidden: tuple[int, ...]
    ranks: int
    run: Run
    communicator: Communicator

    def __post_init__(self) -> None:
        architecture = MLP(self.features, self.hidden, 10, output_norm=True)
        generator = np.random.default_rng(0)
        x = generator.standard_normal((EXAMPLES, self.features), dtype=np.float32)
        y = generator.integers(0, 10, EXAMPLES)
        self.batches = Batches(DenseSplit(x, y), np.arange(EXAMPLES), self.run.train.batch, seed=0, stream=0)
        store = ParameterStore(architecture.parameters, architecture.lengths, ranks=1, rank=0)
        job = Job(
            self.run,
            architecture,
            CLASSIFICATION,
            store,
            self.batches,
            self.communicator,
            torch.device("cpu"),
            Clock(),
            StopSign(self.communicator),
        )
        self.method = IST(job)
        partition = Partition.draw(architecture.lengths, architecture.groups, self.ranks, seed=0, round=0)
        lengths = narrowed(architecture.lengths, architecture.parameters, partition.held(0))
        self.subnet = self.method.build(lengths)
        self.method.network = self.subnet
        self.method.optimizer, _ = self.method.new_optimizer(self.subnet, 0, InterruptedRound())
        self.twin = bare_network([lengths[axis] for axis in ("features", *architecture.stages)])
        self.twin_optimizer = torch.optim.SGD(self.twin.parameters(), lr=self.run.optimizer.lr)
        with torch.no_grad():
            for mine, theirs in zip(self.subnet.parameters(), self.twin.parameters(), strict=True):
                mine.copy_(theirs)
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def ours(self, round: int) -> np.ndarray:
        """Wall clock and processor seconds of one round's local steps."""
        start = clocks()
        self.method.local_steps(round, InterruptedRound())
        return clocks() - start

    def bare(self, round: int) -> np.ndarray:
        """The same steps by hand."""
        steps = self.run.method.local_steps
        everyones_rows = [torch.from_numpy(self.batches.indices(round * steps + step)) for step in range(steps)]
        network, optimizer = self.twin, self.twin_optimizer
        start = clocks()
        for rows in everyones_rows:
            optimizer.zero_grad()
            functional.cross_entropy(network(self.x[rows]), self.y[rows]).backward()
            optimizer.step()
        return clocks() - start


def clocks() -> np.ndarray:
    """Seconds of the wall clock, and of this process on a processor."""
    return np.array([time.perf_counter(), time.process_time()])


def bare_network(widths: list[int]) -> nn.Sequential:
    """The MLP of the paper in PyTorch's own layers."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths[:-2], widths[1:-1]):
        layers += [
            nn.Linear(inputs, outputs, bias=False),
            nn.BatchNorm1d(outputs, track_running_stats=False),
            nn.ReLU(),
        ]
    layers += [nn.Linear(widths[-2], widths[-1], bias=False)]
    layers += [nn.BatchNorm1d(widths[-1], affine=False, track_running_stats=False)]
    return nn.Sequential(*layers)


def measure(
    features: int, hidden: tuple[int, ...], ranks: int, turns: int, run: Run, communicator: Communicator
) -> dict:
    """One row of the table."""
    pair = Pair(features, hidden, ranks, run, communicator)
    ours, bare = [], []
    for round in range(turns + 1):
        first, second = ((ours, pair.ours), (bare, pair.bare))[:: 1 if round % 2 else -1]
        for times, loop in (first, second):
            times.append(loop(round) / run.method.local_steps)
    for mine, theirs in zip(pair.subnet.parameters(), pair.twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    del ours[0], bare[0]  # Caches, allocator and torch's own start.
    ratios = np.array(ours) / np.array(bare)
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75), axis=0).tolist()
    return {
        "network": "-".join(map(str, (features, *hidden, 10))),
        "of P ranks": ranks,
        "ours ms": float(np.median(ours, axis=0)[0]) * 1e3,
        "bare ms": float(np.median(bare, axis=0)[0]) * 1e3,
        "ratio": middle[0],
        "quartiles": f"{low[0]:.3f} .. {high[0]:.3f}",
        "processor ratio": middle[1],
        "its quartiles": f"{low[1]:.3f} .. {high[1]:.3f}",
        "turns": turns,
    }


def benchmark() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--local-steps", type=int, default=20)
    options = parser.parse_args()
    communicator = world()
    run = Run().override({"method.local_steps": options.local_steps, "train.batch": 128})
    torch.set_num_threads(options.threads)
    rows = [
        measure(4096, (4096,), 4, 15, run, communicator),
        measure(3072, (2048, 2048), 4, 25, run, communicator),
        measure(64, (512, 512), 4, 101, run, communicator),
        measure(64, (512, 512), 1, 51, run, communicator),
    ]
    report(
        "local_step",
        f"A local step of a subnet against a bare PyTorch loop, {options.threads} thread(s), batch 128",
        rows,
        f"Milliseconds a step, medians over turns of {options.local_steps} steps. Ratio is the median over turns of "
        "ours / bare by the wall clock, processor ratio by the processor time of the process.",
    )


if __name__ == "__main__":
    main(benchmark)
