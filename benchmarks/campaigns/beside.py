"""Two trees of istmpi beside each other: what both print of the same runs, and how both end on the same bad input.

    git worktree add /tmp/old fb9eb69
    python -m benchmarks.campaigns beside digests --old /tmp/old
    python -m benchmarks.campaigns beside inputs --old /tmp/old --cases 2000 --seed 1
    python -m benchmarks.campaigns beside memory --old /tmp/old --turns 3

Each tree's package is in a process of its own. The cases are those of the older tree's own campaign of bad input, made
anew for each of the two. Memory is the highest peak of four ranks, in turns. Differences go to the standard output.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.campaigns import forked
from benchmarks.campaigns.job import launcher
from benchmarks.reporting import ROOT
from benchmarks.scale.memory import watching
from benchmarks.scale.xc_rows import write

LIMITS = forked.Limits(seconds=60, megabytes=1500)
SHIPPED = (
    "digits",
    "cifar10 --data images.h5",
    "speech --data speech.h5",
    "xc --data rows.h5",
    "graph --data graph.h5",
)
METHODS = ("local-sgd", "data-parallel", "diloco", "streaming-diloco", "sparse-loco", "fedavg", "dynamic-averaging")
CHANGED = (
    *(f"method.name={name}" for name in (*METHODS, "codistillation")),
    *("method.redeal=0.1", "method.redeal=0.0", "method.delay=3", "method.wire=int8", "method.wire=bfloat16"),
    *("method.optimizer_state=carry", "optimizer.name=adam", "optimizer.momentum=0.9", "method.share_every=2"),
    *("method.outer_momentum=0.5", 'method.finish="local-sgd:10%"', 'method.partition=["hidden1"]'),
    *("model.hidden=[100,75,31]", "model.norm=layer", "model.bias=true", "model.dtype=float64", "train.autocast=true"),
    *("checkpoint.every=5", "evaluate.every=1", "data.placement=sharded", "data.validation=0.1"),
    *("method.shares=[1,2]", "train.batch=17", "train.seed=7"),
)
OTHERS = (
    *(f"{run} --set method.redeal=0.1" for run in SHIPPED),
    "digits --data images.h5 --model resnet --set model.blocks=[1] --set model.channels=[16] --set model.inner=[16]",
    "digits --data images.h5 --model vgg --set model.channels=[8,8,8,8,8] --set model.dense=[16,16]",
    "digits --data text.h5 --model transformer --set data.length=16",
    "graph --data graph.h5 --model sage",
    "graph --data graph.h5 --model gat",
    "digits --data table.h5",
    "digits --data arrays.h5",
)
WIDE = (
    "--data wide.h5 --hidden 2048,2048 --rounds 3 --local-steps 4 --set evaluate.calibration_examples=256 --set name=x"
)
LARGE = (
    *(f"{WIDE} --method {name}" for name in ("ist", "local-sgd", "data-parallel", "streaming-diloco", "sparse-loco")),
    f"{WIDE} --redeal 0.1 --optimizer adam --optimizer-state carry",
    f"{WIDE} --redeal 0.1 --set method.wire=int8 --set method.delay=2",
    "xc --data rows.h5 --hidden 256 --rounds 3 --local-steps 4",
)
RUNS = (*SHIPPED, *(f"digits --set {setting}" for setting in CHANGED), *OTHERS)


class Package:
    """A process that has loaded a tree's package, and runs command lines in forks of itself."""

    def __init__(self, tree: Path):
        words = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "serve", "--old", str(tree)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )

    def run(self, words: Sequence[str], folder: Path) -> dict:
        """Return the outcome's fields."""
        print(json.dumps([list(words), str(folder)]), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def serve(tree: Path) -> None:
    """Be such a process, until the standard input ends."""
    sys.path.insert(0, str(tree))
    forked.load_libraries()
    for line in sys.stdin:
        words, folder = json.loads(line)
        print(json.dumps(asdict(forked.run(words, Path(folder), LIMITS))), flush=True)


def digests(packages: Sequence[Package], bad_input: object, work: Path, _: object) -> Iterator[tuple[str, str]]:
    """Yield the differences: of what, and which."""
    folder = bad_input._assets(work).digits.parent
    source = np.random.default_rng(0)
    (folder / "text.txt").write_text("".join(map(chr, source.integers(97, 123, 4000))))
    x, y = source.normal(size=(60, 8)).astype(np.float32), np.arange(60) % 3
    np.savez(folder / "graph.npz", edge_index=source.integers(0, 60, (2, 200)), x=x, y=y)
    (folder / "rows.svm").write_text(
        "".join(f"{row % 3} {row % 5 + 1}:{row / 2} 6:1 7:{row % 4 + 1}\n" for row in range(60))
    )
    (folder / "table.csv").write_text("".join(f"{row},{row % 7},{row % 3 / 7 + row}\n" for row in range(300)))
    for kind, name in (("text", "text.txt"), ("graph", "graph.npz"), ("xc", "rows.svm"), ("csv", "table.csv")):
        made = packages[0].run(["prepare", kind, name, f"{Path(name).stem}.h5"], folder)
        assert made["code"] == 0, made["err"]
    for run, ranks in itertools.product(RUNS, (1, 2, 4)):
        for command in ("train {} --dry-run --json --ranks {}", "costmodel {} --json --ranks {}"):
            words = command.format(run, ranks).split()
            yield from differing(" ".join(words), *(package.run(words, folder) for package in packages))
    for words in (["settings", "--json"], ["settings", "--markdown"], ["settings", "--schema"], ["runs", "--json"]):
        yield from differing(" ".join(words), *(package.run(words, folder) for package in packages))


def differing(command: str, before: dict, now: dict) -> Iterator[tuple[str, str]]:
    """Yield each value that is another, of JSON by its path, else by lines."""
    if before["code"] or now["code"]:
        if (before["code"], before["err"]) != (now["code"], now["err"]):
            yield command, f"{before['code']} {before['err']!r} -> {now['code']} {now['err']!r}"
        else:
            print(f"refused by both: {command}: {now['err']}", file=sys.stderr)
        return
    trees = []
    for outcome in (before, now):
        try:
            trees.append(dict(leaves(json.loads(outcome["out"]))))
        except ValueError:
            trees.append(
                {line.split("|")[1].strip() if "|" in line else line: line for line in outcome["out"].splitlines()}
            )
    for path in sorted(trees[0].keys() | trees[1].keys()):
        values = [tree.get(path, "(absent)") for tree in trees]
        if values[0] != values[1]:
            yield command, f"{path}: {values[0]!r} -> {values[1]!r}"


def leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield each plain value with its path; the entries of a list go by their name, if they have one."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if items is None:
        yield path, tree
        return
    for key, value in items:
        label = value.get("name", value.get("method", key)) if isinstance(value, dict) else key
        yield from leaves(value, f"{path}.{label}" if isinstance(tree, list) else f"{path}.{key}")


def inputs(
    packages: Sequence[Package], bad_input: object, work: Path, options: argparse.Namespace
) -> Iterator[tuple[str, str]]:
    """Yield where exit code or message are others: reader and case, and both."""
    assets = bad_input._assets(work)
    codes = Counter()
    for number in range(options.cases):
        ends = []
        for package in packages:
            name, case, folder = bad_input.draw(options.seed, number, list(bad_input.READERS), work, assets)
            outcome = package.run(case.words, folder)
            bad_input._remove(folder)
            error = re.sub(r"\.[\w-]+\.tmp\b", ".tmp", outcome["err"])
            ends.append((outcome["code"], error, [*map(str, outcome["left"])]))
            codes[len(ends), outcome["code"]] += 1
        if ends[0] != ends[1]:
            yield f"{name} {number}: istmpi {bad_input._shown(case.words)}", f"{ends[0]} -> {ends[1]}"
    for (package, code), count in sorted(codes.items()):
        print(
            f"{'before' if package == 1 else 'now':<8} exit code {code:>4}: {count} of {options.cases}", file=sys.stderr
        )


def memory(trees: Sequence[Path], work: Path, turns: int) -> Iterator[tuple[str, str]]:
    """Yield the peaks of each run, in MB: the medians, and the median of their ratios."""
    source = np.random.default_rng(0)
    x, y = source.integers(0, 256, (2000, 3072), np.uint8), source.integers(0, 10, 2000)
    np.savez(work / "wide.npz", x_train=x[200:], y_train=y[200:], x_test=x[:200], y_test=y[:200])
    for name, rows, seed in (("trn.txt", 4000, 1), ("tst.txt", 500, 2)):
        write(work / name, rows, seed, features=30_000, labels=50_000)
    (work / "rows").mkdir()
    for path in work.glob("*.txt"):
        path.rename(work / "rows" / path.name)
    for kind, source, target in (("arrays", "wide.npz", "wide.h5"), ("xc", "rows", "rows.h5")):
        subprocess.run(["istmpi", "prepare", kind, source, target], check=True, cwd=work, stdout=subprocess.DEVNULL)
    for run in LARGE:
        peaks = [[], []]
        for _, (tree, its) in itertools.product(range(turns), zip(trees, peaks, strict=True)):
            notes, out = work / "peaks", work / "run"
            notes.mkdir()
            words = [*launcher(), "-n", "4", *watching(notes), "istmpi", "train", *run.split(), "--out", str(out)]
            environment = {**os.environ, "PYTHONPATH": f"{tree}:{ROOT}"}
            subprocess.run(words, check=True, cwd=work, env=environment, capture_output=True)
            its.append(max(float(path.read_text()) for path in notes.iterdir()) / 1e6)
            shutil.rmtree(notes)
            shutil.rmtree(out)
        ratio = median(now / before for before, now in zip(*peaks, strict=True))
        yield run, f"{median(peaks[0]):.0f} {median(peaks[1]):.0f} {ratio:.3f}"


def main(arguments: list[str]) -> int:
    """Compare; 1 where anything differs."""
    parser = argparse.ArgumentParser(prog="benchmarks.campaigns beside", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("digests", "inputs", "memory", "serve"))
    parser.add_argument("--old", type=Path, required=True, metavar="FOLDER", help="a worktree of the older commit")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.what == "serve":
        serve(options.old)
        return 0
    trees, found = [options.old.resolve(), ROOT], 0
    with tempfile.TemporaryDirectory(prefix="beside-") as place:
        work = Path(place)
        if options.what == "memory":
            differences = memory(trees, work, options.turns)
        else:
            sys.path[:0] = [str(trees[0]), str(trees[0] / "benchmarks")]
            bad_input, packages = import_module("campaigns.bad_input"), [*map(Package, trees)]
            compared = digests if options.what == "digests" else inputs
            differences = compared(packages, bad_input, work, options)
        for subject, text in differences:
            found += 1
            print(f"{subject}\n    {text}", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
