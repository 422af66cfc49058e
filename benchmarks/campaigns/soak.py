"""Many rounds of a tiny network: whether memory, open descriptors or threads of a rank grow with the rounds.

    python -m benchmarks.campaigns soak --minutes 30
    python -m benchmarks.campaigns soak --rounds 10000
    MPIRUN=/usr/bin/mpirun python -m benchmarks.campaigns soak --rounds 500 --ranks 2 --only "ist;local-sgd"

Every rank notes after each hundredth of the rounds, or each 20 of them, what its process has. The medians of the first
tenth, the warm-up left out, and of the last are compared.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median

from benchmarks.campaigns.libraries import WRITERS, libraries
from benchmarks.reporting import HERE, ROOT, report

METHODS = {
    "ist": {"method.name": "ist"},
    "ist, a tenth redealt": {"method.name": "ist", "method.redeal": 0.1},
    "ist, 8 bits beside local steps": {
        "method.name": "ist",
        "method.wire": "int8",
        "method.delay": 1,
        "method.local_steps": 2,
    },
    "local-sgd": {"method.name": "local-sgd"},
    "data-parallel": {"method.name": "data-parallel"},
    "streaming-diloco": {"method.name": "streaming-diloco"},
    "sparse-loco": {"method.name": "sparse-loco"},
    "admm": {"method.name": "admm"},
    "easgd": {"method.name": "easgd"},
    "downpour": {"method.name": "downpour"},
}
TINY = {
    "model.hidden": [16, 16],
    "method.local_steps": 1,
    "train.batch": 8,
    "train.threads": 1,
    "train.device": "cpu",
    "optimizer.lr": 0.001,
    "optimizer.momentum": 0.5,
    "method.optimizer_state": "carry",
    "evaluate.calibration_examples": 64,
    "checkpoint.writer": WRITERS[-1],
}
SAMPLES = 100
BETWEEN = 20
"""Rounds between two samples where the rounds are not known beforehand."""
MEGABYTES = 4.0
"""By which a rank's memory may grow: allocators keep a little of what a thread once used."""
FIGURES = {"memory MB": MEGABYTES, "descriptors": 0, "threads": 0}
"""What is noted, and by how much the last tenth may be above the first."""
NOTES = (
    "Medians of the first tenth of the rounds, without their first fifth, and of the last tenth, on the rank that grew "
    f"most. Allowed are {MEGABYTES:g} MB of resident memory and nothing of the others. Checkpoints, evaluations and "
    "their threads are included."
)


def main(arguments: list[str]) -> int:
    """Run every method, each in a job of its own; 1 if anything grew, or if a job failed."""
    options = _options(arguments)
    names = options.only.split(";") if options.only else list(METHODS)
    rounds = options.rounds or (10**6 if options.minutes else 10_000)
    seconds = 60 * options.minutes * options.jobs / len(names) if options.minutes else None
    every = BETWEEN if options.minutes else max(rounds // SAMPLES, 1)
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        per_rank = list(pool.map(lambda name: soak(METHODS[name], options, rounds, every, seconds), names))
    for name, samples in zip(names, per_rank, strict=True):
        for figure, allowed in FIGURES.items():
            first, last = max((ends(rank[figure]) for rank in samples), key=lambda both: both[1] - both[0])
            verdict = "grows" if last - first > allowed else "stays"
            rows.append({"method": name, "figure": figure, "first": first, "last": last, "verdict": verdict})
    least = min(len(samples[0][figure]) for samples in per_rank for figure in FIGURES) * every
    title = f"{least:,} rounds{' or more' if options.minutes else ''} on {options.ranks} ranks"
    notes = f"{NOTES} Writer of checkpoints: {WRITERS[-1]}. {libraries()}."
    report("campaign-soak", title, rows, notes, folder=options.results)
    return int(any(row["verdict"] == "grows" for row in rows))


def ends(values: list[float]) -> tuple[float, float]:
    """The median of the first tenth, its first fifth left out, and that of the last."""
    tenth = max(len(values) // 10, 1)
    return float(median(values[tenth // 5 : tenth])), float(median(values[-tenth:]))


def soak(
    method: dict[str, object], options: argparse.Namespace, rounds: int, every: int, seconds: float | None
) -> list[dict[str, list[float]]]:
    """One job; of every rank the samples of each figure, in the order of the rounds, one in so many.

    It is stopped after so many seconds.
    """
    launcher = os.environ.get("MPIRUN") or shutil.which("mpirun")
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        settings = {**TINY, **method, "train.rounds": rounds, "evaluate.every": every, "checkpoint.every": every}
        settings |= {"output.folder": f"{folder}/run"}
        words = [
            launcher,
            "-n",
            str(options.ranks),
            sys.executable,
            "-m",
            __name__,
            folder,
            str(every),
            json.dumps(settings),
            str(seconds or 0),
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"soak: {method} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return [json.loads(Path(folder, f"rank-{rank}.json").read_text()) for rank in range(options.ranks)]


def _on_a_rank(folder: str, every: int, settings: dict[str, object], seconds: float) -> int:
    """The run, its samples left beside it."""
    from istmpi import comm
    from istmpi.config import Run
    from istmpi.errors import StoppedError
    from istmpi.training.loop import Training
    from istmpi.training.run import run_training

    samples: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    progress = Training.progress

    def noting(training: Training, *of: object) -> object:
        told = progress(training, *of)
        if told.round % every == 0:
            for figure, value in held().items():
                samples[figure].append(value)
        return told

    Training.progress = noting
    communicator = comm.world()
    with suppress(StoppedError):
        run_training(Run().override(settings), communicator, deadline=time.time() + seconds if seconds else None)
    Path(folder, f"rank-{communicator.rank}.json").write_text(json.dumps(samples))
    return 0


def held() -> dict[str, float]:
    """What this process has at this moment."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.campaigns soak")
    parser.add_argument("--rounds", type=int, help="of each method (10,000; with --minutes as many as there is time)")
    parser.add_argument("--minutes", type=float, help="for all methods together")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="methods at a time (1)")
    parser.add_argument("--only", help=f"some of: {', '.join(METHODS)}; separated by ;")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    from istmpi.cli.main import main as as_istmpi

    as_istmpi(lambda: _on_a_rank(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), float(sys.argv[4])))
