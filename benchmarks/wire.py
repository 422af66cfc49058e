"""What fewer bits on the wire cost in accuracy and save in bytes and seconds: float32, bfloat16 and int8.

    python benchmarks/wire.py accuracy --data speech.h5            # five seeds of each, on simulated ranks; resumes
    sudo -E env PATH="$PATH" python benchmarks/wire.py seconds --data speech.h5 --rate 50mbit
    python benchmarks/wire.py report

Spoken digits, P = 4, IST with a full deal and with a tenth redealt, and local SGD, whose mean goes round a ring; data
alike on all ranks. Accuracy is the mean of a run's last three evaluations. Seconds are those of a round's phases on an
emulated cluster (benchmarks/cluster), the wires in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from reporting import HERE, report

from istmpi.devices import usable_cores

RANKS, SEEDS, TURNS = 4, range(5), 3
WIRES = ("float32", "bfloat16", "int8")
METHODS = {
    "ist": ["--method", "ist"],
    "ist, redeal 0.1": ["--method", "ist", "--set", "method.redeal=0.1"],
    "local-sgd": ["--method", "local-sgd"],
}
TRAINED = ["--hidden", "512,512", "--lr", "0.02", "--local-steps", "20", "--batch", "64", "--rounds", "12"]
TRAINED += ["--evaluate-every", "2", "--threads", "1"]
SENT = ["--hidden", "2048,2048", "--lr", "0.02", "--local-steps", "1", "--batch", "16", "--rounds", "5"]
SENT += ["--threads", "1", "--evaluate-every", "5"]
SENDING = ("deal", "hop", "pull", "push", "all-reduce")
"""The phases of a round that are not computing or waiting for others that compute."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "seconds", "report"))
    parser.add_argument("--data", type=Path, default=Path("speech.h5"), help="istmpi prepare speech ARCHIVE speech.h5")
    parser.add_argument("--cells", type=Path, default=HERE / "cells", help="the folder of the runs (benchmarks/cells)")
    parser.add_argument("--only", choices=METHODS, help="this method alone")
    parser.add_argument("--rate", default="50mbit", help="of the emulated cluster (50mbit)")
    options = parser.parse_args()
    if options.what == "report":
        tell(options.cells)
        return 0
    turns = [(method, wire, turn) for method in METHODS for turn in SEEDS for wire in WIRES]
    todo = [command(options, *turn) for turn in turns if options.only in (None, turn[0])]
    # Seconds want the machine for themselves; simulated ranks share a core.
    with ThreadPoolExecutor(1 if options.what == "seconds" else len(usable_cores())) as side_by_side:
        list(side_by_side.map(run, filter(None, todo)))
    return 0


def cell_name(what: str, method: str, wire: str, turn: int | str) -> str:
    """The name of a run's folder."""
    return f"{what}-{method.replace(', redeal ', '')}-{wire}-{turn}"


def command(options: argparse.Namespace, method: str, wire: str, turn: int) -> list[str] | None:
    """The command line of a run that is not there yet."""
    folder = options.cells / cell_name(options.what, method, wire, turn)
    if (folder / "summary.json").exists() or (options.what == "seconds" and turn >= TURNS):
        return None
    settings = ["--data", options.data, "--out", folder, *METHODS[method], "--seed", turn]
    settings += ["--set", f"method.wire={wire}"]
    if options.what == "accuracy":
        words = [sys.executable, "-m", "istmpi", "simulate", "--ranks", RANKS, *settings, *TRAINED]
    else:
        cluster = [sys.executable, HERE / "cluster", "--hosts", RANKS, "--rate", options.rate, "--name", "wire"]
        words = [*cluster, "--", sys.executable, "-m", "istmpi", "train", *settings, *SENT]
    return list(map(str, words))


def run(words: list[str]) -> None:
    """Carry out a command line, and say it."""
    print(*words, flush=True)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, timeout=900)


def tell(cells: Path) -> None:
    """Write the report."""
    rows = []
    for method in METHODS:
        plain: dict[str, Any] = {}
        for wire in WIRES:
            folders = finished(cells, "accuracy", method, wire)
            by_seed = {folder.name[-1]: mean(one["score"] for one in evaluated(folder)[-3:]) for folder in folders}
            scores = list(by_seed.values())
            sent = [lines(folder)[-1]["bytes"] / 12 for folder in folders]
            timed = [seconds(folder) for folder in finished(cells, "seconds", method, wire)]
            if len(scores) < 3:
                continue
            facts = {
                "scores": by_seed,
                "accuracy": 100 * mean(scores),
                "bytes": mean(sent),
                "seconds": median(timed) if timed else 0.0,
            }
            plain = plain or facts
            apart = [
                100 * (score - plain["scores"][seed]) for seed, score in by_seed.items() if seed in plain["scores"]
            ]
            rows.append(
                {
                    "method": method,
                    "wire": wire,
                    "seeds": len(scores),
                    "accuracy, %": f"{facts['accuracy']:.2f} ({100 * min(scores):.1f} to {100 * max(scores):.1f})",
                    "against float32": f"{mean(apart):+.2f} ({min(apart):+.1f} to {max(apart):+.1f})",
                    "deviation of a seed": f"{100 * stdev(scores):.2f}" if len(scores) > 1 else "",
                    "MB a round": f"{facts['bytes'] / 1e6:.3f}",
                    "of float32": f"{facts['bytes'] / plain['bytes']:.3f}",
                    "seconds of sending a round": f"{facts['seconds']:.2f}" if timed else "",
                    "of float32's": f"{facts['seconds'] / plain['seconds']:.2f}" if timed and plain["seconds"] else "",
                    "turns": len(timed),
                }
            )
    notes = (
        f"Accuracy and bytes: mlp 4096-512-512-10, {' '.join(TRAINED)}. Seconds: mlp 4096-2048-2048-10, {RANKS} hosts "
        f"of 50 Mbit/s each way, the slowest rank's {', '.join(SENDING)} of a round with packing and encoding, the "
        f"first left out, median over rounds and turns. The first round's exact pull counts in bytes a round."
    )
    report(
        "wire",
        "Fewer bits on the wire: accuracy, bytes, seconds",
        rows,
        notes,
        lines=f"seconds: {RANKS} emulated hosts, 50 Mbit/s each, TCP",
    )


def finished(cells: Path, what: str, method: str, wire: str) -> list[Path]:
    """The folders of a method's runs that came to their end."""
    folders = cells.glob(cell_name(what, method, wire, "[0-9]"))
    return sorted(folder for folder in folders if (folder / "summary.json").exists())


def lines(folder: Path) -> list[dict]:
    """What the run has told of its rounds."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def evaluated(folder: Path) -> list[dict]:
    return [line for line in lines(folder) if line.get("score") is not None]


def seconds(folder: Path) -> float:
    """Of sending in a round, the median over all but the first."""
    return median(
        sum(line.get(f"{name.replace('-', '_')}_seconds", 0) for name in SENDING) for line in lines(folder)[1:]
    )


if __name__ == "__main__":
    sys.exit(main())
