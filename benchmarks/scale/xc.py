"""Very many labels at the paper's size: what ranks need to train, evaluate, resume and predict, beside one process.

    python -m benchmarks.scale.xc --ranks 4 --hidden 1024  # 135,909-1,024-670,091: 3.3 GB of weights
    python -m benchmarks.scale.xc --ranks 8 --hidden 2560
    python -m benchmarks.scale.xc --ranks 2 --hidden 64 --features 5000 --labels 20000  # in small

Rows are made up (benchmarks.scale.xc_rows). Every start is ``mpirun -n P istmpi ...`` (MPIRUN names another launcher)
whose ranks' peaks of resident memory the kernel tells at their end. The one process is plain PyTorch with the same
module: a step of SGD on the same batch.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.reporting import RESULTS, report
from benchmarks.scale.memory import planned, watching
from benchmarks.scale.xc_rows import AMAZON_670K, write

NOTES = (
    "Peaks are of resident memory, the highest rank's, libraries included. Planned is what istmpi costmodel says of a "
    "rank, without the process itself. Seconds are of the whole command."
)


def main() -> None:
    """Run all phases and report; or one of them, in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--features", type=int, default=AMAZON_670K["features"])
    parser.add_argument("--labels", type=int, default=AMAZON_670K["labels"])
    parser.add_argument("--redeal", type=float, default=1.0)
    parser.add_argument("--local-steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--no-checkpoint", action="store_true", help="train and evaluate alone, in one start")
    parser.add_argument("--one-process", action="store_true", help="the plain PyTorch step alone")
    parser.add_argument("--folder", type=Path, help="for rows and runs, kept and used again (a temporary one)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.one_process:
        one_process(options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        measure(options, options.folder or Path(scratch))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Run every phase in a folder and report."""
    folder.mkdir(exist_ok=True)
    data, run = folder / f"rows-{options.features}-{options.labels}.h5", folder / "run"
    rows = []
    if not data.exists():
        source = folder / "source"
        source.mkdir()
        for name, count, seed in ("train", options.rows, 1), ("test", max(options.rows // 20, 10), 2):
            write(source / f"{name}.txt", count, seed, options.features, options.labels)
        size = sum(file.stat().st_size for file in source.iterdir()) / 1e6
        rows.append(started(f"prepare {size:.0f} MB of text", 0, ["istmpi", "prepare", "xc", source, data], folder))
    settings = {
        "model.hidden": f"[{options.hidden}]",
        "method.local_steps": options.local_steps,
        "method.redeal": options.redeal,
        "optimizer.name": "sgd",
        "optimizer.lr": 0.1,
        "train.batch": options.batch,
        "evaluate.examples": 200,
        "evaluate.every": 1000,
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    train = ["istmpi", "train", "xc", "--data", data, "--out", run, *words]
    first = 2 if options.no_checkpoint else 1
    rows.append(started("train, evaluate, save", options.ranks, [*train, "--rounds", first], folder))
    if not options.no_checkpoint:
        rows.append(started("resume for a round", options.ranks, [*train, "--rounds", 2, "--resume", "auto"], folder))
        network = run / "network.h5"
        rows.append(started("evaluate", options.ranks, ["istmpi", "evaluate", network], folder))
        few = folder / "few.txt"
        few.write_text("".join((folder / "source" / "test.txt").open().readlines()[1:9]))
        rows.append(started("predict, one process", 0, ["istmpi", "predict", network, few], folder))
    plain = [sys.executable, "-m", __spec__.name, "--one-process", *sys.argv[1:]]
    rows.append(started("one process of plain PyTorch, a step", 0, plain, folder))
    summary = json.loads((run / "summary.json").read_text())
    weights = 4 * options.hidden * (options.features + options.labels)
    shape = f"{options.features}-{options.hidden}-{options.labels}"
    expected = planned(["xc", "--layers", shape, "--ranks", options.ranks, *words])
    facts = (
        f"{NOTES} {weights / 1e9:.2f} GB of weights, a rank's share {weights / options.ranks / 1e9:.2f} GB; planned "
        f"for a rank {expected / 1e9:.2f} GB. All ranks sent {summary['last']['bytes'] / 1e9:.2f} GB in "
        f"{summary['last']['round']} rounds of {options.local_steps} steps, in {summary['last']['seconds']:.0f} s."
    )
    name = f"xc-scale-{options.hidden}-{options.ranks}" + (f"-{options.redeal:g}" if options.redeal < 1 else "")
    report(name, f"{shape} on {options.ranks} ranks", rows, facts, folder=options.results)


def started(what: str, ranks: int, command: Sequence[object], folder: Path) -> dict[str, object]:
    """A command's seconds and the highest peak of its processes; without ``ranks`` it is a single one."""
    peaks = folder / "peaks"
    peaks.mkdir(exist_ok=True)
    for old in peaks.iterdir():
        old.unlink()
    launcher = [*shlex.split(os.environ.get("MPIRUN", "mpirun")), "-n", str(ranks)] if ranks else []
    words = [*launcher, *watching(peaks), *map(str, command)]
    start = time.monotonic()
    done = subprocess.run(words, stdin=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    found = [int(peak.read_text()) for peak in peaks.iterdir()]
    outcome = "done" if done.returncode == 0 else f"failed ({done.returncode})"
    peak = f"{max(found) / 1e9:.2f}" if found else "unknown"
    return {"phase": what, "ranks": ranks or 1, "outcome": outcome, "seconds": round(seconds), "peak GB": peak}


def one_process(options: argparse.Namespace) -> None:
    """A step of plain PyTorch: all logits of a batch, and a gradient of every weight."""
    import torch

    from istmpi.models.xc import XC

    network = XC(options.features, options.labels, (options.hidden,))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    columns = torch.randint(options.features, (options.batch * AMAZON_670K["in_a_row"],))
    offsets = torch.arange(0, len(columns), AMAZON_670K["in_a_row"])
    outputs = network(columns, offsets, torch.rand(len(columns)))
    targets = torch.randint(options.labels, (options.batch,))
    torch.nn.functional.cross_entropy(outputs, targets).backward()
    optimizer.step()


if __name__ == "__main__":
    main()
