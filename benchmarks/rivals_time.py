"""Time to an accuracy on a slow network: IST beside its controls and today's rivals, each as it was tuned.

    mpirun -n 8 python benchmarks/controls_rivals.py --cells FOLDER --task speech-wide --seeds 1    # tunes them
    sudo -E env PATH="$PATH" benchmarks/cluster --hosts 8 --rate 50mbit -- \\
        python benchmarks/rivals_time.py --cells FOLDER --task speech-wide                          # for each rate
    python benchmarks/rivals_time.py --cells FOLDER --task speech-wide --report

A cell is a whole run on an emulated slow network (benchmarks/cluster), on one clock from the first touch of the data;
evaluations are taken out of it, and named. Learning rate and J are those that `controls_rivals.py` chose for as many
ranks. Cells that are there are not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import reporting
from controls_rivals import MOST_TELLING, NARROW_LOCO, TWENTIETH, Cell, Record, controls, measured
from reporting import keep_cell, network, restore_cells, store_cells
from rivals_tasks import SHARDED, TASKS, Task
from time_plan import TENTH

from istmpi.comm import Communicator, world
from istmpi.config import Run

BITS = {
    f"{TENTH}-int8": (TENTH, {"method.wire": "int8"}),
    f"{TENTH}-int8-delay": (TENTH, {"method.wire": "int8", "method.delay": 2}),
}
"""More ways to send, with the learning rate and J of the method that they vary."""
METHODS = (*MOST_TELLING, NARROW_LOCO, *BITS, TWENTIETH, "narrow-diloco", "diloco")
RANKS = 8


@dataclass(frozen=True)
class Timed:
    """A whole run of a method at a line rate, in tc's words."""

    method: str
    rate: str
    tuned: Cell

    @property
    def name(self) -> str:
        tuned = self.tuned
        return f"{tuned.task.name}-time-{self.rate}-{self.method}-lr{tuned.lr:g}-J{tuned.local_steps}-s{tuned.seed}"

    def run(self, data: Mapping[str, Path], minutes: float) -> Run:
        """No longer than so many minutes of training."""
        _, more = BITS.get(self.method, ("", {}))
        return self.tuned.run(data).override({**more, "train.max_minutes": minutes})


def plan(record: Record, task: Task, rate: str, seeds: int) -> list[Timed]:
    """All methods that are tuned, one seed of them first."""
    found = []
    for seed in range(seeds):
        for method in METHODS:
            of, _ = BITS.get(method, (method, {}))
            found += [
                Timed(method, rate, cell) for cell in controls(record, task, of, SHARDED, RANKS, seeds)[seed:][:1]
            ]
    return found


def reached(points: Sequence[Mapping[str, float]], accuracy: float) -> float | None:
    """Seconds of training to an accuracy, between two evaluations by a line; None where it is not reached."""
    before, lower = 0.0, 0.0
    for point in points:
        now, here = point["seconds"] - point["of these evaluating"], point["accuracy"]
        if here >= accuracy:
            return before + (now - before) * (accuracy - lower) / (here - lower)
        before, lower = now, here
    return None


def computing(record: Mapping) -> float:
    """The share of rank 0's time without evaluations that it computes."""
    phases = record["phases"]
    return phases["compute"] / (sum(phases.values()) - phases.get("evaluate", 0.0))


def rows(known: Mapping[str, Mapping[str, list[dict]]]) -> list[dict]:
    """The table, from the records by rate and method; to the highest accuracy that all reach, and 99% of the best."""
    found = []
    for rate, methods in known.items():
        best = {method: median(_most(one) for one in records) for method, records in methods.items()}
        common, high = min(best.values()), 0.99 * max(best.values())
        for method, records in methods.items():
            last = records[0]["points"][-1]
            found.append(
                {
                    "line": rate.replace("mbit", " Mbit/s"),
                    "method": method,
                    "lr, J": records[0]["setting"],
                    "seeds": len(records),
                    f"s to {_ACCURACY}": f"{common:.3f}: {_seconds(records, common)}",
                    f"s to {_OF_THE_BEST}": f"{high:.3f}: {_seconds(records, high)}",
                    "accuracy": f"{mean(_most(one) for one in records):.4f}",
                    "s in all": f"{median(_trained(one) for one in records):.1f}",
                    "s evaluating": f"{median(one['points'][-1]['of these evaluating'] for one in records):.1f}",
                    "MB sent": f"{last['megabytes']:.1f}",
                    "computing": f"{median(map(computing, records)):.2f}",
                    "steps": last["step"],
                }
            )
    return found


_ACCURACY, _OF_THE_BEST = "what all reach", "99% of the best"


