"""What the cost model says beforehand against what real training then takes: bytes, FLOPs, seconds and memory.

    python -m benchmarks.scale.costmodel

Starts ``mpirun -n P`` for each network and P (MPIRUN names another launcher). A job measures its cluster as ``istmpi
measure`` does, at the network's own shapes, then trains; what was predicted is compared with

* bytes: what every rank's communicator counted in every round, to the byte;
* FLOPs: what PyTorch's FlopCounterMode counts in a round of a dense network on every rank, to the operation;
* seconds: the median round, after a first one that does not count;
* memory: the highest rank's peak of resident memory in the rounds, the process included.
"""

import argparse
import ctypes
import gc
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
from istmpi.comm import world
from istmpi.config import Run
from istmpi.cost import cost, round_bytes
from istmpi.cost.time import round_time
from istmpi.training.loop import Training
from istmpi.training.measure import measure

DECODER = {
    "model.name": "transformer",
    "model.layers": 2,
    "model.embed": 128,
    "model.heads": [8] * 2,
    "model.hidden": [344] * 2,
}
XC = {"model.name": "xc", "model.hidden": [512], "optimizer.lr": 0.01}
GCN = {"model.name": "gcn", "model.hidden": [256, 256], "data.graph": "full", "train.batch": 1}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp 256-512-512-10": ("dense-256", {"model.hidden": [512, 512], "model.output_norm": True}),
    "mlp 1024-1024-1024-10": ("dense-1024", {"model.hidden": [1024, 1024], "model.output_norm": True}),
    "mlp 2048-4096-10": ("dense-2048", {"model.hidden": [4096], "model.output_norm": True}),
    "resnet 18, 16 x 16": ("images", {"model.name": "resnet", "train.batch": 16}),
    "decoder, 2 layers, 128 wide": ("text", {**DECODER, "model.head_dim": 16, "data.length": 64, "train.batch": 16}),
    "xc 20,000-512-50,000": ("xc", XC),
    "gcn 128-256-256-40, 5,000 nodes": ("graph", GCN),
}
"""The data and the settings of each network."""
IST, LOCAL_SGD, DATA_PARALLEL = "ist", "local-sgd", "data-parallel"
CELLS: dict[str, dict[int, tuple[str, ...]]] = {
    "mlp 256-512-512-10": {1: (IST,), 4: (IST, DATA_PARALLEL), 8: (IST,)},
    "mlp 1024-1024-1024-10": {1: (LOCAL_SGD,), 2: (IST, DATA_PARALLEL), 4: (IST, LOCAL_SGD, DATA_PARALLEL)},
    "mlp 2048-4096-10": {2: (IST, LOCAL_SGD), 8: (IST, DATA_PARALLEL)},
    "resnet 18, 16 x 16": {1: (LOCAL_SGD,), 2: (IST,)},
    "decoder, 2 layers, 128 wide": {2: (IST, DATA_PARALLEL), 4: (IST,)},
    "xc 20,000-512-50,000": {2: (IST,), 4: (IST,)},
    "gcn 128-256-256-40, 5,000 nodes": {1: (IST,), 4: (IST,)},
}
"""The methods of each network and number of ranks."""
ROUNDS = 6
COMMON = {"train.batch": 64, "train.threads": 1, "train.rounds": ROUNDS, "evaluate.every": 1000, "optimizer.lr": 1e-3}
COMMON |= {"method.local_steps": 10}


def prepare(kind: str, folder: Path) -> Path:
    """Make up the data of a network."""
    path, generator = folder / f"{kind}.npz", np.random.default_rng(0)
    if kind.startswith("dense") or kind == "images":
        shape = (3, 16, 16) if kind == "images" else (int(kind.removeprefix("dense-")),)
        x, y = generator.standard_normal((256, *shape), dtype=np.float32), np.arange(256) % 10
        np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
        return path
    if kind == "graph":
        np.savez(path, **made(5000))
    elif kind == "text":
        path = path.with_suffix(".txt")
        modules = sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py"))
        path.write_text("".join(module.read_text() for module in modules))
    else:
        path = path.with_suffix("")
        path.mkdir()
        write(path / "train.txt", 2000, 1, 20_000, 50_000)
        write(path / "test.txt", 200, 2, 20_000, 50_000)
    data = folder / f"{kind}.h5"
    subprocess.run(["istmpi", "prepare", kind, path, data], check=True, stdout=subprocess.DEVNULL)
    return data


