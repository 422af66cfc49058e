"""Local steps of a subnet in our loop against the same narrow network in a bare PyTorch loop over the same examples.

    python -m benchmarks.scale.local_step

Ours is `Method.local_steps` as a round calls it, on one rank: batches drawn and read, losses kept, checked and agreed
on. Bare is what one would write by hand: plain torch.nn layers, ready lists of row numbers, no bookkeeping at all. Both
start from the same weights and must end with the same. They take turns; every ratio is of two neighbours in time.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.reporting import report
from istmpi.cli.main import main
from istmpi.comm import Communicator, world
from istmpi.comm.clock import Clock
from istmpi.comm.stopping import StopSign
from istmpi.config import Run
from istmpi.data.batches import Batches
from istmpi.data.dense.split import DenseSplit
from istmpi.engine.axes import narrow
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.methods.ist import IST
from istmpi.methods.job import Job
from istmpi.models import mlp_network
from istmpi.tasks import CLASSIFICATION, TASKS

EXAMPLES = 2048


@dataclass
class Pair:
    """The subnet of rank 0 in our loop, and its twin in plain PyTorch."""

    name: str
    job: Job
    ranks: int
    twin: Callable[[dict[str, int]], nn.Module]
    examples: tuple[torch.Tensor, torch.Tensor]
    """All of them, of which the twin takes rows."""

    def __post_init__(self) -> None:
        job, architecture = self.job, self.job.architecture
        self.method = IST(job)
        groups = architecture.default_groups
        partition = Partition.draw(architecture.lengths, groups, self.ranks, seed=0, round=0)
        lengths = narrow(architecture.lengths, architecture.parameters, partition.held(0))
        job.store.scale = {name: lengths[name] / architecture.lengths[name] for name in job.store.scale}
        self.method.subnet.build(lengths)
        self.method.subnet.renew(0)
        self.subnet = self.method.subnet.network
        self.network = self.twin(lengths)
        with torch.no_grad():
            for mine, theirs in zip(self.subnet.parameters(), self.network.parameters(), strict=True):
                mine.copy_(torch.randn_like(theirs) / theirs.shape[-1] ** 0.5 if theirs.ndim > 1 else theirs)
                theirs.copy_(mine)
        self.twin_optimizer = torch.optim.SGD(self.network.parameters(), lr=job.run.optimizer.lr)

    def ours(self, round: int) -> np.ndarray:
        """Wall clock and processor seconds of one round's local steps."""
        start = clocks()
        for step in self.method.local_steps(round):
            self.method.take(round, step)
        return clocks() - start

    def bare(self, round: int) -> np.ndarray:
        """The same steps by hand."""
        steps = self.job.run.method.local_steps
        batches = [torch.from_numpy(self.job.batches.indices(round * steps + step)) for step in range(steps)]
        examples, targets = self.examples
        network, optimizer = self.network, self.twin_optimizer
        start = clocks()
        for rows in batches:
            optimizer.zero_grad()
            functional.cross_entropy(network(examples[rows]), targets[rows]).backward()
            optimizer.step()
        return clocks() - start


def mlp(features: int, hidden: tuple[int, ...], ranks: int, steps: int, communicator: Communicator) -> Pair:
    """A multilayer perceptron on random examples, by plain SGD."""
    run = Run().override({"method.local_steps": steps, "train.batch": 128})
    network = mlp_network(features, hidden, 10, output_norm=True)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((EXAMPLES, features), dtype=np.float32)
    y = generator.integers(0, 10, EXAMPLES)
    batches = Batches(DenseSplit(x, y), np.arange(EXAMPLES), run.train.batch, seed=0, stream=0)
    store = ParameterStore(network.parameters, network.lengths, ranks=1, rank=0)
    sign, device = StopSign(communicator), torch.device("cpu")
    job = Job(run, run.course({}), network, TASKS[CLASSIFICATION], store, batches, communicator, device, Clock(), sign)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    return Pair(
        "-".join(map(str, (features, *hidden, 10))),
        job,
        ranks,
        lambda lengths: bare_network([lengths[axis] for axis in ("features", *network.stages)]),
        (x, y),
    )


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


def measure(pair: Pair, turns: int) -> dict:
    """One row of the table."""
    run = pair.job.run
    ours, bare = [], []
    for round in range(turns + 1):
        first, second = ((ours, pair.ours), (bare, pair.bare))[:: 1 if round % 2 else -1]
        for times, loop in (first, second):
            times.append(loop(round) / run.method.local_steps)
    for mine, theirs in zip(pair.subnet.parameters(), pair.network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    del ours[0], bare[0]  # Caches, allocator and torch's own start.
    ratios = np.array(ours) / np.array(bare)
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75), axis=0).tolist()
    return {
        "network": pair.name,
        "of P ranks": pair.ranks,
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
    torch.set_num_threads(options.threads)
    steps = options.local_steps
    rows = [
        measure(mlp(4096, (4096,), 4, steps, communicator), 15),
        measure(mlp(3072, (2048, 2048), 4, steps, communicator), 25),
        measure(mlp(64, (512, 512), 4, steps, communicator), 101),
        measure(mlp(64, (512, 512), 1, steps, communicator), 51),
    ]
    report(
        "local_step",
        f"A local step of a subnet against a bare PyTorch loop, {options.threads} thread(s)",
        rows,
        f"Milliseconds a step, medians over turns of {steps} steps; batch 128. Ratio is the median over turns "
        "of ours / bare by the wall clock, processor "
        "ratio by the processor time of the process.",
    )


if __name__ == "__main__":
    main(benchmark)
