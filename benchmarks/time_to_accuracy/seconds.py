"""Time to an accuracy on a slow network: IST beside its controls and today's rivals, each as it was tuned.

    sudo -E env PATH="$PATH" python -m benchmarks.time_to_accuracy.seconds --cells FOLDER --seeds 5 --all    # all of:

    python -m benchmarks.controls.rivals --cells FOLDER --task speech-wide --ranks 8 --seeds 1    # tunes them
    mpirun -n 8 python -m benchmarks.time_to_accuracy.seconds --cells FOLDER --task speech-wide   # accuracies by step
    sudo -E env PATH="$PATH" benchmarks/cluster --hosts 8 --rate 50mbit -- \\
        python -m benchmarks.time_to_accuracy.seconds --cells FOLDER --task speech-wide           # for each rate
    python -m benchmarks.time_to_accuracy.seconds --cells FOLDER --task speech-wide --report

A cell is a whole run on an emulated slow network (benchmarks/cluster), on one clock from the first touch of the data,
which is read after each round; it is evaluated at its end alone. Accuracies in between are those of the same run, to
the last bit, without the slow network on the same machine: another kind of processor rounds otherwise. The last
accuracy has to be the same. Further seeds are run without the slow network alone: what a step takes does not depend on
the seed. `controls.rivals` chose learning rate and J for as many ranks. Cells that are there are not measured again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

from benchmarks import reporting
from benchmarks.controls.picture import draw_times
from benchmarks.controls.rivals import (
    MOST_TELLING,
    NARROW_LOCO,
    TWENTIETH,
    Cell,
    Record,
    controls,
    measured,
    record_in,
    report_name,
)
from benchmarks.controls.tasks import SHARDED, TASKS, TENTH, Task
from benchmarks.reporting import HERE, keep_cell, network, restore_cells, store_cells
from istmpi.comm import Communicator, world
from istmpi.config import Run
from istmpi.training.loop import Training

MODULE = "benchmarks.time_to_accuracy.seconds"
BITS = {
    f"{TENTH}-int8": (TENTH, {"method.wire": "int8"}),
    f"{TENTH}-int8-delay": (TENTH, {"method.wire": "int8", "method.delay": 2}),
}
"""More ways to send, with the learning rate and J of the method that they vary."""
METHODS = (*MOST_TELLING, NARROW_LOCO, *BITS, TWENTIETH, "narrow-diloco", "diloco")
RANKS = 8
RATES = ("200mbit", "50mbit", "10mbit")
"""Of the lines, in tc's words."""


@dataclass(frozen=True)
class Timed:
    """A whole run of a method at a line rate, in tc's words; without a rate its curve."""

    method: str
    rate: str
    tuned: Cell

    @property
    def name(self) -> str:
        tuned, kind = self.tuned, f"time-{self.rate or 'curve'}"
        return f"{tuned.task.name}-{kind}-{self.method}-lr{tuned.lr:g}-J{tuned.local_steps}-s{tuned.seed}"

    @property
    def curve(self) -> Timed:
        """The same run without the slow network."""
        return replace(self, rate="")

    def run(self, data: Mapping[str, Path]) -> Run:
        """With a line rate evaluated at its end alone."""
        _, more = BITS.get(self.method, ("", {}))
        run = self.tuned.run(data).override(more)
        return run.override({"evaluate.every": run.train.rounds}) if self.rate else run


def clocked(run: Run, communicator: Communicator) -> dict:
    """Seconds since the data were first touched, evaluation left out, after each round. Collective."""
    began, points = time.perf_counter(), []
    training = Training(run, communicator)
    for one in training.rounds():
        seconds = time.perf_counter() - began - training.clock.seconds.get("evaluate", 0.0)
        points.append({"step": one.local_steps, "seconds": seconds, "megabytes": one.bytes / 1e6})
    return {"points": points, "phases": dict(training.clock.seconds), "accuracy": one.score.score}


def composed(timed: Mapping, curve: Mapping) -> dict:
    """A run on the slow network, with a curve of accuracies at its seconds."""
    seconds = {point["step"]: point["seconds"] for point in timed["points"]}
    points = [{"accuracy": point["accuracy"], "seconds": seconds[point["step"]]} for point in curve["points"]]
    return {**timed, "curve": points}


