"""Width: memory and seconds of a step on a large graph with wide hidden layers, whatever the ranks.

    python -m benchmarks.scale.graphs --widths 8192,16384,32768 --ranks 1,2,4,8
    python -m benchmarks.scale.graphs --nodes 2000 --widths 64 --ranks 1,2  # in small
    python -m benchmarks.scale.graphs ... --full  # batches of the whole graph, not of a tenth of its clusters

The graph is made up: 100,000 nodes whose degrees fall as a power law with exponent 2.5 from 5 on, as those of citation
networks do (ogbn-arxiv: 169,343 nodes, 13.7 neighbours of each), 128 features and 40 classes that neighbours tend to
share. Edges join half-edges at random, four of five within a class. Every start is ``mpirun -n P istmpi train``
(MPIRUN names another launcher), under --limit seconds and --memory bytes of address space for each rank; the kernel
tells each rank's peak of resident memory at its end.
"""

import argparse
import json
import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.reporting import RESULTS, report
from benchmarks.scale.memory import planned, watching

FEATURES, CLASSES, CLUSTERS = 128, 40, 200
EXPONENT, LEAST = 2.5, 5
NOTES = (
    "Peaks are of resident memory, the highest rank's, libraries and the graph included, over training and the "
    "evaluation of the whole graph at its end. Planned is what istmpi costmodel says of a rank, without the process "
    "itself and the graph. Seconds a step are of training, on cores that all ranks share. A start that fails for "
    "memory says so."
)


def made(nodes: int, seed: int = 0) -> dict[str, np.ndarray]:
    """The graph as arrays, with a tenth of its nodes for training and as many for testing."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, nodes)
    degrees = np.minimum(LEAST * (1 - generator.random(nodes)) ** (-1 / (EXPONENT - 1)), nodes**0.5 * 3).astype(int)
    ends = np.repeat(np.arange(nodes), degrees)
    within = generator.random(len(ends)) < 0.8
    pairs = []
    for chosen, order in (
        (ends[within], np.lexsort((generator.random(within.sum()), labels[ends[within]]))),
        (ends[~within], generator.permutation((~within).sum())),
    ):
        half = chosen[order][: len(chosen) // 2 * 2]
        pairs.append(half.reshape(-1, 2).T)
    x = generator.normal(size=(CLASSES, FEATURES))[labels] * 0.3 + generator.normal(size=(nodes, FEATURES))
    split = generator.random(nodes)
    return {
        "edge_index": np.concatenate(pairs, axis=1),
        "x": x.astype(np.float32),
        "y": labels,
        "train_mask": split < 0.1,
        "test_mask": split > 0.9,
    }


def main() -> None:
    """Run all cells and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--widths", default="8192")
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--models", default="gcn", help="gcn,sage")
    parser.add_argument("--layers", type=int, default=2, help="hidden layers (2)")
    parser.add_argument("--full", action="store_true", help="batches of the whole graph")
    parser.add_argument("--clusters", type=int, default=20, help=f"of {CLUSTERS} in a batch (20)")
    parser.add_argument("--steps", type=int, default=2, help="local steps (2)")
    parser.add_argument("--memory", type=float, default=24e9, help="bytes that a rank may have (24e9)")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that a start may take (1800)")
    parser.add_argument("--folder", type=Path, help="for the graph, kept and used again (a temporary one)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        data, facts = prepared(folder, options.nodes)
        cells = [
            cell(options, folder, data, model, int(width), int(ranks))
            for model in options.models.split(",")
            for width in options.widths.split(",")
            for ranks in options.ranks.split(",")
        ]
    batches = "the whole graph" if options.full else f"{options.clusters} of {CLUSTERS} clusters"
    limit = f" A rank may have {options.memory / 1e9:g} GB."
    name = "graphs-scale-full" if options.full else "graphs-scale"
    report(name, f"{facts}, batches of {batches}", cells, NOTES + limit, folder=options.results)


def prepared(folder: Path, nodes: int) -> tuple[Path, str]:
    """The prepared graph, and what it is."""
    data, about = folder / f"graph-{nodes}.h5", folder / f"graph-{nodes}.txt"
    if not data.exists():
        arrays = made(nodes)
        np.savez(folder / "raw.npz", **arrays)
        edges = arrays["edge_index"].shape[1]
        about.write_text(f"{nodes:,} nodes, {edges:,} edges before those that are there twice are dropped")
        words = ["istmpi", "prepare", "graph", folder / "raw.npz", data, "--clusters", str(CLUSTERS)]
        subprocess.run(words, check=True)
        (folder / "raw.npz").unlink()
    return data, about.read_text()


def cell(
    options: argparse.Namespace, folder: Path, data: Path, model: str, width: int, ranks: int
) -> dict[str, object]:
    """A line of the table: one start."""
    peaks = folder / "peaks"
    peaks.mkdir(exist_ok=True)
    for old in peaks.iterdir():
        old.unlink()
    settings = {
        "data.source": data,
        "data.graph": "full" if options.full else "clusters",
        "train.batch": 1 if options.full else options.clusters,
        "train.threads": 1,
        "train.rounds": 1,
        "model.name": model,
        "model.hidden": f"[{','.join([str(width)] * options.layers)}]",
        "model.aggregate_first": "true",
        "model.dropout": 0,
        "method.local_steps": options.steps,
        "optimizer.name": "adam",
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    launcher = [*shlex.split(os.environ.get("MPIRUN", "mpirun")), "-n", str(ranks)]
    with tempfile.TemporaryDirectory() as run:
        train = ["istmpi", "train", "graph", "--out", f"{run}/run", *words]
        watched = [*watching(peaks, options.memory), *train]
        start = time.monotonic()
        outcome, last = "done", {}
        try:
            done = subprocess.run(
                list(map(str, [*launcher, *watched])), stdin=subprocess.DEVNULL, timeout=options.limit
            )
            outcome = "done" if done.returncode == 0 else f"failed ({done.returncode})"
        except subprocess.TimeoutExpired:
            outcome = "took too long"
        seconds = time.monotonic() - start
        if outcome == "done":
            last = json.loads((Path(run) / "run" / "summary.json").read_text())["last"]
    found = [int(peak.read_text()) for peak in peaks.iterdir()]
    return {
        "model": model,
        "hidden": f"{options.layers} x {width:,}",
        "P": ranks,
        "outcome": outcome,
        "peak GB": f"{max(found) / 1e9:.2f}" if found else "",
        "planned GB": f"{planned(['graph', '--ranks', ranks, *words]) / 1e9:.2f}",
        "seconds a step": f"{last['seconds'] / options.steps:.1f}" if last else "",
        "MB sent": f"{last['bytes'] / 1e6:.0f}" if last else "",
        "seconds in all": round(seconds),
    }


if __name__ == "__main__":
    main()
