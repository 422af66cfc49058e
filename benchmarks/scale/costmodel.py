"""What the cost model says beforehand against what real training then takes: bytes, FLOPs, seconds and memory.

    python -m benchmarks.scale.costmodel

Starts ``mpirun -n P`` for every P (MPIRUN names another launcher). Each job calibrates as ``istmpi measure`` does, at
the network's own shapes, then trains with every method; what it predicts is compared with

* bytes: what every rank's communicator counted in every round, to the byte;
* FLOPs: what PyTorch's FlopCounterMode counts in a round on every rank, to the operation;
* seconds: the median round, after a first one that does not count;
* memory: the highest rank's peak of resident memory in the rounds, above what it had before the run was set up.
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
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.reporting import RESULTS, report
from benchmarks.scale.memory import status, watched
from istmpi.cli.main import main
from istmpi.comm import Communicator, world
from istmpi.config import Run
from istmpi.cost import cost, round_bytes
from istmpi.cost.cluster import Cluster
from istmpi.cost.time import round_time
from istmpi.models import mlp_network
from istmpi.report.styles import INK, looking_alike, styles
from istmpi.training.loop import Training
from istmpi.training.measure import measure

RANKS = (1, 2, 4, 8)
NETWORKS = ((256, 512, 512, 10), (1024, 1024, 1024, 10), (2048, 4096, 10))
METHODS = (("ist", 10), ("ist", 40), ("local-sgd", 10), ("data-parallel", 10))
BATCH = 64
ROUNDS = 6
EXAMPLES = 256


def one_network(communicator: Communicator, widths: Sequence[int]) -> list[dict]:
    """Calibrate, then train one network with every method: a row each."""
    features, *hidden, labels = widths
    with tempfile.TemporaryDirectory() as folder:
        data = communicator.broadcast_from_root(str(Path(folder) / "examples.npz"))
        if communicator.rank == 0:
            x = np.random.default_rng(0).standard_normal((EXAMPLES, features), dtype=np.float32)
            y = np.arange(EXAMPLES) % labels
            np.savez(data, x_train=x, y_train=y, x_test=x, y_test=y)
        run = Run().override(
            {
                "data.source": data,
                "model.hidden": hidden,
                "model.output_norm": True,
                "train.batch": BATCH,
                "train.threads": 1,
                "train.rounds": ROUNDS,
                "evaluate.every": 1000,
                "optimizer.lr": 1e-3,
            }
        )
        communicator.barrier()
        cluster = measure(run, mlp_network(features, hidden, labels, output_norm=True), communicator)
        rows = []
        for method, local_steps in METHODS:
            wanted = run.override({"method.name": method, "method.local_steps": local_steps})
            rows.append({"P": communicator.size, "network": "-".join(map(str, widths))} | measured(wanted, cluster))
        communicator.barrier()
    return rows


def measured(run: Run, cluster: Cluster) -> dict:
    """Predicted and measured figures of one run; AssertionError where bytes or FLOPs are not exact."""
    communicator = world()  # its own, whose buffers end with it
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before, peaks = status("VmRSS"), {}
    training = Training(run, communicator)
    plan = cost(run, training.architecture, communicator.size)
    part = next(part for part in plan.parts if communicator.rank in part.part.ranks)
    seconds, sent = [], []
    with watched("rounds", peaks):
        for number in range(ROUNDS):
            communicator.barrier()
            start, counted = time.perf_counter(), communicator.traffic.bytes
            training.method.run(number)
            seconds.append(time.perf_counter() - start)
            sent.append(communicator.allgather(communicator.traffic.bytes - counted))
    predicted_bytes = [round_bytes(run, training.architecture, communicator.size, number) for number in range(ROUNDS)]
    assert sent == predicted_bytes, (sent, predicted_bytes)
    with FlopCounterMode(display=False) as counter:
        training.method.run(ROUNDS)
    flops = communicator.allgather((counter.get_total_flops(), int(part.flops.products) * run.method.local_steps))
    assert all(counted == predicted for counted, predicted in flops), flops
    peak = max(communicator.allgather(peaks["rounds, resident"] - before))
    took = max(communicator.allgather(statistics.median(seconds[1:])))
    expected = round_time(plan, cluster).total
    total, process = plan.largest.memory.total, plan.largest.memory.process
    memory = float(total - process) / 1e6 + 2 * EXAMPLES * training.dataset.features * 4e-6
    return {
        "method": run.method.name,
        "J": run.method.local_steps,
        "bytes a round": sum(sent[1]),
        "counted": "equal",
        "FLOPs a round": sum(predicted for _, predicted in flops),
        "PyTorch": "equal",
        "s a round": expected,
        "measured s": took,
        "time error %": 100 * (expected / took - 1),
        "MB a rank": memory,
        "measured MB": peak,
        "memory error %": 100 * (memory / peak - 1),
    }


def worker(network: str, out: Path) -> None:
    """One job of P ranks."""
    communicator = world()
    rows = one_network(communicator, [int(width) for width in network.split("-")])
    if communicator.rank == 0:
        out.write_text(json.dumps(rows))


def draw(rows: list[dict], path: Path) -> None:
    """Predicted against measured seconds and memory, with a band of 20%."""
    with looking_alike():
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        figure = Figure(figsize=(11, 5.4), layout="constrained")
        kinds = (("s a round", "measured s", "seconds a round"), ("MB a rank", "measured MB", "peak MB of a rank"))
        looks = styles(row["method"] for row in rows)
        for axis, (predicted, found, name) in zip(figure.subplots(1, 2), kinds):
            for row in rows:
                look = looks[row["method"]]
                size = 4 + 2 * RANKS.index(row["P"])
                axis.plot(row[found], row[predicted], look.marker, color=look.colour, fillstyle="none", markersize=size)
            ends = np.array([min(row[found] for row in rows) / 1.5, max(row[found] for row in rows) * 1.5])
            axis.plot(ends, ends, color=INK, linewidth=0.8)
            axis.fill_between(ends, 0.8 * ends, 1.2 * ends, color=INK, alpha=0.08)
            axis.set(xscale="log", yscale="log", xlabel=f"measured {name}", ylabel=f"predicted {name}", title=name)
            axis.xaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_major_formatter("{x:g}")
        handles = [
            Line2D([], [], color=look.colour, marker=look.marker, linestyle="", fillstyle="none")
            for look in looks.values()
        ]
        figure.legend(handles, list(looks), loc="outside lower center", ncols=len(looks))
        ranks = ", ".join(map(str, RANKS))
        figure.suptitle(f"Predicted and measured; the band is 20%; the larger a marker, the more ranks (P = {ranks})")
        figure.savefig(path, dpi=130)


def benchmark() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)), help="numbers of ranks")
    parser.add_argument("--worker", nargs=2, metavar=("NETWORK", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker[0], Path(options.worker[1]))
        return
    rows, loads = [], []
    for widths in NETWORKS:
        for ranks in map(int, options.ranks.split(",")):
            network = "-".join(map(str, widths))
            print(f"{network} on {ranks} ranks", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "rows.json"
                launcher = [*shlex.split(os.environ.get("MPIRUN", "mpirun")), "-n", str(ranks)]
                subprocess.run(
                    [*launcher, sys.executable, "-m", __spec__.name, "--worker", network, str(out)], check=True
                )
                rows += json.loads(out.read_text())
            loads.append(os.getloadavg()[0])

    def median(column: str, wanted: list[dict]) -> str:
        return f"{statistics.median(abs(row[column]) for row in wanted):.0f}%"

    by_ranks = ", ".join(
        f"{median('time error %', [row for row in rows if row['P'] == ranks])} at P = {ranks}"
        for ranks in sorted({row["P"] for row in rows})
    )
    RESULTS.mkdir(exist_ok=True)
    draw(rows, RESULTS / "costmodel.png")
    report(
        "costmodel",
        "The cost model against real training",
        rows,
        f"Bytes and FLOPs are equal on every rank, in each of {ROUNDS} rounds and in one; the bytes shown are those of "
        f"the second round, over all ranks. Median error of the time {median('time error %', rows)} ({by_ranks}); of "
        f"the memory {median('memory error %', rows)}. Batch {BATCH}, one thread a rank; all ranks share this host's "
        f"cores, as they did when they calibrated; load average {min(loads):.1f} to {max(loads):.1f} after each job, "
        "of which a job of P ranks makes up to P.\n\n"
        "![Predicted against measured](costmodel.png)",
    )


if __name__ == "__main__":
    main(benchmark)
