"""What the cost model says beforehand against what real training then takes: bytes, FLOPs, seconds and memory.

    python -m benchmarks.scale.costmodel

Starts ``mpirun -n P`` for each network and P (MPIRUN names another launcher). A job measures its cluster as ``istmpi
measure`` does, then trains; predictions are compared with the bytes that every rank's communicator counted in every
round and the FLOPs of PyTorch's FlopCounterMode in a round of a dense network, exactly; with the seconds of the median
round, after the first; with the highest rank's peak of resident memory in a round, the process included.
"""

import argparse
import ctypes
import json
import os
import shlex
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.reporting import report
from benchmarks.scale.graphs import made
from benchmarks.scale.memory import watched
from benchmarks.scale.xc_rows import write
from istmpi.cli.main import main
from istmpi.cluster.measure import measure
from istmpi.cluster.time import round_time
from istmpi.comm import world
from istmpi.config import Run
from istmpi.cost import cost, round_bytes
from istmpi.training.loop import Training

MLP = {"model.output_norm": True}
TEXT = {"model.name": "transformer", "model.embed": 128, "model.head_dim": 16, "data.length": 64, "train.batch": 16}
DECODER = {**TEXT, "model.layers": 2, "model.heads": [8] * 2, "model.hidden": [344] * 2}
GCN = {"model.name": "gcn", "model.hidden": [256, 256], "data.graph": "full", "train.batch": 1}
ALL = {"data.placement": "shared"}
BOTH, THREE = "ist,data-parallel", "ist,local-sgd,data-parallel"
NETWORKS: dict[str, tuple[str, dict[str, Any], dict[int, str]]] = {
    "mlp 256-512-512-10": ("256", {**MLP, "model.hidden": [512, 512]}, {1: "ist", 4: BOTH, 8: "ist"}),
    "mlp 1024-1024-1024-10": ("1024", {**MLP, "model.hidden": [1024] * 2}, {1: "local-sgd", 2: BOTH, 4: THREE}),
    "mlp 2048-4096-10": ("2048", {**MLP, "model.hidden": [4096]}, {2: "ist,local-sgd", 8: BOTH}),
    "resnet 18, 16 x 16": ("images", {"model.name": "resnet", "train.batch": 16}, {1: "local-sgd", 2: "ist"}),
    "decoder, 2 layers, 128 wide": ("text", DECODER, {2: BOTH, 4: "ist"}),
    "xc 20,000-512-50,000": ("xc", {"model.name": "xc", "model.hidden": [512]}, {2: "ist", 4: "ist"}),
    "mlp 1024-1024-1024-10, joint": ("1024", {**MLP, **ALL, "model.hidden": [1024] * 2}, {2: "joint", 4: "joint"}),
    "xc 20,000-512-50,000, joint": ("xc", {**ALL, "model.name": "xc", "model.hidden": [512]}, {2: "joint"}),
    "gcn 128-256-256-40, 5,000 nodes": ("graph", GCN, {1: "ist", 4: "ist"}),
}
"""The data, the settings, and the methods by number of ranks."""
ROUNDS = 6
COMMON = {"train.batch": 64, "train.threads": 1, "evaluate.every": 1000, "optimizer.lr": 1e-3, "method.local_steps": 10}


def prepare(kind: str, folder: Path) -> Path:
    """Make up the data of a network."""
    path, generator = folder / "made.npz", np.random.default_rng(0)
    if kind == "images" or kind.isdigit():
        shape = (3, 16, 16) if kind == "images" else (int(kind),)
        x, y = generator.standard_normal((256, *shape), dtype=np.float32), np.arange(256) % 10
        np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
        return path
    if kind == "graph":
        np.savez(path, **made(5000))
    elif kind == "text":
        path = path.with_suffix(".txt")
        path.write_text("".join(module.read_text() for module in Path(sysconfig.get_path("stdlib")).glob("a*.py")))
    else:
        path = folder
        write(path / "train.txt", 2000, 1, 20_000, 50_000)
        write(path / "test.txt", 200, 2, 20_000, 50_000)
    subprocess.run(["istmpi", "prepare", kind, path, folder / "data.h5"], check=True, stdout=subprocess.DEVNULL)
    return folder / "data.h5"


