"""What one would train with otherwise: PyTorch's DistributedDataParallel and its local SGD, both over gloo.

    benchmarks/cluster --hosts 4 -- python -m benchmarks.time_to_accuracy.peers ddp --data speech.h5 --hidden 4096 \\
        --curve ddp.json
    mpirun -n 4 python -m benchmarks.time_to_accuracy.peers local-sgd --data speech.h5 --hidden 4096 --local-steps 20

Plain torch.distributed programs, written as PyTorch's documentation recommends. Network, initial values, every rank's
batches, batch and rate are those of ``istmpi train`` with the same settings, so that seconds and bytes are all that
differ. Batch normalisation has no running statistics: so DistributedDataParallel has no buffers to broadcast, and the
network is scored as istmpi scores it, with the moments of the same 1,024 training examples. Rank 0 scores it alone,
with the clocks stopped. Bytes are what the hosts' interfaces sent, or on one host what a ring all-reduce sends.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from istmpi.comm import read_launcher
from istmpi.config import Run
from istmpi.cost.calibration import SAMPLED
from istmpi.data.batches import Batches
from istmpi.data.dataset import Dataset
from istmpi.data.sources import open_dataset
from istmpi.engine.store import ParameterStore
from istmpi.evaluation.sample import draw_calibration_rows
from istmpi.models import mlp_network
from istmpi.report.curves import Curve, Point


def network_of(run: Run, data: Dataset) -> nn.Sequential:
    """The network of a run as one writes it in PyTorch, with istmpi's initial values."""
    widths = [data.features, *run.model.hidden]
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs, bias=False)]
        layers += [nn.BatchNorm1d(outputs, track_running_stats=False), nn.ReLU()]
    layers += [nn.Linear(widths[-1], data.outputs, bias=False)]
    network = nn.Sequential(*layers, nn.BatchNorm1d(data.outputs, affine=False, track_running_stats=False))
    ours = mlp_network(data.features, run.model.hidden, data.outputs, output_norm=True)
    store = ParameterStore(ours.parameters, ours.lengths, 1, 0)
    store.initialise(run.train.seed)
    with torch.no_grad():
        for parameter, values in zip(network.parameters(), store.tensors.values(), strict=True):
            parameter.copy_(values)
    return network


@torch.no_grad()
def score(network: nn.Sequential, run: Run, data: Dataset) -> tuple[float, float]:
    """Accuracy and loss on the test split, every normalisation with its moments on the calibration examples."""
    rows = draw_calibration_rows(run.train.seed, len(data.train), run.evaluate.calibration_examples or SAMPLED)
    (known,) = data.train.batch(rows).inputs
    test = data.test.batch(range(len(data.test)))
    (x,), y = test.inputs, test.targets
    for layer in network:
        if isinstance(layer, nn.BatchNorm1d):
            variance, mean = torch.var_mean(known, dim=0, correction=0)
            x = functional.batch_norm(x, mean, variance, layer.weight, layer.bias, eps=layer.eps)
        else:
            x = layer(x)
        known = layer(known)
    return float((x.argmax(dim=1) == y).double().mean()), float(functional.cross_entropy(x, y))


class Peer:
    """A rank's network and how it takes local steps; ``method``: ddp or local-sgd."""

    def __init__(self, method: str, run: Run, data: Dataset):
        self.run, self.data = run, data.reshape((data.features,))
        self.network = self.model = network_of(run, data)
        self.averager, self.period = None, 1
        """Steps from one mean over the ranks to the next."""
        if method == "ddp":
            # All ranks have drawn the same values: sending rank 0's once more would only take time.
            self.model = DistributedDataParallel(self.network, init_sync=False)
        else:
            # Without a warm-up the averager's first mean comes after one step; ours, as ours does, after J.
            self.period = run.method.local_steps
            self.averager = PeriodicModelAverager(period=self.period, warmup_steps=self.period - 1)
        rows, seed = range(len(data.train)), run.train.seed
        self.batches = Batches(self.data.train, rows, run.train.batch, seed, dist.get_rank())
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=run.optimizer.lr)
        self.steps = 0

    def train(self, steps: int) -> None:
        """Take some local steps more."""
        for _ in range(steps):
            batch = self.batches.at(self.steps)
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(*batch.inputs), batch.targets).backward()
            self.optimizer.step()
            if self.averager:
                self.averager.average_parameters(self.network.parameters())
            self.steps += 1


