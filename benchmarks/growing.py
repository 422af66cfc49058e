"""Training on small images first, and leaving early: a residual network with exits on CIFAR-10.

    python benchmarks/growing.py            # a quarter of an hour on two cores
    python benchmarks/growing.py --tiny     # all of it in small, in a minute: only to see that it works

The data are those of own_network.py, 16 x 16. A small `resnet` with two early exits is trained by IST on two ranks: on
images of 16 from the start, and two fifths of the rounds on images of 8; and without exits. Rows are medians over
seeds; all runs of a seed come one after the other. Then `istmpi evaluate` says what leaving early does to the networks
of full size. ``mpirun -n P istmpi train`` trains them (MPIRUN names another launcher).
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from own_network import SETTINGS
from reporting import HERE, RESULTS, report
from small_images import prepare, train

RANKS = 2
EXITS = {"model.exits": "[1,2]"}
FULL = "16 x 16 from the start"
ROWS: dict[str, dict[str, str]] = {
    FULL: EXITS,
    "8 x 8, then 16 x 16": {**EXITS, "train.resolution": "[[0.4,8],[0.6,16]]"},
    "no exits, 16 x 16": {},
}
"""What is compared, and the settings that differ."""
NOTES = (
    "Medians over the seeds. Accuracy: of each exit on the test images after the last round, as many for all. To "
    "reach: seconds of training until an evaluation on 16 x 16 first shows what the same seed's run from the start "
    "has at its end, less half a point. Seconds are of training alone, on two cores that other work may share; "
    "GFLOP those of all ranks' products, as planned, which no load changes. Early: the share of the test images "
    "that leaves before the last exit at the threshold with most of them for less than half a point, and the "
    "accuracy of all then. One learning rate for all, tuned for none."
)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a run."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "score" in line]


def gflop(settings: dict[str, str]) -> float:
    """Of the products of a whole run, from its plan."""
    from istmpi.cli.networks import described
    from istmpi.cli.run_options import resolve
    from istmpi.cost import phase_costs

    found = described(resolve("digits", tuple(f"{name}={value}" for name, value in settings.items()), {}), None)
    costs = phase_costs(found.run, found.architecture, RANKS, smaller=found.smaller)
    return sum(float(cost.flops("products")) * cost.local_steps * rounds for cost, rounds in costs) / 1e9


def reached(lines: list[dict[str, Any]], accuracy: float, first_round: int) -> float | None:
    """Seconds until an evaluation behind a round first shows so much."""
    good = (line["seconds"] for line in lines if line["round"] > first_round and line["score"] >= accuracy)
    return next(good, None)


def leaving_early(network: Path) -> dict[str, float]:
    """The best point of a network's curve: threshold, share, accuracy."""
    from istmpi.exits import ExitPoint, nearly_free

    done = subprocess.run(["istmpi", "evaluate", network, "--json"], check=True, capture_output=True, text=True)
    best = nearly_free([ExitPoint(**point) for point in json.loads(done.stdout)["early_exits"]])
    return {"threshold": best.threshold, "early": best.early, "accuracy": best.accuracy}


def main() -> None:
    """Train every row for every seed, evaluate and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, default=HERE.parent.parent / "shared" / "data" / "cifar10.tar")
    parser.add_argument("--rounds", type=int, default=30, help="of 20 local steps (30)")
    parser.add_argument("--one-in", type=int, default=5, help="images of which one is taken (5)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--plot", type=Path, help="draw the first seed's curve of early exits there")
    parser.add_argument("--tiny", action="store_true", help="5 rounds, one image in 100, one seed; into no results")
    options = parser.parse_args()
    if options.tiny:
        options.rounds, options.one_in, options.seeds = 5, 100, 1
    widths = "[16,32,64]"
    found: dict[str, list[dict[str, Any]]] = {row: [] for row in ROWS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some = slice(options.one_in - 1, None, options.one_in)
        prepare(options.raw, folder / "images.h5", 16, train=some, test=some)
        common = {
            **SETTINGS,
            "data.source": str(folder / "images.h5"),
            "data.flip": "true",
            "model.name": "resnet",
            "model.blocks": "[1,1,1]",
            "model.channels": widths,
            "model.inner": widths,
            "train.rounds": str(options.rounds),
            "optimizer.lr": str(options.lr),
            "optimizer.schedule": "cosine",
            "evaluate.every": str(max(options.rounds // 15, 1)),
        }
        for seed in range(options.seeds):
            for row, settings in ROWS.items():
                run = folder / f"{len(found[row])}-{[*ROWS].index(row)}"
                settings = common | settings | {"train.seed": str(seed)}
                last = train(run, RANKS, settings)["last"]
                lines = lines_of(run)
                grown = round(0.4 * options.rounds) if "train.resolution" in settings else 0
                enough = (found[FULL][seed]["exits"][-1] if found[FULL][seed:] else last["score"]["score"]) - 0.005
                found[row].append(
                    {
                        "exits": last["score"].get("exits", [last["score"]["score"]]),
                        "seconds": last["seconds"],
                        "gflop": gflop(settings),
                        "reached": reached(lines, enough, grown),
                        **(leaving_early(run / "network.h5") if "model.exits" in settings else {}),
                    }
                )
                if options.plot and row == FULL and not seed:
                    subprocess.run(["istmpi", "evaluate", run / "network.h5", "--plot", options.plot], check=True)
        rows = []
        for row, runs in found.items():
            exits = zip(*(run["exits"] for run in runs))
            times = [run["reached"] for run in runs]
            early = "threshold" in runs[0]
            rows.append(
                {
                    "run": row,
                    "accuracy of each exit": ", ".join(f"{median(each):.3f}" for each in exits),
                    "last exit, each seed": ", ".join(f"{run['exits'][-1]:.3f}" for run in runs),
                    "seconds": f"{median(run['seconds'] for run in runs):.0f}",
                    "to reach": ", ".join("never" if one is None else f"{one:.0f}" for one in times),
                    "GFLOP": f"{runs[0]['gflop']:,.0f}",
                    "threshold": ", ".join(f"{run['threshold']:.2f}" for run in runs) if early else "",
                    "early": ", ".join(f"{run['early']:.0%}" for run in runs) if early else "",
                    "accuracy then": ", ".join(f"{run['accuracy']:.3f}" for run in runs) if early else "",
                }
            )
        title = f"Growing images and early exits on CIFAR-10 at 16 x 16, one image in {options.one_in}"
        report("growing", title, rows, NOTES, folder=folder / "results" if options.tiny else RESULTS)


if __name__ == "__main__":
    main()
