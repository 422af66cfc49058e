"""Is the exchange needed, and is the width? IST beside IST that never redeals and beside a narrow network.

    sudo -E env PATH="$PATH" python benchmarks/controls.py                # resumes; the most valuable cells first
    python benchmarks/controls.py --only rate --only control              # no speeds: needs neither root nor quiet
    python benchmarks/controls.py --report                                # only the tables anew
    python benchmarks/controls.py --earlier benchmarks/results/controls.json --only control-cifar   # more seeds

With P = 8 and J = 20, spoken digits with a two-layer network and CIFAR-10, data alike on all ranks (`shared`) and each
rank with an eighth of its own (`sharded`):

* IST with a full deal, with a tenth redealt, and never redealt: after the first pull nothing is exchanged;
* a network of the shape of one rank's subnet, so that a local step has the same FLOPs, on every rank: under local SGD
  and under DiLoCo;
* local SGD on the whole network, eight to twenty times the FLOPs a step.

Cells are as those of benchmarks/time_to_accuracy.py, in the same folder. The learning rate of each method but the last
is the one of three that is most accurate on a validation split, which is made of the training data: one speaker, or one
image in 25. The test data have no part in it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from controls_data import make_validation_data
from controls_plan import control_cells, rate_cells, speed_cells, tasks, validation
from controls_report import controls, with_rates_of
from reporting import HERE, RESULTS
from time_plan import FULL, Cell
from time_to_accuracy import ROOT, Bench, measure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="only cells whose name contains this; may be repeated")
    parser.add_argument("--minutes", type=float, default=120, help="no cell begins after that (120)")
    parser.add_argument("--cells", type=Path, default=HERE / "cells", help="the folder of the cells (benchmarks/cells)")
    parser.add_argument("--raw", type=Path, default=ROOT.parent / "shared/data", help="the raw data (../shared/data)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes (results/)")
    parser.add_argument("--name", default="controls", help="of the emulated cluster")
    parser.add_argument("--earlier", type=Path, help="a report, controls.json: its rates are taken, its rows kept")
    parser.add_argument("--list", action="store_true", help="list the cells that are known by now, and end")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    bench = Bench(FULL, options.cells.resolve(), options.name, options.raw.resolve())

    def wanted(cells: Iterator[Cell]) -> list[Cell]:
        return [cell for cell in cells if not options.only or any(part in cell.name for part in options.only)]

    earlier = json.loads(options.earlier.read_text(encoding="utf-8")) if options.earlier else None
    record = with_rates_of(earlier, bench.record) if earlier else bench.record
    stages = (speed_cells, *([] if earlier else [rate_cells]), lambda: control_cells(record))
    if options.list:
        for cell in (cell for stage in stages for cell in wanted(stage())):
            print(f"{'done' if bench.path(cell).exists() else '    '} {cell.name}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    failed: dict[str, str] = {}
    if not options.report:
        for task in tasks():
            kind, raw = task.prepare
            make_validation_data(kind, bench.raw / raw, bench.folder / validation(task).data)
        for stage in stages:  # one after the other: learning rates decide on the last
            failed |= measure(bench, wanted(stage()), options.minutes)
    controls(record, options.results, earlier)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