def worker(settings: dict[str, Any], methods: list[str], out: Path) -> None:
    """Measure and train on one of P ranks."""
    communicator, run = world(), Run().override(settings)
    rows = []
    for method in methods:
        ctypes.CDLL(None).malloc_trim(0)
        rows.append(compared(run.override({"method.name": method})))
    # Last, because it leaves memory behind.
    cluster = measure(run, Training(run, communicator).architecture, communicator)
    for row in rows:
        expected = round_time(row.pop("plan"), cluster).total
        row |= {"s a round": expected, "time error %": 100 * (expected / row["measured s"] - 1)}
    if communicator.rank == 0:
        out.write_text(json.dumps(rows))


def compared(run: Run) -> dict:
    """Predicted and measured figures of one run; AssertionError where bytes or FLOPs are not exact."""
    communicator, peaks = world(), {}  # its own, whose buffers end with it
    training = Training(run, communicator)
    architecture, ranks = training.architecture, communicator.size
    plan = cost(run, architecture, ranks)
    seconds, sent = [], []
    for number in range(ROUNDS):
        communicator.barrier()
        start, counted = time.perf_counter(), communicator.traffic.bytes
        training.method.run(number)
        seconds.append(time.perf_counter() - start)
        sent.append(communicator.allgather(communicator.traffic.bytes - counted))
    with watched("rounds", peaks):  # its thread takes time from steps
        training.method.run(ROUNDS)
    assert sent == [round_bytes(run, architecture, ranks, number) for number in range(ROUNDS)]
    if run.model.name == "mlp":
        with FlopCounterMode(display=False) as counter:
            training.method.run(ROUNDS + 1)
        part = next(part for part in plan.parts if communicator.rank in part.part.ranks)
        assert counter.get_total_flops() == int(part.flops.products) * run.method.local_steps
    peak = max(communicator.allgather(peaks["rounds, resident"]))
    took = max(communicator.allgather(statistics.median(seconds[1:])))
    memory = float(plan.largest.memory.total) / 1e6
    return {
        "method": run.method.name,
        "bytes a round": sum(sent[1]),
        "counted": "equal",
        "plan": plan,
        "measured s": took,
        "MB a rank": memory,
        "measured MB": peak,
        "memory error %": 100 * (memory / peak - 1),
    }


def benchmark() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4,8", help="numbers of ranks")
    parser.add_argument("--only", default="", metavar="TEXT", help="networks whose name contains it")
    parser.add_argument("--worker", nargs=3, metavar=("SETTINGS", "METHODS", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(json.loads(options.worker[0]), options.worker[1].split(","), Path(options.worker[2]))
    rows, asked = [], {*map(int, options.ranks.split(","))}
    chosen = {name: row for name, row in NETWORKS.items() if options.only in name}
    for network, (kind, settings, cells) in chosen.items():
        with tempfile.TemporaryDirectory() as folder:
            data, out = prepare(kind, Path(folder)), Path(folder) / "rows.json"
            for ranks in sorted(asked & cells.keys()):
                print(f"{network} on {ranks} ranks", flush=True)
                words = json.dumps({**COMMON, **settings, "data.source": str(data)}), cells[ranks], out
                launcher = [*shlex.split(os.environ.get("MPIRUN", "mpirun")), "-n", str(ranks)]
                subprocess.run([*launcher, sys.executable, "-m", __spec__.name, "--worker", *words], check=True)
                rows += [{"network": network, "P": ranks, **row} for row in json.loads(out.read_text())]
    seconds, peaks = (statistics.median(abs(row[f"{what} error %"]) for row in rows) for what in ("time", "memory"))
    report(
        "costmodel",
        "The cost model against real training",
        rows,
        f"Bytes are equal on every rank, in each of {ROUNDS} rounds, and an mlp's FLOPs in one; the bytes shown are "
        f"those of the second round, of all ranks. Median error of time {seconds:.0f}%; of memory {peaks:.0f}%. Ten "
        "local steps of 64 examples (images, text: 16; the whole graph), one thread a rank, on shared cores.",
    )


if __name__ == "__main__":
    main(benchmark)
