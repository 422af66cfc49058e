"""Training on small images first: a residual network on CIFAR-10, one image in five, 16 x 16.

    python -m benchmarks.controls.growing            # ten minutes on two cores
    python -m benchmarks.controls.growing --tiny     # all of it in small, in a minute: only to see that it works

A small `resnet` is trained by IST on two ranks, on images of 16 from the start, and with two fifths of the rounds on
images of 8. All runs of a seed come one after the other. ``mpirun -n P istmpi train`` trains them (MPIRUN names another
launcher).
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.controls.small_images import prepare, train
from benchmarks.reporting import RESULTS, ROOT, report

RANKS = 2
FULL = "16 x 16 from the start"
ROWS: dict[str, dict[str, str]] = {FULL: {}, "8 x 8, then 16 x 16": {"train.resolution": "[[0.4,8],[0.6,16]]"}}
"""What is compared, and the settings that differ."""
SETTINGS = {
    "method.local_steps": "20",
    "train.batch": "64",
    "evaluate.calibration_examples": "512",
    "data.flip": "true",
    "model.name": "resnet",
    "model.blocks": "[1,1,1]",
    "model.channels": "[16,32,64]",
    "model.inner": "[16,32,64]",
    "optimizer.lr": "0.1",
    "optimizer.schedule": "cosine",
}
NOTES = (
    "Medians over the seeds. Accuracy: on the test images after the last round. To reach: seconds of training until an "
    "evaluation on 16 x 16 first shows what the same seed's run from the start has at its end, less half a point. "
    "Seconds are of training alone, on two cores that other work may share; GFLOP those of all ranks' products, as "
    "planned, which no load changes. One learning rate for all, tuned for none."
)


def gflop(settings: dict[str, str]) -> float:
    """Products of a whole run, from its plan."""
    from istmpi.cli.networks import described
    from istmpi.cli.run_options import resolve
    from istmpi.cost import phase_costs

    found = described(resolve("digits", tuple(f"{name}={value}" for name, value in settings.items()), {}), None)
    costs = phase_costs(found.run, found.architecture, RANKS, smaller=found.smaller)
    return sum(float(cost.flops("products")) * cost.local_steps * rounds for cost, rounds in costs) / 1e9


def trained(folder: Path, settings: dict[str, str], enough: float | None) -> dict[str, Any]:
    """A run's accuracy and seconds, and the seconds to ``enough``, by default its own accuracy less half a point."""
    last = train(folder, RANKS, settings)["last"]
    accuracy = last["score"]["score"]
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    grown = round(0.4 * int(settings["train.rounds"])) if "train.resolution" in settings else 0
    aim = accuracy - 0.005 if enough is None else enough
    good = (line["seconds"] for line in lines if line["round"] > grown and line.get("score", 0) >= aim)
    return {"accuracy": accuracy, "seconds": last["seconds"], "reached": next(good, None), "aim": aim}


def main() -> None:
    """Train every row for every seed, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, default=ROOT.parent / "shared" / "data" / "cifar10.tar")
    parser.add_argument("--rounds", type=int, default=30, help="of 20 local steps (30)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="5 rounds, one image in 100, one seed; into no results")
    options = parser.parse_args()
    rounds, one_in, seeds = (5, 100, 1) if options.tiny else (options.rounds, 5, options.seeds)
    found: dict[str, list[dict[str, Any]]] = {row: [] for row in ROWS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        some = slice(one_in - 1, None, one_in)
        prepare(options.raw, folder / "images.h5", 16, train=some, test=some)
        common = SETTINGS | {"data.source": str(folder / "images.h5"), "train.rounds": str(rounds)}
        common["evaluate.every"] = str(max(rounds // 15, 1))
        for seed in range(seeds):
            for number, (row, settings) in enumerate(ROWS.items()):
                aim = None if row == FULL else found[FULL][seed]["aim"]
                run = trained(folder / f"{seed}-{number}", common | settings | {"train.seed": str(seed)}, aim)
                found[row].append(run)
        rows = [
            {
                "run": row,
                "accuracy": f"{median(run['accuracy'] for run in runs):.3f}",
                "each seed": ", ".join(f"{run['accuracy']:.3f}" for run in runs),
                "seconds": f"{median(run['seconds'] for run in runs):.0f}",
                "to reach": ", ".join("never" if run["reached"] is None else f"{run['reached']:.0f}" for run in runs),
                "GFLOP": f"{gflop(common | ROWS[row]):,.0f}",
            }
            for row, runs in found.items()
        ]
        title = f"Growing images on CIFAR-10 at 16 x 16, one image in {one_in}"
        report("growing", title, rows, NOTES, folder=folder / "results" if options.tiny else RESULTS)


if __name__ == "__main__":
    main()
