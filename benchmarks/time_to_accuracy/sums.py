"""Seconds and bytes of joint training and its controls on a slow network, at the rates that controls.plateau chose.

    python -m benchmarks.controls.plateau --cells FOLDER --task cifar-alike --ranks 8 --width 16        # tunes them
    sudo -E env PATH="$PATH" benchmarks/cluster --hosts 8 --rate 10mbit -- \\
        python -m benchmarks.time_to_accuracy.sums --cells FOLDER --task cifar-alike --width 16         # for each rate
    python -m benchmarks.time_to_accuracy.sums --cells FOLDER --report

A cell is a whole run, one rank on each emulated host, with an evaluation at its end. Its seconds are those of its
rounds. Its megabytes are counted twice: by istmpi, and by the hosts' interfaces between the end of the first round and
that of the last but one. Cells that are there are not measured again.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import reporting
from benchmarks.controls.plateau import JOINT, NEVER, TASKS, Campaign, Cell, rows_of
from benchmarks.controls.plateau import METHODS as ROWS
from benchmarks.controls.rivals import record_in
from benchmarks.reporting import keep_cell, restore_cells, store_cells
from benchmarks.time_to_accuracy.peers import sent_by_this_host
from benchmarks.time_to_accuracy.seconds import line_rate
from istmpi.comm import Communicator, world
from istmpi.training.loop import Training

NAME = "joint-seconds"
METHODS = tuple(name for name in ROWS if name.startswith((JOINT, "narrow", NEVER)))


def round_trip() -> str:
    """Return the delay of the emulated network, in milliseconds there and back; 0 without one."""
    return "".join(re.findall(r"([\d.]+) ms there", reporting.network())) or "0"


def measure(cell: Cell, folder: Path, communicator: Communicator) -> dict:
    """Train, and return seconds of the rounds, bytes and the score. Collective."""
    run = cell.run(folder)
    form = "blocks" if cell.row.method == NEVER else run.evaluate.form
    run = run.override({"evaluate.every": run.train.rounds, "evaluate.form": form})
    training = Training(run, communicator)
    counted: list[tuple[int, int]] = []
    for progress in training.rounds():
        # No rank is in the next round while another one reads its counter.
        if progress.round in (1, run.train.rounds - 1):
            communicator.barrier()
            counted.append((progress.bytes, sent_by_this_host() or 0))
            communicator.barrier()
    seconds = training.clock.seconds
    between, interfaces = (last - first for first, last in zip(counted[0], counted[-1], strict=True))
    return {
        "test": training.evaluator.score("test").score,
        "form": form,
        "seconds": sum(value for name, value in seconds.items() if name not in ("evaluate", "save")),
        "phases": dict(seconds),
        "bytes": progress.bytes,
        "bytes between": between,
        "bytes of interfaces": sum(communicator.allgather(interfaces)),
        "line": line_rate(),
        "round trip": round_trip(),
    }


def choose_cells(campaign: Campaign, task: str, ranks: int, width: int, methods: Sequence[str]) -> list[Cell]:
    """Return the first seed of each method at its best rate."""
    rows = [row for row in rows_of(TASKS[task]) if (row.ranks, row.width) == (ranks, width) and not row.regularised]
    by_method = {row.method: row for row in rows}
    return [cell for method in methods for cell in campaign.cells(by_method[method])[:1]]


def write_report(folder: Path, results: Path) -> None:
    """Write the table of the cells that are there."""
    files = sorted(folder.glob(f"{NAME}-*.json"))
    store_cells(NAME, files, results)
    lines = []
    record_of = record_in(folder)
    for file in files:
        record = record_of(argparse.Namespace(name=file.stem))
        task, ranks, width, method = re.search(
            r"-mbit\d+-(?:[\d.]+ms-)?(.*)-P(\d+)-w(\d+)-(.*)-n\d+", file.stem
        ).groups()
        between = record["bytes between"]
        simulated = record_of(argparse.Namespace(name=re.sub(r".*-mbit\d+-([\d.]+ms-)?", "", file.stem)))
        blocks = (simulated or {}).get("ends", {}).get("blocks")
        lines.append(
            {
                "task": task.removesuffix("-alike"),
                "P": ranks,
                "width a rank": width,
                "Mbit/s": record["line"].removesuffix("mbit"),
                "ms": record.get("round trip", "0"),
                "method": method.replace("-", " "),
                "test": f"{100 * record['test']:.1f}",
                "scored": record.get("form") or ("sum" if method.startswith(JOINT) else "merged"),
                "simulated, as blocks": f"{100 * blocks['test']:.1f}" if blocks else "",
                "s": f"{record['seconds']:.1f}",
                "computing": f"{record['phases']['compute'] / record['seconds']:.2f}",
                "MB sent": f"{record['bytes'] / 1e6:.1f}",
                "interfaces / counted": f"{record['bytes of interfaces'] / between:.3f}" if between else "",
                "commit": record["commit"],
            }
        )
    lines.sort(key=lambda line: (line["task"], int(line["Mbit/s"]), float(line["ms"])))
    notes = (
        "One seed, at the rate that controls.plateau chose for each method; every rank has all data. Scored: the "
        "form of the network. As blocks, side by side: the same cell of controls.plateau. Seconds of the "
        "rounds of one run, evaluation left out; all emulated hosts share two cores, so computing takes about four "
        "times as long as on machines of their own. Interfaces / counted: bytes that the hosts' interfaces sent, with "
        "the headers of TCP, IP and Ethernet, by those that istmpi counted, from the end of the first round to that of "
        "the last but one."
    )
    reporting.report(NAME, "Joint training on a slow network", lines, notes, folder=results, lines="emulated, TCP")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True, help="the folder that controls.plateau has filled")
    parser.add_argument("--task", choices=TASKS, default="cifar-alike", help="what is trained (cifar-alike)")
    parser.add_argument("--method", choices=METHODS, action="append", help="may be repeated; by default all")
    parser.add_argument("--width", type=int, default=16, help="units of a rank's layer (16)")
    parser.add_argument("--results", type=Path, default=reporting.RESULTS, help="where the report goes")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    communicator = world()
    if communicator.rank == 0:
        restore_cells(NAME, options.cells, options.results)
        for task in TASKS if options.report else [options.task]:
            restore_cells(f"plateau-{task}", options.cells, options.results)
    communicator.barrier()
    if options.report:
        write_report(options.cells, options.results)
        return
    campaign = Campaign(options.cells, seeds=1)
    for cell in choose_cells(campaign, options.task, communicator.size, options.width, options.method or METHODS):
        name = f"{NAME}-mbit{line_rate().removesuffix('mbit') or 0}-{round_trip()}ms-{cell.name}"
        path = options.cells / f"{name}.json"
        if communicator.broadcast_from_root(path.exists()):
            continue
        start = time.perf_counter()
        found = measure(cell, options.cells, communicator)
        if communicator.rank == 0:
            keep_cell(path, name, start, found)
            print(f"{name}: {found}", flush=True)


if __name__ == "__main__":
    main()
