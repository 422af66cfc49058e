"""Cora: GIST's GCN and GraphSAGE on several ranks beside one rank, local SGD and the controls.

    python -m benchmarks.controls.graphs --raw cora.npz  # an hour and a half on two cores; again to go on
    python -m benchmarks.controls.graphs --raw ... --only "gcn, full, J = 20" --seeds 3
    python -m benchmarks.controls.graphs --report  # the table anew

All rows take as many local steps of each rank, by Adam; a step is one batch: the whole graph, or a union of clusters
that METIS has cut once. A run is what ``istmpi simulate`` does, whose weights, accuracy and bytes are those of
``mpirun``, bit for bit; as many run at a time as there are cores. Files in benchmarks/cells-graphs keep what was found
and are not run again, nor what results/graphs-cells.jsonl.gz has. The first seed of all rows comes first.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import worker_processes
from benchmarks.reporting import HERE, RESULTS, keep_cell, report, restore_cells, store_cells

HIDDEN = (256, 256)
RANKS = (2, 4, 8)
SEEDS = 10
STEPS = 120
CLUSTERS = 50
COMMON = {
    "train.threads": "1",
    "model.dropout": "0.5",
    "optimizer.name": "adam",
    "optimizer.lr": "0.01",
    "optimizer.weight_decay": "0.0005",
}
MODELS = ("gcn", "sage")
BATCHES = {
    "full": {"data.graph": "full", "train.batch": "1"},
    "clusters": {"data.graph": "clusters", "train.batch": "10"},
}
LOCAL_SGD = {"method.name": "local-sgd"}
VARIANTS: dict[str, dict[str, str]] = {
    "IST": {},
    "local SGD": LOCAL_SGD,
    "narrow network, local SGD": LOCAL_SGD,
    "IST, never redealt": {"method.redeal": "0"},
}
MORE: dict[str, dict[str, str]] = {
    "IST, a tenth redealt": {"method.redeal": "0.1"},
    "IST, state carried": {"method.optimizer_state": "carry"},
    "IST, a tenth redealt, state carried": {"method.redeal": "0.1", "method.optimizer_state": "carry"},
}
"""At J = 20 on the whole graph."""
NOTES = (
    "Accuracy is of the full network on the 1,000 test nodes of the Planetoid split after the last round: mean and "
    "standard deviation over seeds, the least and the largest. A local step of a rank takes a batch, so P ranks take P "
    f"times as many as one. {STEPS} local steps a rank, three layers, width {HIDDEN[0]}; a narrow network has a P-th "
    f"of it. Clusters: 10 of {CLUSTERS} a batch. MB are those that all ranks handed to MPI."
)


@dataclass(frozen=True)
class Row:
    """What is compared: a name, the ranks, and the settings that differ."""

    model: str
    batches: str
    local_steps: int
    name: str
    ranks: int
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.model}, {self.batches}, J = {self.local_steps}, {self.name}, P = {self.ranks}"

    @property
    def all_settings(self) -> dict[str, str]:
        rounds = STEPS // self.local_steps
        widths = [width // self.ranks if self.name.startswith("narrow") else width for width in HIDDEN]
        own = {"model.name": self.model, "model.hidden": str(widths), "method.local_steps": str(self.local_steps)}
        own |= {"train.rounds": str(rounds), "evaluate.every": str(rounds)}
        return COMMON | BATCHES[self.batches] | own | self.settings

    def cell(self, folder: Path, seed: int) -> Path:
        """The file of a seed."""
        return folder / f"{''.join(letter if letter.isalnum() else '-' for letter in self.title)}-{seed}.json"


def rows() -> Iterator[Row]:
    """All that is compared, what matters most first."""
    for local_steps in (20, 5):
        for model in MODELS:
            for batches in BATCHES:
                yield Row(model, batches, local_steps, "one rank", 1, LOCAL_SGD)
                for name, settings in VARIANTS.items():
                    for ranks in RANKS:
                        yield Row(model, batches, local_steps, name, ranks, settings)
    for model in MODELS:
        for name, settings in MORE.items():
            for ranks in RANKS:
                yield Row(model, "full", 20, name, ranks, settings)


def main() -> None:
    """Run the cells that are not there yet, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, help="Cora, as istmpi prepare graph reads it")
    parser.add_argument("--only", action="append", help="rows whose names contain this; may be repeated")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"so many for each row ({SEEDS})")
    parser.add_argument("--cells", type=Path, default=HERE / "cells-graphs", help="the folder of the cells")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes (results/)")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.cells.mkdir(exist_ok=True)
    restore_cells("graphs", options.cells, options.results)
    data = options.cells / "graph.h5"
    if not options.report and not data.exists():
        words = ["istmpi", "prepare", "graph", options.raw, data, "--clusters", str(CLUSTERS)]
        subprocess.run(words, check=True)
    wanted = [row for row in rows() if not options.only or any(part in row.title for part in options.only)]
    with worker_processes() as processes:
        started = []
        for seed in range(0 if options.report else options.seeds):
            for row in wanted:
                if not (cell := row.cell(options.cells, seed)).exists():
                    given = {"data.source": str(data), "train.seed": str(seed)}
                    started.append(processes.submit(carry_out, cell, row.all_settings | given, row.ranks))
        for one in started:
            print(one.result(), flush=True)
    store_cells("graphs", (cell for row in rows() for cell in cells(options.cells, row)), options.results)
    found = [(row, [json.loads(cell.read_text()) for cell in cells(options.cells, row)]) for row in rows()]
    table = [line(row, summaries) for row, summaries in found if summaries]
    report("graphs", "Cora: GCN and GraphSAGE as independent subnets", table, NOTES, folder=options.results)


def carry_out(cell: Path, settings: dict[str, str], ranks: int) -> str:
    """Train with some settings, write the cell's file, and say it."""
    from istmpi.cli.run_options import resolve
    from istmpi.simulated import Faults
    from istmpi.simulated.schedules import simulate_training

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        assignments = tuple(f"{name}={value}" for name, value in settings.items())
        simulate_training(resolve("digits", assignments, {"out": f"{folder}/run"}), ranks, Faults()).require()
        last = json.loads(Path(folder, "run", "summary.json").read_text())["last"]
    keep_cell(cell, cell.stem, began, {"accuracy": last["score"]["score"], "bytes": last["bytes"]})
    return f"{cell.stem} {last['score']['score']:.4f}"


def cells(folder: Path, row: Row) -> list[Path]:
    """The files of a row that are there."""
    return [cell for seed in range(100) if (cell := row.cell(folder, seed)).exists()]


def line(row: Row, summaries: list[dict]) -> dict[str, object]:
    """A line of the table."""
    scores = [one["accuracy"] for one in summaries]
    return {
        "model": row.model,
        "batch": row.batches,
        "J": row.local_steps,
        "method": row.name,
        "P": row.ranks,
        "seeds": len(scores),
        "accuracy": f"{statistics.mean(scores):.4f}",
        "deviation": f"{statistics.stdev(scores):.4f}" if len(scores) > 1 else "",
        "least to largest": f"{min(scores):.4f} to {max(scores):.4f}",
        "MB sent": f"{summaries[0]['bytes'] / 1e6:.1f}",
    }


if __name__ == "__main__":
    main()