def sent_by_this_host() -> int | None:
    """The bytes that this host's interface sent, headers included; None where ranks share a host."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0" and "ISTMPI_NETWORK" in os.environ:
            return int(numbers.split()[8])
    return None


def connect(ranks: int, rank: int) -> None:
    """Join the other ranks: at host 0 of benchmarks/cluster, else on this host."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)


def disconnect() -> None:
    """Leave the other ranks. Whatever still holds the group makes the interpreter end its threads, which may abort."""
    gc.collect()
    dist.destroy_process_group()


def ring_bytes(network: nn.Module, ranks: int) -> int:
    """Bytes that all ranks send in an all-reduce of a network around a ring."""
    return 2 * (ranks - 1) * sum(parameter.numel() * parameter.element_size() for parameter in network.parameters())


def train(peer: Peer, steps: int, every: int) -> list[dict]:
    """Train some steps and evaluate after every few: a point each, accuracy and loss on rank 0."""
    points: list[dict] = []
    seconds, sent = 0.0, 0
    while peer.steps < steps:
        dist.barrier()
        before, start = sent_by_this_host(), time.perf_counter()
        peer.train(min(every, steps - peer.steps))
        slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds += float(slowest)
        if before is None:
            sent = peer.steps // peer.period * ring_bytes(peer.network, dist.get_world_size())
        else:
            wire = torch.tensor(sent_by_this_host() - before)
            dist.all_reduce(wire)
            sent += int(wire)
        samples = peer.steps * peer.run.train.batch * dist.get_world_size()
        point = {"step": peer.steps, "seconds": seconds, "bytes": sent, "samples": samples}
        if dist.get_rank() == 0:
            point["accuracy"], point["loss"] = score(peer.network, peer.run, peer.data)
        points.append(point)
    return points


def curve(method: str, run: Run, ranks: int, points: list[dict]) -> Curve:
    """What `istmpi report` reads, to set a peer beside runs of istmpi."""
    shared = ("data.source", "model.hidden", "method.local_steps", "train.batch", "optimizer.lr")
    made = (
        Point(
            point["step"] // run.method.local_steps,
            point["seconds"],
            point["bytes"],
            point["samples"],
            point["accuracy"],
        )
        for point in points
    )
    settings = {name: value for name, value in run.flat().items() if name in shared}
    return Curve(method, tuple(made), run.train.seed, ranks, "accuracy", settings=settings)


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", required=True)
    parser.add_argument("--hidden", required=True, help="widths, with commas")
    parser.add_argument("--local-steps", type=int, default=20, help="between two transfers (20)")
    parser.add_argument("--batch", type=int, default=128, help="of each rank (128)")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)


def run_of(options: argparse.Namespace) -> Run:
    """The run that the options describe."""
    return Run().override(
        {
            "data.source": options.data,
            "model.hidden": [int(width) for width in options.hidden.split(",")],
            "method.local_steps": options.local_steps,
            "train.batch": options.batch,
            "train.seed": options.seed,
            "optimizer.lr": options.lr,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=("ddp", "local-sgd"))
    add_settings(parser)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--evaluate-every", type=int, default=20, help="steps")
    parser.add_argument("--curve", help="a JSON file for istmpi report")
    options = parser.parse_args()
    run = run_of(options)
    rank, ranks = read_launcher()
    torch.set_num_threads(1)
    connect(ranks, rank)
    peer = Peer(options.method, run, open_dataset(options.data))
    points = train(peer, options.steps, options.evaluate_every)
    if rank == 0:
        for point in points:
            print(json.dumps(point), flush=True)
        if options.curve:
            curve(f"pytorch-{options.method}", run, ranks, points).save(Path(options.curve))
    dist.barrier()
    del peer
    disconnect()


if __name__ == "__main__":
    main()