def _most(record: Mapping) -> float:
    return max(point["accuracy"] for point in record["points"])


def _trained(record: Mapping) -> float:
    last = record["points"][-1]
    return last["seconds"] - last["of these evaluating"]


def _seconds(records: Sequence[Mapping], accuracy: float) -> str:
    """The median of the seeds; not reached counts as for ever."""
    times = [reached(one["points"], accuracy) for one in records]
    middle = median(float("inf") if one is None else one for one in times)
    return "-" if middle == float("inf") else f"{middle:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True, help="the folder that controls_rivals.py has filled")
    parser.add_argument("--task", choices=TASKS, default="speech-wide", help="what is trained (speech-wide)")
    parser.add_argument("--seeds", type=int, default=1, help="of each method (1)")
    parser.add_argument("--minutes", type=float, default=4, help="no run trains longer (4)")
    parser.add_argument("--results", type=Path, default=reporting.RESULTS, help="where the report goes")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    task = TASKS[options.task]

    def record(cell: Cell | Timed) -> dict | None:
        path = options.cells / f"{cell.name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    name = f"rivals-time-{task.name}"
    if options.report:
        restore_cells(name, options.cells, options.results)
        store_cells(name, options.cells.glob(f"{task.name}-time-*.json"), options.results)
        tell(options, task, record)
        return
    communicator = world()
    if reason := obstacle(options, task, record):
        if communicator.rank == 0:
            print(f"error: {reason}", file=sys.stderr)
        sys.exit(2)
    known = plan(record, task, rate_of(network()), options.seeds)
    todo = [cell for cell in known if not record(cell)]
    for cell in communicator.broadcast_from_root(todo):
        measure(cell, options, communicator)


def rate_of(network: str) -> str:
    """The line rate of an emulated network, in tc's words; empty of any other."""
    if not network.startswith("emulated, "):
        return ""
    return network.removeprefix("emulated, ").split("/s")[0].replace(" M", "m")


def obstacle(options: argparse.Namespace, task: Task, record: Record) -> str:
    """Why nothing can be measured here; empty where something can."""
    rate = rate_of(network())
    if not rate:
        return "rivals_time.py measures on an emulated slow network: start it by benchmarks/cluster, as --help says."
    if not plan(record, task, rate, options.seeds):
        return (
            f"{options.cells} has no tuned cells of {task.name} for {RANKS} ranks: run "
            f"mpirun -n {RANKS} python benchmarks/controls_rivals.py --cells {options.cells} --task {task.name} first."
        )
    return ""


def measure(cell: Timed, options: argparse.Namespace, communicator: Communicator) -> None:
    """Run a cell, and keep what it found. Collective."""
    start = time.perf_counter()
    found = measured(cell.run(cell.tuned.task.data(options.cells), options.minutes), communicator)
    if communicator.rank == 0:
        setting = f"{cell.tuned.lr:g}, {cell.tuned.local_steps}"
        keep_cell(options.cells / f"{cell.name}.json", cell.name, start, {**found, "setting": setting})
        last = found["points"][-1]
        print(f"{cell.name}: {last['accuracy']:.4f} in {last.get('seconds', 0):.1f} s", flush=True)


def tell(options: argparse.Namespace, task: Task, record: Record) -> None:
    """Write the report of what is there."""
    known: dict[str, dict[str, list[dict]]] = {}
    for rate in ("200mbit", "50mbit", "10mbit"):
        for cell in plan(record, task, rate, options.seeds):
            if (one := record(cell)) and "seconds" in one["points"][-1]:
                known.setdefault(rate, {}).setdefault(cell.method, []).append(one)
    commits = sorted({one["commit"] for methods in known.values() for records in methods.values() for one in records})
    notes = (
        f"{task.title}; {RANKS} ranks, each an emulated host with that line each way, on two cores; an eighth of the "
        f"data each; narrow: an eighth of the width; {task.batch} examples a rank and step. Learning rate and J as "
        f"tuned by controls_rivals.py for {RANKS} ranks. Seconds since the first touch of the data without "
        "evaluations, medians of the seeds; accuracies in front are the highest that all methods at this rate reach, "
        f"and 99% of the best one's. A run ends after {task.steps['control']} steps or {options.minutes:g} minutes. "
        "Computing: of rank 0's time. Four ranks share a core: on machines of their own computing takes about a "
        f"quarter of that, and sending as long. Measured at {', '.join(commits)}."
    )
    reporting.report(
        f"rivals-time-{task.name}",
        "Time to an accuracy beside today's rivals",
        rows(known),
        notes,
        folder=options.results,
    )


if __name__ == "__main__":
    main()