def require_same(timed: Mapping, curve: Mapping) -> None:
    """Raise ValueError unless both are the same run, on the slow network and without it."""
    if timed["accuracy"] != curve["points"][-1]["accuracy"]:
        other = f"{timed['accuracy']}, without the slow network {curve['points'][-1]['accuracy']}"
        raise ValueError(f"{curve['cell']}: {other}. Was it on another machine? Then remove that cell.")


def plan(record: Record, task: Task, rate: str, seeds: int) -> list[Timed]:
    """All methods that are tuned, one seed of them first; with a line rate that seed alone."""
    found = []
    for seed in range(1 if rate else seeds):
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
        now, here = point["seconds"], point["accuracy"]
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
                    "line": _said(rate),
                    "method": method,
                    "lr, J": records[0]["setting"],
                    "seeds": len(records),
                    "all reach": f"{common:.3f}",
                    "s to it": _seconds(records, common),
                    "99% of the best": f"{high:.3f}",
                    "s to that": _seconds(records, high),
                    "accuracy": f"{mean(_most(one) for one in records):.4f}",
                    "s in all": f"{median(one['points'][-1]['seconds'] for one in records):.1f}",
                    "MB sent": f"{last['megabytes']:.1f}",
                    "computing": f"{median(map(computing, records)):.2f}",
                }
            )
    return found


def _most(record: Mapping) -> float:
    return max(point["accuracy"] for point in record["curve"])


def _seconds(records: Sequence[Mapping], accuracy: float) -> str:
    """The median of the seeds, and in brackets least and most; not reached counts as for ever."""
    times = [reached(one["curve"], accuracy) for one in records]
    known = [float("inf") if one is None else one for one in times]
    middle, *ends = ("-" if one == float("inf") else f"{one:.1f}" for one in (median(known), min(known), max(known)))
    return middle if len(known) == 1 or middle == "-" else f"{middle} ({ends[0]} to {ends[1]})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True, help="the folder that controls.rivals has filled")
    parser.add_argument("--task", choices=TASKS, default="speech-wide", help="what is trained (speech-wide)")
    parser.add_argument("--seeds", type=int, default=1, help="of each method's accuracies (1)")
    parser.add_argument("--without", action="append", default=[], help="a method that would take too long; repeatable")
    parser.add_argument("--results", type=Path, default=reporting.RESULTS, help="where the report goes")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--all", action="store_true", help="tune, measure at all line rates, and report")
    parser.add_argument("--raw", type=Path, default=HERE.parents[1] / "shared/data", help="the raw data, with --all")
    options = parser.parse_args()
    task = TASKS[options.task]
    if options.all:
        for step in steps(options):
            subprocess.run(step, check=True, stdin=subprocess.DEVNULL)
        return
    record, communicator = record_in(options.cells), world()
    if communicator.rank == 0:
        for name in report_name(task, RANKS), table_name(task):
            restore_cells(name, options.cells, options.results)
    communicator.barrier()
    if options.report:
        tell(options, task, record)
        return
    if reason := obstacle(options, task, record, communicator.size):
        if communicator.rank == 0:
            print(f"error: {reason}", file=sys.stderr)
        sys.exit(2)
    for cell in communicator.broadcast_from_root(missing(options, task, record)):
        measure(cell, options, communicator)


def steps(options: argparse.Namespace) -> list[list[str]]:
    """The commands, in order, that make the report from nothing."""
    common = ["--cells", options.cells, "--task", options.task]
    tune = ["-m", "benchmarks.controls.rivals", *common, "--raw", options.raw, "--ranks", RANKS, "--seeds", 1]
    tune += ["--placement", SHARDED, "--results", options.results]
    measure = [
        sys.executable,
        "-m",
        "benchmarks.time_to_accuracy.seconds",
        *common,
        "--seeds",
        options.seeds,
        "--results",
        options.results,
    ]
    measure += [word for method in options.without for word in ("--without", method)]
    launch = [os.environ.get("MPIRUN", "mpirun"), "-n", RANKS]
    clusters = [[sys.executable, HERE / "cluster", "--hosts", RANKS, "--rate", rate, "--"] for rate in RATES]
    commands = [[sys.executable, *tune], *([*start, *measure] for start in (launch, *clusters)), [*measure, "--report"]]
    return [[str(word) for word in command] for command in commands]


def table_name(task: Task) -> str:
    """Of the table of a task, and of its cells beside it."""
    return f"rivals-time-{task.name}"


