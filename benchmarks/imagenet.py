"""ResNet18 and VGG11 on images of ImageNet's size: the plan's memory, FLOPs and bytes against those of training.

    python benchmarks/imagenet.py

Makes a prepared file of random images, 3x224x224 of 1,000 classes, and starts ``mpirun -n 2`` for each network and
method (MPIRUN names another launcher). Compared with what the cost model predicts of the rank that needs most are

* FLOPs: what PyTorch's FlopCounterMode counts in a round on every rank, to the operation;
* bytes: what every rank's communicator counted in a round, to the byte;
* what autograd keeps: the tensors that the backward pass needs, each storage once, weights left out; the plan's
  activations;
* memory: the peak of anonymous memory in the rounds, above what the process had before the run was set up; the plan's
  total, with the batch. Once as it is, and once where the C library gives each block back to the system at once
  (MALLOC_MMAP_THRESHOLD_), so that what it keeps for later does not count.
"""

import argparse
import ctypes
import gc
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from memory import status, watched
from reporting import report
from torch.utils.flop_counter import FlopCounterMode

from istmpi.cli.main import main
from istmpi.comm import world
from istmpi.config import Run
from istmpi.cost import cost, round_bytes
from istmpi.data.dense.file import Writer, material_of
from istmpi.methods.base import InterruptedRound
from istmpi.training.loop import Training

SHAPE, CLASSES = (3, 224, 224), 1000
NETWORKS = {"resnet": {"model.stem": 7}, "vgg": {}}
METHODS = ("ist", "local-sgd")
BATCH, LOCAL_STEPS, ROUNDS = 4, 2, 3
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
PLANNED = 8
"""Ranks of the plan that is not tried."""


def make(path: Path) -> None:
    """A prepared file of a few random images."""
    counts, random = {"train": 4 * BATCH, "test": 2}, np.random.default_rng(0)
    names = tuple(f"n{number:08}" for number in range(CLASSES))
    header = material_of(
        "images", "random", "classification", SHAPE, CLASSES, names, counts, np.dtype(np.uint8), SHAPE[0]
    )
    with Writer(path, header) as writer:
        for split, count in counts.items():
            pixels = random.integers(0, 256, (count, int(np.prod(SHAPE))), dtype=np.uint8)
            writer.append(split, pixels, random.integers(0, CLASSES, count))


class Kept:
    """A context that adds up what autograd keeps of a forward pass: storages, but for those of some tensors."""

    def __init__(self, without):
        self._without = {tensor.untyped_storage().data_ptr() for tensor in without}
        self.nbytes, self._seen = 0, set()

    def __enter__(self) -> "Kept":
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen | self._without:
            self._seen.add(storage.data_ptr())
            self.nbytes += storage.nbytes()
        return tensor


def measured(run: Run) -> dict:
    """Predicted and measured figures of one run on these ranks; AssertionError where bytes or FLOPs are not exact."""
    communicator = world()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before, peaks = status("RssAnon"), {}
    training = Training(run, communicator)
    network, method = training.architecture, training.method
    plan, planned = (cost(run, network, ranks) for ranks in (communicator.size, PLANNED))
    part = next(part for part in plan.parts if communicator.rank in part.part.ranks)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    sent, seconds = [], []
    with watched("rounds", peaks):
        for number in range(ROUNDS):
            communicator.barrier()
            start, counted = time.perf_counter(), communicator.traffic.bytes
            method.run(number, InterruptedRound())
            seconds.append(time.perf_counter() - start)
            sent.append(communicator.allgather(communicator.traffic.bytes - counted))
    predicted = [round_bytes(run, network, communicator.size, number) for number in range(ROUNDS)]
    assert sent == predicted, (sent, predicted)
    with FlopCounterMode(display=False) as counter:
        method.run(ROUNDS, InterruptedRound())
    flops = communicator.allgather((counter.get_total_flops(), int(part.flops.products) * LOCAL_STEPS))
    assert all(counted == expected for counted, expected in flops), flops
    subnet = network.build(part.part.lengths).train()
    with Kept(subnet.parameters()) as kept:
        images = torch.randn(BATCH, *SHAPE)
        loss = torch.nn.functional.cross_entropy(subnet(images), torch.zeros(BATCH, dtype=torch.long))
    loss.backward()
    batch = images.nbytes / 1e6
    activations = float(part.memory.activations) / 1e6
    total = float(part.memory.total) / 1e6 + batch
    peak = max(communicator.allgather(peaks["rounds, anonymous"] - before))
    return {
        "network": run.model.name,
        "method": run.method.name,
        "GFLOP a step": float(part.flops.products) / 1e9,
        "PyTorch": "equal",
        "MB sent a round": sum(sent[1]) / 1e6,
        "counted": "equal",
        "activations MB": activations,
        "autograd keeps MB": kept.nbytes / 1e6,
        "of it": activations / (kept.nbytes / 1e6),
        "memory MB": total,
        "measured MB": peak,
        "s a step": min(seconds) / LOCAL_STEPS,
        f"P = {PLANNED}: GFLOP": float(planned.largest.flops.products) / 1e9,
        "MB": float(planned.largest.memory.total) / 1e6 + batch,
        "sent MB": float(planned.round_bytes) / 1e6,
    }


def worker(data: str, name: str, method: str, out: str) -> None:
    """One job of two ranks."""
    run = Run().override(
        {
            "data.source": data,
            "model.name": name,
            **NETWORKS[name],
            "method.name": method,
            "method.local_steps": LOCAL_STEPS,
            "optimizer.lr": 1e-3,
            "train.batch": BATCH,
            "train.rounds": ROUNDS,
            "train.threads": 1,
        }
    )
    row = measured(run)
    if world().rank == 0:
        Path(out).write_text(json.dumps(row))


def benchmark() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "images.h5", Path(folder) / "row.json"
        make(data)
        launcher = [*shlex.split(os.environ.get("MPIRUN", "mpirun")), "-n", "2"]
        for name in NETWORKS:
            for method in METHODS:
                words = [*launcher, sys.executable, __file__, "--worker", str(data), name, method, str(out)]
                taken = []
                for changed in GIVING_BACK, {}:
                    subprocess.run(words, check=True, env={**os.environ, **changed})
                    taken.append(json.loads(out.read_text()))
                trimmed, row = (one.pop("measured MB") for one in taken), taken[-1]
                rows.append(row | dict(zip(("measured MB, given back", "measured MB"), trimmed)))
                print(rows[-1], flush=True)
    report(
        "imagenet",
        "ResNet18 and VGG11 on images of ImageNet's size, on two ranks",
        rows,
        f"3x224x224, 1,000 classes, batch {BATCH}, one thread a rank, pre-activation ResNet18 with `stem = 7`. FLOPs "
        f"and bytes are equal on every rank, in each of {ROUNDS} rounds and in one. Figures are those of a rank, bytes "
        f"those of all. The columns from `P = {PLANNED}` on are the plan for {PLANNED} ranks.",
    )


if __name__ == "__main__":
    main(benchmark)
