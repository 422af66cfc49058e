"""Convolutional networks on small images: what can be dealt out of a VGG and of a ResNet, and what it costs.

    python -m benchmarks.controls.convolutions  # hours on two cores; again to go on; the most valuable cells first
    python -m benchmarks.controls.convolutions --only resnet --minutes 30
    python -m benchmarks.controls.convolutions --list  # the cells, and which are there
    python -m benchmarks.controls.convolutions --report  # the tables anew
    python -m benchmarks.controls.convolutions --tiny  # all of it in small, in minutes: only to see that it works

CIFAR-10 made half as wide and as high, 16 x 16: of its training images one in five (10,000), and all 10,000
test images.
All methods take equally many local steps on each rank, from the same initial weights. The learning rate of VGG and of
ResNet is that of three whose mean over the methods is the most accurate on a validation split: training images that
nothing else sees. Every finished cell, one run of ``mpirun -n P istmpi train``, is a file and is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.controls import convolutions_plan as plan
from benchmarks.controls.convolutions_plan import Cell, best_rate
from benchmarks.controls.convolutions_report import write
from benchmarks.controls.small_images import prepare, train
from benchmarks.reporting import HERE, RESULTS, keep_cell

SIZE = 16
TRAIN = slice(4, None, 5)
VALIDATION = slice(2, None, 25)
"""Of the training images; the two do not meet."""


class Bench:
    """The cells in a folder, and the data beside them."""

    def __init__(self, folder: Path, raw: Path, tiny: bool):
        self._folder, self._raw, self._tiny = folder, raw, tiny
        folder.mkdir(parents=True, exist_ok=True)

    def record(self, cell: Cell) -> dict[str, Any] | None:
        """What a finished cell found."""
        path = self._folder / f"{cell.name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def accuracy(self, cell: Cell) -> float | None:
        """That of a finished cell, after its last round."""
        record = self.record(cell)
        return record and record["last"]["score"]["score"]

    def rate(self, cell: Cell) -> float | None:
        """The learning rate of a cell; None where those that decide on it are missing."""
        chosen = plan.RATES[0] if self._tiny else best_rate(cell.row.network.family, self.accuracy)
        return cell.row.rate or chosen

    def measure(self, cell: Cell, rate: float) -> None:
        """Run a cell and write its file."""
        validation = cell.row.rate is not None
        rounds = plan.RATE_ROUNDS if validation else plan.ROUNDS
        settings = {
            "data.source": str(self.data(validation)),
            "optimizer.lr": str(rate),
            "train.rounds": str(rounds),
            "train.seed": str(cell.seed),
            "evaluate.every": str(rounds // 4),
            **cell.row.settings,
        }
        if self._tiny:
            settings |= {"train.rounds": "2", "method.local_steps": "2", "evaluate.every": "1"}
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            summary = train(Path(folder) / "run", cell.row.ranks, settings)
        keep_cell(self._folder / f"{cell.name}.json", cell.name, start, {"settings": settings, **summary})

    def data(self, validation: bool = False) -> Path:
        """The images, prepared once; ``validation``: those that decide on the rate."""
        path = self._folder / ("validation.h5" if validation else "images.h5")
        if not path.exists():
            some = slice(None, None, 250) if self._tiny else TRAIN
            test = VALIDATION if validation else slice(None, None, 50 if self._tiny else 1)
            unfinished = path.with_suffix(".part.h5")
            prepare(self._raw, unfinished, SIZE, some, test, test_from="train" if validation else "test")
            unfinished.replace(path)
        return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="only cells whose name contains this; may be repeated")
    parser.add_argument("--minutes", type=float, default=600, help="no cell begins after that (600)")
    parser.add_argument("--cells", type=Path, help="the folder of the cells (benchmarks/cells-convolutions)")
    parser.add_argument("--raw", type=Path, default=HERE.parent.parent / "shared" / "data" / "cifar10.tar")
    parser.add_argument("--results", type=Path, help="where the report goes (results/; with --tiny the cells' folder)")
    parser.add_argument("--list", action="store_true", help="list the cells, and end")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--tiny", action="store_true", help="seed 0, few images, 4 local steps; writes into no results")
    options = parser.parse_args()
    folder = options.cells or HERE / ("cells-convolutions-tiny" if options.tiny else "cells-convolutions")
    bench = Bench(folder.resolve(), options.raw.resolve(), options.tiny)

    wanted = [Cell(row, 0) for row in plan.rate_rows()]
    wanted += [cell for cell in plan.cells() if not (options.tiny and cell.seed)]
    wanted = [cell for cell in wanted if not options.only or any(part in cell.name for part in options.only)]
    if options.list:
        for cell in wanted:
            print(f"{'done' if bench.record(cell) else '    '} {cell.name}")
        return 0
    failed = 0 if options.report else measure(bench, wanted, options.minutes)
    write(bench.record, bench.data(), options.results or (folder if options.tiny else RESULTS))
    return 1 if failed else 0


def measure(bench: Bench, wanted: list[Cell], minutes: float) -> int:
    """Measure what is not there yet, in order, until the time is over; how many cells failed."""
    start, failed = time.monotonic(), 0
    for number, cell in enumerate(wanted, start=1):
        if bench.record(cell):
            continue
        if time.monotonic() - start > 60 * minutes:
            missing = sum(bench.record(cell) is None for cell in wanted)
            print(f"the time is over, {missing} cells are left; the same command goes on", flush=True)
            break
        began = time.monotonic()
        rate = bench.rate(cell)
        if rate is None:
            print(f"[{number}/{len(wanted)}] {cell.name}: the cells of its rate are missing", flush=True)
            failed += 1
            continue
        try:
            bench.measure(cell, rate)
        except subprocess.CalledProcessError as error:
            print(f"[{number}/{len(wanted)}] {cell.name}: failed with {error.returncode}", flush=True)
            failed += 1
            continue
        took = time.monotonic() - began
        print(f"[{number}/{len(wanted)}] {cell.name}: {bench.accuracy(cell):.4f}, {took:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
