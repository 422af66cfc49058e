"""Table 2 of the paper in small: what fits into a memory limit, the same for every process, and what it scores.

    python -m benchmarks.scale.limited --raw ../shared/data/reuters-xc.tar.gz --cells /tmp/cells --megabytes 400

Reuters with the pairs of each document's heaviest words as further features, so that one hidden unit takes megabytes.
A width fits if a short run, with the evaluation and the save at its end, ends well under ``ulimit -d`` in all ranks.
The widest network of each method that fits is trained at each rate. Every start is ``mpirun -n P istmpi train``.
"""

import argparse
import io
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.reporting import keep_cell, report
from benchmarks.scale.memory import watching

WORDS = 12
"""Words of a document whose pairs are features."""
PAIRS = 2**19
"""Features that pairs of words are hashed to."""
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
"""Hidden units of a rank that are tried."""
SHORT = 60
"""Steps of a run that tries a width."""
CARRIED = ("--optimizer-state", "carry")
METHODS = {
    "whole network, one process": ("local-sgd", False, CARRIED),
    "whole network, local SGD": ("local-sgd", True, CARRIED),
    "IST, never redealt": ("ist", True, ("--redeal", "0", *CARRIED)),
    "joint, J = 1": ("joint", True, ("--local-steps", "1")),
}
"""By name: the method, whether it has several ranks, and further words."""


def pair(row: str, features: int) -> str:
    """A row with its pairs of words; its values are then of length 1."""
    labels, *entries = row.split(" ")
    values = {int(word): float(value) for word, _, value in (entry.partition(":") for entry in entries)}
    heaviest = sorted(sorted(values, key=values.get)[-WORDS:])
    for first, second in itertools.combinations(heaviest, 2):
        place = features + (first * 1_000_003 + second) % PAIRS
        values[place] = values.get(place, 0) + (values[first] * values[second]) ** 0.5
    length = sum(value * value for value in values.values()) ** 0.5
    return " ".join([labels, *(f"{place}:{values[place] / length:.5g}" for place in sorted(values))])


def make_data(raw: Path, path: Path) -> None:
    if path.exists():
        return
    archive = path.with_suffix(".tar")
    with tarfile.open(raw) as source, tarfile.open(archive, "w") as target:
        for name in ("train", "test"):
            header, *rows = source.extractfile(f"reuters-xc/{name}.txt").read().decode().splitlines()
            count, features, labels = map(int, header.split())
            lines = [f"{count} {features + PAIRS} {labels}", *(pair(row, features) for row in rows)]
            content = "\n".join(lines).encode()
            member = tarfile.TarInfo(f"pairs/{name}.txt")
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    subprocess.run([sys.executable, "-m", "istmpi", "prepare", "xc", archive, path], check=True)
    archive.unlink()


class Trials:
    """Runs under the limit, each kept in a cell."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.data = options.cells / "pairs.h5"

    def command(self, name: str, width: int, steps: int, rate: float, seed: int) -> list[str]:
        method, several, words = METHODS[name]
        ranks = self.options.ranks if several else 1
        hidden = width if method == "local-sgd" else width * ranks
        local = 1 if method == "joint" else 20
        launcher = shlex.split(os.environ.get("MPIRUN", "mpirun"))
        limited = watching(self.options.cells / "peaks", self.options.megabytes * 1e6)
        settings = ["--set", f"train.seed={seed}", "--set", "evaluate.every=100000", "--set", "train.threads=1"]
        train = ["-m", "istmpi", "train", "--data", self.data, "--model", "xc", "--method", method]
        sizes = ["--hidden", hidden, "--batch", 64, "--local-steps", local, "--rounds", steps // local]
        rates = ["--optimizer", "adam", "--lr", rate, "--schedule", "cosine"]
        command = [*launcher, "-n", ranks, *limited, sys.executable, *train, *sizes, *rates, *words, *settings]
        return list(map(str, command))

    def run(self, name: str, width: int, steps: int, rate: float = 0.01, seed: int = 1) -> dict[str, object]:
        """The record of a run; its score is -1 if it did not end well."""
        about = [name.replace(",", "").replace(" ", "-"), f"w{width}", f"n{steps}", f"lr{rate}", f"s{seed}"]
        cell = self.options.cells / f"limited-{self.options.megabytes}-P{self.options.ranks}-{'-'.join(about)}.json"
        if not cell.exists():
            began = time.perf_counter()
            folder = cell.with_suffix("")
            shutil.rmtree(folder, ignore_errors=True)
            command = [*self.command(name, width, steps, rate, seed), "--out", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True)
            last = json.loads((folder / "summary.json").read_text())["last"] if done.returncode == 0 else {}
            record = {"score": last["score"]["score"] if last else -1, "bytes": last.get("bytes", 0)}
            keep_cell(cell, name, began, record | {"ended": done.stderr.splitlines()[-1:], "code": done.returncode})
        return json.loads(cell.read_text())

    def find_width(self, name: str) -> int:
        """The widest network, in units of a rank, that fits."""
        low, high = 0, len(WIDTHS)
        while low < high:
            middle = (low + high) // 2
            if self.run(name, WIDTHS[middle], SHORT)["score"] >= 0:
                low = middle + 1
            else:
                high = middle
        return WIDTHS[low - 1] if low else 0


def rows(trials: Trials, rates: Sequence[float], seeds: int) -> Iterator[dict[str, str | int | float]]:
    options = trials.options
    for name, (method, several, _) in METHODS.items():
        # A long run may need more than a short one.
        for width in reversed([width for width in WIDTHS if width <= trials.find_width(name)]):
            found = {rate: trials.run(name, width, options.steps, rate) for rate in rates}
            if all(record["score"] >= 0 for record in found.values()):
                break
        best = max(rates, key=lambda rate: found[rate]["score"])
        scores = [trials.run(name, width, options.steps, best, seed)["score"] for seed in range(1, seeds + 1)]
        yield {
            "method": name,
            "P": options.ranks if several else 1,
            "units of a rank": width,
            "units in all": width if method == "local-sgd" else width * options.ranks,
            "P@1": f"{sum(scores) / seeds:.3f}",
            "least to most": f"{min(scores):.3f} to {max(scores):.3f}",
            "rate": best,
            "MB sent": round(found[best]["bytes"] / 1e6),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, required=True, help="the archive of Reuters")
    parser.add_argument("--cells", type=Path, required=True, help="folder of runs that are kept")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=400, help="data segment of a process (ulimit -d)")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rates", default="0.003,0.01,0.03")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    (options.cells / "peaks").mkdir(parents=True, exist_ok=True)
    trials = Trials(options)
    make_data(options.raw, trials.data)
    table = list(rows(trials, [float(rate) for rate in options.rates.split(",")], options.seeds))
    notes = (
        f"Reuters and the pairs of each document's {WORDS} heaviest words, hashed to {PAIRS:,} features; "
        f"{options.steps} steps of 64 examples, Adam, a cosine of rates. Every process has {options.megabytes} MB of "
        "data segment, Python, torch and MPI included; a wider network than the one shown fails."
    )
    report("limited", "The widest network that fits into a memory limit, and its score", table, notes)


if __name__ == "__main__":
    main()
