"""IST's exchange beside the last local steps of a round (method.delay): what is still waited for, and what it costs.

    mpirun -n 4 python benchmarks/overlap.py accuracy --data speech.h5       # three seeds of each; resumes
    sudo -E env PATH="$PATH" python benchmarks/overlap.py seconds --data speech.h5 --rate 200mbit
    python benchmarks/overlap.py report

Spoken digits, P = 4, a full deal and a tenth redealt; delays in turns. Accuracy is the mean of a run's last three
evaluations. Seconds are those of a round's phases on an emulated cluster (benchmarks/cluster).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev

from reporting import HERE, report
from wire import evaluated, lines

from istmpi import run_training, world
from istmpi.config import Run

RANKS, SEEDS, TURNS = 4, 3, 3
REDEALS = ("1", "0.1")
DELAYS = {"accuracy": (0, 1, 2, 3, 4), "seconds": (0, 1, 2, 4)}
STEPS = {"accuracy": (20, 10), "seconds": (10,)}
TRAINED = {"model.hidden": [512, 512], "optimizer.lr": 0.02, "train.batch": 64, "train.threads": 1}
TRAINED |= {"evaluate.every": 2}
STEPS_OF_A_RUN = 240
SENT = ["--hidden", "2048,2048", "--lr", "0.02", "--batch", "256", "--rounds", "7", "--threads", "1"]
SENT += ["--evaluate-every", "7"]
SENDING = ("hop", "pull", "push", "all_reduce")
"""The phases of a round in which ranks wait for what is sent."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "seconds", "report"))
    parser.add_argument("--data", type=Path, default=Path("speech.h5"), help="istmpi prepare speech ARCHIVE speech.h5")
    parser.add_argument("--cells", type=Path, default=HERE / "cells", help="the folder of the runs (benchmarks/cells)")
    parser.add_argument("--rate", default="200mbit", help="of the emulated cluster (200mbit)")
    options = parser.parse_args()
    if options.what == "report":
        tell(options.cells, options.rate)
        return 0
    what, seeds = options.what, range(SEEDS if options.what == "accuracy" else TURNS)
    turns = [
        (steps, seed, redeal, delay)
        for steps in STEPS[what]
        for seed in seeds
        for redeal in REDEALS
        for delay in DELAYS[what]
    ]
    for steps, seed, redeal, delay in turns:
        folder = options.cells / f"{cell(what, steps, redeal, delay)}{seed}"
        if (folder / "summary.json").exists():
            continue
        settings = {"method.redeal": float(redeal), "method.delay": delay, "method.local_steps": steps}
        if what == "accuracy":
            settings |= {**TRAINED, "train.rounds": STEPS_OF_A_RUN // steps, "train.seed": seed}
            settings |= {"data.source": str(options.data), "output.folder": str(folder)}
            run_training(Run().override(settings), world())
            continue
        command = [
            sys.executable,
            HERE / "cluster",
            "--hosts",
            RANKS,
            "--rate",
            options.rate,
            "--name",
            "overlap",
            "--",
        ]
        command += [sys.executable, "-m", "istmpi", "train", "--data", options.data, "--out", folder, "--seed", seed]
        command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")] + SENT
        print(*command, flush=True)
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, timeout=900)
    return 0


def cell(what: str, steps: int, redeal: str, delay: int) -> str:
    """What the names of a cell's runs begin with."""
    return f"overlap-{what}-{steps}-{redeal}-{delay}-"


def runs(cells: Path, *of: object) -> dict[str, Path]:
    """The finished runs of a cell by their seeds."""
    return {one.name[-1]: one for one in sorted(cells.glob(f"{cell(*of)}[0-9]")) if (one / "summary.json").exists()}


def tell(cells: Path, rate: str) -> None:
    """Write the report."""
    rows = [
        {
            "steps a round": steps,
            "redealt": redeal,
            "delay": delay,
            **accuracy(cells, steps, redeal, delay),
            **seconds(cells, steps, redeal, delay),
        }
        for steps in STEPS["accuracy"]
        for redeal in REDEALS
        for delay in DELAYS["accuracy"]
    ]
    told = ", ".join(f"{key} = {value}" for key, value in TRAINED.items())
    notes = (
        f"Accuracy: mlp 4096-512-512-10, {told}, {STEPS_OF_A_RUN} local steps. Seconds: mlp "
        f"4096-2048-2048-10, {' '.join(SENT)}, {RANKS} emulated hosts of {rate} each way; of a round, the mean over "
        f"ranks, the median over rounds but the first and the last, which send something else, and {TURNS} turns. "
        f"Whole: with no delay, all of hop, pull, push and all-reduce. Exposed: what ranks wait for in them. Ratios "
        f"are within a turn: the median, the least and the most. In the background: seconds from its first byte to "
        f"its last, where all threads share the cores."
    )
    report(
        "overlap",
        "IST's exchange beside local steps: what is still waited for, and accuracy",
        rows,
        notes,
        lines=f"seconds: {RANKS} emulated hosts, {rate} each, TCP",
    )


def accuracy(cells: Path, steps: int, redeal: str, delay: int) -> dict[str, str | int]:
    """Of a delay, and against none, seed by seed."""
    scores, without = (
        {seed: 100 * mean(one["score"] for one in evaluated(folder)[-3:]) for seed, folder in found.items()}
        for found in (runs(cells, "accuracy", steps, redeal, one) for one in (delay, 0))
    )
    apart = [score - without[seed] for seed, score in scores.items() if seed in without]
    return {
        "seeds": len(scores),
        "accuracy, %": spread(list(scores.values()), mean),
        "against none": spread(apart, mean, "+.2f"),
        "deviation of a seed": f"{stdev(scores.values()):.2f}" if len(scores) > 1 else "",
    }


def seconds(cells: Path, steps: int, redeal: str, delay: int) -> dict[str, str]:
    """Of a delay, and against none, turn by turn."""
    timed, whole = (
        {turn: times(folder) for turn, folder in found.items()}
        for found in (runs(cells, "seconds", steps, redeal, one) for one in (delay, 0))
    )
    both = [(one, whole[turn]) for turn, one in timed.items() if turn in whole]
    return {
        "a local step, s": spread([one["step"] for one, _ in both]),
        "whole exchange, s": spread([none["exposed"] for _, none in both]),
        "exposed, s": spread([one["exposed"] for one, _ in both]),
        "exposed / whole": spread([one["exposed"] / none["exposed"] for one, none in both]),
        "in the background, s": spread([one["background"] for one, _ in both if one["background"]]),
        "round / round without": spread([one["round"] / none["round"] for one, none in both]),
    }


def times(folder: Path) -> dict[str, float]:
    """Seconds of a run's middle rounds."""
    rounds = lines(folder)[1:-1]
    exposed = [sum(one.get(f"{phase}_seconds", 0.0) for phase in SENDING) for one in rounds]
    return {
        "exposed": median(exposed),
        "step": median(one["compute_seconds"] for one in rounds) / STEPS["seconds"][0],
        "background": median(one.get("background_seconds", 0.0) for one in rounds),
        "round": median(one["round_seconds"] for one in rounds),
    }


def spread(values: Sequence[float], middle=median, how: str = ".2f") -> str:
    """The middle, and the least and the most in brackets; empty without values."""
    if not values:
        return ""
    return f"{middle(values):{how}} ({min(values):{how}} to {max(values):{how}})"


if __name__ == "__main__":
    sys.exit(main())