def worker(settings: dict[str, Any], methods: list[str], out: Path) -> None:
    """Measure and train on one of P ranks."""
    communicator, run = world(), Run().override(settings)
    cluster = measure(run, Training(run, communicator).architecture, communicator)
    rows = []
    for method in methods:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        rows.append(compared(run.override({"method.name": method}), cluster))
    if communicator.rank == 0:
        out.write_text(json.dumps(rows))


def compared(run: Run, cluster) -> dict:
    """Predicted and measured figures of one run; AssertionError where bytes or FLOPs are not exact."""
    communicator, peaks = world(), {}  # its own, whose buffers end with it
    training = Training(run, communicator)
    architecture, ranks = training.architecture, communicator.size
    plan = cost(run, architecture, ranks)
    part = next(part for part in plan.parts if communicator.rank in part.part.ranks)
    seconds, sent = [], []
    with watched("rounds", peaks):
        for number in range(ROUNDS):
            communicator.barrier()
            start, counted = time.perf_counter(), communicator.traffic.bytes
            training.method.run(number)
            seconds.append(time.perf_counter() - start)
            sent.append(communicator.allgather(communicator.traffic.bytes - counted))
    predicted_bytes = [round_bytes(run, architecture, ranks, number) for number in range(ROUNDS)]
    assert sent == predicted_bytes, (sent, predicted_bytes)
    if run.model.name == "mlp":
        with FlopCounterMode(display=False) as counter:
            training.method.run(ROUNDS)
        flops = communicator.allgather((counter.get_total_flops(), int(part.flops.products) * run.method.local_steps))
        assert all(counted == predicted for counted, predicted in flops), flops
    peak = max(communicator.allgather(peaks["rounds, resident"]))
    took = max(communicator.allgather(statistics.median(seconds[1:])))
    if communicator.rank == 0 and os.environ.get("DEBUG"):
        print(
            "DEBUG",
            run.model.name,
            ranks,
            run.method.name,
            round_time(plan, cluster),
            "step",
            cluster.step_seconds,
            "product",
            cluster.product_seconds,
            plan.largest.flops.product_count,
            "GF/s",
            cluster.flops[0] / 1e9,
            "GF",
            float(plan.largest.flops.products) / 1e9,
            "touch",
            cluster.touch_seconds_per_byte,
            float(plan.largest.touched) / 1e6,
            "deal",
            cluster.deal_seconds,
            "transfer",
            cluster.transfer_seconds,
            "clock",
            {k: round(v / ROUNDS, 4) for k, v in training.clock.seconds.items()},
            "links",
            cluster.links,
            file=sys.stderr,
        )
    expected, memory = round_time(plan, cluster).total, float(plan.largest.memory.total) / 1e6
    return {
        "method": run.method.name,
        "bytes a round": sum(sent[1]),
        "counted": "equal",
        "s a round": expected,
        "measured s": took,
        "time error %": 100 * (expected / took - 1),
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
        settings, methods, out = options.worker
        worker(json.loads(settings), methods.split(","), Path(out))
        return
    rows, loads, asked = [], [], [*map(int, options.ranks.split(","))]
    for network, (kind, settings) in NETWORKS.items():
        if options.only not in network:
            continue
        with tempfile.TemporaryDirectory() as folder:
            data, out = prepare(kind, Path(folder)), Path(folder) / "rows.json"
            for ranks, methods in CELLS[network].items():
                if ranks not in asked:
                    continue
                print(f"{network} on {ranks} ranks", flush=True)
                words = json.dumps({**COMMON, **settings, "data.source": str(data)}), ",".join(methods), out
                launcher = [*shlex.split(os.environ.get("MPIRUN", "mpirun")), "-n", str(ranks)]
                subprocess.run([*launcher, sys.executable, "-m", __spec__.name, "--worker", *words], check=True)
                rows += [{"network": network, "P": ranks, **row} for row in json.loads(out.read_text())]
                loads.append(os.getloadavg()[0])

    def median(column: str) -> str:
        return f"{statistics.median(abs(row[column]) for row in rows):.0f}%"

    report(
        "costmodel",
        "The cost model against real training",
        rows,
        f"Bytes are equal on every rank, in each of {ROUNDS} rounds, and an mlp's FLOPs in one; the bytes shown are "
        f"those of the second round, over all ranks. Median error of the time {median('time error %')}; of the memory "
        f"{median('memory error %')}. Ten local steps of 64 examples (images, text: 16; the whole graph), one thread a "
        f"rank; all ranks share this host's cores, as they did when they were measured; load average "
        f"{min(loads):.1f} to {max(loads):.1f} after each job, of which a job of P ranks makes up to P.",
    )


if __name__ == "__main__":
    main(benchmark)
