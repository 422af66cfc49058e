"""ADMM, elastic averaging and Downpour beside local SGD, DiLoCo and IST, each at its best rate and own setting.

    python -m benchmarks.controls.survey --raw ../shared/data --out FOLDER

Four simulated ranks, a part of the data each, 240 local steps in rounds of 20. Rates and settings are chosen on a
validation split; accuracies are of the test split, mean and range of three seeds.
"""

import argparse
import json
import subprocess
from itertools import product
from pathlib import Path
from statistics import mean

from istmpi.config import Run
from istmpi.errors import DivergedError
from istmpi.simulated import simulate
from istmpi.training.loop import Training

RANKS, SEEDS = 4, (0, 1, 2)
RATES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
VARIANTS = {
    "local-sgd": [{}],
    "diloco": [{}],
    "ist": [{"method.redeal": 0.1}],
    "admm": [{"method.penalty": penalty} for penalty in (0.001, 0.01, 0.1)],
    "easgd": [
        {"method.moving_rate": rate, "method.order": order}
        for rate, order in product((0.5, 0.9), ("together", "round-robin"))
    ],
    "downpour": [{}],
    "streaming-diloco": [{}],
    "streaming-diloco, values as they are": [{"method.differences": "full"}],
    "sparse-loco": [{}],
    "sparse-loco, values as they are": [{"method.top_values": "full"}],
}
"""The settings that are tried, by a method's name and perhaps what tells it from another row."""
COMMON = {
    "data.placement": "sharded",
    "method.local_steps": 20,
    "train.rounds": 12,
    "train.batch": 32,
    "train.threads": 1,
    "evaluate.every": 12,
    "optimizer.momentum": 0.9,
}


def trained(settings: dict[str, object]) -> tuple[float, int]:
    """Train a run; return its accuracy, 0 where it diverged, and its bytes."""
    run = Run().override(settings)

    def program(communicator):
        (*_, last) = Training(run, communicator).rounds()
        score = last.validation if run.data.validation else last.score
        return score.score, last.bytes

    try:
        return simulate(program, RANKS).require()[0]
    except DivergedError:
        return 0.0, 0


def row(task: dict[str, object], method: str) -> dict[str, object]:
    """Choose a method's rate and setting on validation data; return its accuracies on the test split."""
    tried = []
    for variant, rate in product(VARIANTS[method], RATES):
        settings = {**COMMON, **task, **variant, "method.name": method.partition(",")[0], "optimizer.lr": rate}
        tried.append((trained(settings | {"data.validation": 0.2})[0], settings))
    _, best = max(tried, key=lambda entry: entry[0])
    runs = [trained(best | {"train.seed": seed}) for seed in SEEDS]
    chosen = {name: best[name] for name in best if name not in COMMON | task or name.startswith("method.")}
    accuracies = [accuracy for accuracy, _ in runs]
    edge = best["optimizer.lr"] in (RATES[0], RATES[-1])
    return {"method": method, "accuracies": accuracies, "bytes": runs[0][1], "chosen": chosen, "rate_on_edge": edge}


def main() -> None:
    """Run what is not in the folder yet, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(exist_ok=True)
    images = arguments.out / "cifar-16.h5"
    if not images.exists():
        subprocess.run(
            ["istmpi", "prepare", "images", arguments.raw / "cifar10.tar", images, "--size", "16"], check=True
        )
    tasks = {
        "digits, 64-128-128-10": {"model.hidden": [128, 128]},
        "CIFAR-10 at 16 x 16, 768-256-256-10": {"data.source": str(images), "model.hidden": [256, 256]},
    }
    lines = []
    for name, task in tasks.items():
        lines += [
            f"## {name}",
            "",
            "| method | accuracy | range | MB sent | chosen |",
            "| --- | --- | --- | --- | --- |",
        ]
        for method in VARIANTS:
            cell = arguments.out / f"{name.split(',')[0].split()[0]}-{method.replace(', ', '-').replace(' ', '-')}.json"
            if not cell.exists():
                cell.write_text(json.dumps(row(task, method)))
            result = json.loads(cell.read_text())
            accuracies = result["accuracies"]
            chosen = ", ".join(f"{key.partition('.')[2]} {value}" for key, value in result["chosen"].items())
            edge = " (edge of the grid)" * result["rate_on_edge"]
            lines.append(
                f"| {method} | {mean(accuracies):.3f} | {min(accuracies):.3f} to {max(accuracies):.3f} | "
                f"{result['bytes'] / 1e6:.1f} | {chosen}{edge} |"
            )
        lines.append("")
    print("\n".join(lines))
    (arguments.out / "survey.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