def line_rate() -> str:
    """Of the emulated network that this is on, in tc's words; empty without one."""
    before, _, rate = network().partition("emulated, ")
    return "" if before else rate.split("/s")[0].replace(" M", "m")


def missing(options: argparse.Namespace, task: Task, record: Record) -> list[Timed]:
    """The cells that are to be measured on this network."""
    cells = plan(record, task, line_rate(), options.seeds)
    return [cell for cell in cells if cell.method not in options.without and not record(cell)]


def obstacle(options: argparse.Namespace, task: Task, record: Record, ranks: int) -> str:
    """Why nothing can be measured here; empty where something can."""
    if not plan(record, task, line_rate(), options.seeds):
        return (
            f"{options.cells} has no tuned cells of {task.name} for {RANKS} ranks: run "
            f"python -m benchmarks.controls.rivals --cells {options.cells} --task {task.name} --ranks {RANKS} first."
        )
    if line_rate() and not all(record(cell.curve) for cell in missing(options, task, record)):
        return (
            f"{options.cells} has no accuracies by step yet: run mpirun -n {RANKS} python -m {MODULE} "
            f"--cells {options.cells} --task {task.name} without the slow network first."
        )
    return "" if ranks == RANKS else f"it takes {RANKS} ranks, as were tuned; these are {ranks}."


def measure(cell: Timed, options: argparse.Namespace, communicator: Communicator) -> None:
    """Run a cell, and keep what it found. Collective."""
    start = time.perf_counter()
    found = (clocked if cell.rate else measured)(cell.run(cell.tuned.task.data(options.cells)), communicator)
    with communicator.agreed():  # or the others would wait for rank 0, where its curve is of another machine
        if communicator.rank == 0:
            setting = f"{cell.tuned.lr:g}, {cell.tuned.local_steps}"
            if cell.rate:
                require_same(found, record_in(options.cells)(cell.curve))
            keep_cell(options.cells / f"{cell.name}.json", cell.name, start, {**found, "setting": setting})
            print(f"{cell.name}: {found['points'][-1]}", flush=True)


def tell(options: argparse.Namespace, task: Task, record: Record) -> None:
    """Write the report of what is there."""
    store_cells(table_name(task), options.cells.glob(f"{task.name}-time-*.json"), options.results)
    known: dict[str, dict[str, list[dict]]] = {}
    for rate in RATES:
        timed = {cell.method: record(cell) for cell in plan(record, task, rate, 1)}
        for cell in plan(record, task, "", options.seeds):
            if timed.get(cell.method) and (curve := record(cell)):
                known.setdefault(rate, {}).setdefault(cell.method, []).append(composed(timed[cell.method], curve))
    where = [
        f"{_said(rate)} at {_of_all(methods, 'commit')}, {_of_all(methods, 'host')}" for rate, methods in known.items()
    ]
    notes = (
        f"{task.title}; {RANKS} ranks, each an emulated host with that line each way, on two cores; an eighth of the "
        f"data each; narrow: an eighth of the width; {task.batch} examples a rank and step, {task.steps['control']} "
        f"steps. Learning rate and J as tuned by controls.rivals for {RANKS} ranks. Seconds since the first touch "
        "of the data, evaluation left out: those of the first seed's run, at accuracies by step of all seeds; medians, "
        "and in brackets least and most. All reach: the highest accuracy that every method at this rate reaches; "
        "beside it 99% of the best one's. Computing: of rank 0's time. Four ranks share a core: on machines of their "
        "own computing takes about a quarter of that, and sending as long. "
        f"Measured: {'. '.join(where)}."
    )
    name, title = table_name(task), "Time to an accuracy beside today's rivals"
    reporting.report(name, title, rows(known), notes, folder=options.results, lines=f"{RANKS} emulated hosts, TCP")
    panels = {
        _said(rate): {method: records for method, records in methods.items() if method not in BITS}
        for rate, methods in known.items()
    }
    draw_times(panels, f"{task.title}, {RANKS} ranks", options.results / f"{name}.png")


def _said(rate: str) -> str:
    return rate.replace("mbit", " Mbit/s")


def _of_all(methods: Mapping[str, Sequence[Mapping]], field: str) -> str:
    return "; ".join(sorted({one[field] for records in methods.values() for one in records}))


if __name__ == "__main__":
    main()
