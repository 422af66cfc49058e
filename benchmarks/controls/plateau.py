"""IST and narrow networks in long runs, each at the best learning rate inside its grid.

    python -m benchmarks.controls.plateau --cells FOLDER --task reuters             # resumes; all its widths and ranks
    python -m benchmarks.controls.plateau --cells FOLDER --report                   # only the tables

A row is a method at a number of ranks and at a width a rank. The rates are 3 times apart; more are tried until the
best one, on a tenth of the training examples that is held out, has a worse one on both sides. A cell is a run of
simulated ranks, with a cosine of the learning rate; its file has the score of all evaluations. Where units are dealt
once, the network is scored as the full one and as its subnets side by side (`evaluate.form`).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean

from benchmarks import reporting
from benchmarks.controls.identifiers import prepare as prepare_identifiers
from benchmarks.controls.picture import draw_bytes, draw_curves
from benchmarks.controls.rivals import interval, record_in
from benchmarks.controls.tasks import TASKS as SHORT
from benchmarks.processes import cells_parser, run_cells
from benchmarks.reporting import HERE, keep_cell, restore_cells, store_cells
from istmpi.cli.networks import describe_run
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.cost import phase_costs
from istmpi.errors import DivergedError
from istmpi.foreign import tomllib
from istmpi.simulated import simulate
from istmpi.training.loop import Training

FACTOR = 3.0
"""The quotient of neighbouring learning rates."""
EVALUATIONS = 10
NEVER = "ist, never redealt"
JOINT = "joint"
"""Subnets that are trained on the sum of their outputs, with data that all ranks have."""
SHORT_OUTPUTS = {"method.name": "joint", "method.wire": "int8"}
METHODS: Mapping[str, Mapping[str, object]] = {
    "ist": {"method.name": "ist"},
    "ist, a tenth redealt": {"method.name": "ist", "method.redeal": 0.1},
    NEVER: {"method.name": "ist", "method.redeal": 0.0},
    **dict.fromkeys(["narrow, local SGD", "narrow, J = 80, local SGD"], {"method.name": "local-sgd"}),
    **dict.fromkeys(["narrow, SparseLoCo", "narrow, J = 80, SparseLoCo"], {"method.name": "sparse-loco"}),
    **dict.fromkeys(["joint", "joint, J = 1", "joint, J = 60"], {"method.name": "joint"}),
    # Ranks of joint see the same batches: eight have seen as many examples with eight times the batch.
    **dict.fromkeys(["joint, int8", "joint, J = 1, int8", "joint, 8 x the batch, int8"], SHORT_OUTPUTS),
    **{f"joint, {passes} passes, int8": SHORT_OUTPUTS | {"method.passes": passes} for passes in (2, 4)},
    "whole, local SGD": {"method.name": "local-sgd"},
    "whole, SparseLoCo": {"method.name": "sparse-loco"},
    "whole, data parallel": {"method.name": "data-parallel"},
    "whole, FedAvg": {"method.name": "fedavg", "method.fraction": 0.5},
}
ALONE = "one rank"
"""A network that one rank trains on all data, as wide as a rank's or as all ranks' together; the same steps."""
REGULARISED: Mapping[str, Mapping[str, object]] = {
    **{f"weight decay {decay:g}": {"optimizer.weight_decay": decay} for decay in (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1)},
    **{f"clip {norm:g}": {"optimizer.clip": norm} for norm in (0.3, 1.0)},
    **{f"dropout {fraction:g}": {"model.dropout": fraction} for fraction in (0.1, 0.2, 0.4)},
}
"""Settings that are tried at the best learning rate of a row."""
PLACEMENTS = {"": "sharded", "-alike": "shared", "-by-label": "by-label"}
"""The placement of data by the end of a task's name."""
SAID = {"sharded": "a part each", "shared": "all on every rank", "by-label": "by label"}

PANELS = {
    "CIFAR-10, 4 ranks, a part of the data each": ("cifar", 4, 128),
    "Reuters, 4 ranks, 16 units, a part each": ("reuters", 4, 16),
    "Reuters, 8 ranks, 4 units, all data": ("reuters-alike", 8, 4),
}
"""The picture of curves: a panel for a task, a number of ranks and a width a rank."""
SUMS = {
    "CIFAR-10, 8 ranks of 16 units, all data": ("cifar-alike", 8, 16),
    "Reuters, 8 ranks of 4 units, all data": ("reuters-alike", 8, 4),
}
"""The picture of bytes, for rows whose subnets may add up their outputs."""


@dataclass(frozen=True)
class Task:
    """Data, and a network whose hidden layers have ``layers`` times as many units as all ranks together hold."""

    name: str
    title: str
    data: str
    layers: int
    widths: Sequence[int]
    """Units of a hidden layer that a rank holds; 0: a P-th of ``whole``."""
    ranks: Sequence[int]
    steps: int
    batch: int
    rate: float
    """The learning rate that is tried first."""
    examples: int
    settings: Mapping[str, object] = field(default_factory=dict)
    whole: int = 0
    local_steps: int = 20
    placement: str = "sharded"


def tasks() -> dict[str, Task]:
    """Return the tasks of plateau.toml with each placement of the data."""
    read = tomllib.loads(HERE.joinpath("controls/plateau.toml").read_text(encoding="utf-8"))
    return {
        name + end: Task(name=name + end, placement=placement, **values)
        for end, placement in PLACEMENTS.items()
        for name, values in read.items()
    }


TASKS = tasks()


@dataclass(frozen=True)
class Row:
    """What is compared."""

    task: Task
    ranks: int
    width: int
    method: str
    steps: int
    regularised: str = ""

    @property
    def plain(self) -> Row:
        return replace(self, regularised="")

    @property
    def units(self) -> int:
        """The network's units of a hidden layer: a rank's, or as many as all ranks together hold."""
        return self.width if self.method.startswith(("narrow", ALONE)) else self.width * self.ranks

    @property
    def rounds(self) -> int:
        """The rounds in which a rank makes the row's steps."""
        # FedAvg's round is a pass of half of the ranks.
        of_round = {"whole, data parallel": 1, "whole, FedAvg": self.task.examples / (2 * self.ranks * self.task.batch)}
        named = re.search(r"J = (\d+)", self.method)
        batches = int(named[1]) if named else self.task.local_steps
        local_steps = batches * int(METHODS.get(self.method, {}).get("method.passes", 1))
        return max(round(self.steps / of_round.get(self.method, local_steps)), 1)


@dataclass(frozen=True)
class Cell:
    """A run of a row; its name is its file's."""

    row: Row
    rate: float
    seed: int

    @property
    def name(self) -> str:
        row = self.row
        method = f"{row.method} {row.regularised}".strip().replace(", ", "-").replace(" ", "-")
        return f"{row.task.name}-P{row.ranks}-w{row.width}-{method}-n{row.steps}-lr{self.rate:g}-s{self.seed}"

    def run(self, folder: Path) -> Run:
        """Return the settings; data are a part each, a tenth of the training examples is held out."""
        row, task = self.row, self.row.task
        return Run().override(
            {
                **task.settings,
                **METHODS.get(row.method, METHODS["whole, local SGD"]),
                **REGULARISED.get(row.regularised, {}),
                "data.source": str(folder / task.data),
                "data.placement": task.placement,
                "data.validation": 0.1,
                "model.hidden": [row.units] * task.layers,
                "method.local_steps": row.steps // row.rounds or 1,
                "optimizer.lr": self.rate,
                "optimizer.schedule": "cosine",
                "train.batch": task.batch * (8 if "8 x the batch" in row.method else 1),
                "train.rounds": row.rounds,
                "train.patience": EVALUATIONS,
                "train.seed": self.seed,
                "train.threads": 1,
                "evaluate.every": max(row.rounds // EVALUATIONS, 1),
                "evaluate.form": "sum" if row.method.startswith(JOINT) else "merged",
            }
        )


def measured(run: Run, communicator: Communicator) -> dict:
    """Train; return the scores of all evaluations, and those of the last one by split and form. Collective."""
    curve, ends = [], {}
    training = Training(run, communicator)
    try:
        for progress in training.rounds():
            if progress.validation:
                curve.append([progress.local_steps, progress.validation.score, progress.loss])
    except DivergedError as error:
        return {"diverged": str(error), "curve": curve, "ends": {"merged": {"validation": 0.0, "test": 0.0}}}
    forms = ("merged", "blocks") if run.method.redeal == 0 else ("merged",)
    if run.method.name == JOINT:
        training.arrange(training.rounds_done - 1)
        ends["sum"] = {split: training.evaluator.score(split).score for split in ("validation", "test")}
        forms = ()
    for form in forms:
        training.evaluator.arrange(training.method.holders(training.rounds_done - 1), form)
        ends[form] = {split: training.evaluator.score(split).score for split in ("validation", "test")}
    return {"curve": curve, "ends": ends, "bytes": progress.bytes}


def memory(cell: Cell, folder: Path) -> tuple[float, float]:
    """Return the plan's megabytes of a rank: weights, gradients and optimizer; the most that it holds beside them."""
    planned = describe_run(cell.run(folder), None, ranks=cell.row.ranks)
    network = planned.architecture
    cost, _ = phase_costs(planned.run, network, cell.row.ranks, planned.examples, planned.smaller)[0]
    held = cost.largest.memory
    # A transfer or a save follows when memory has no gradients any more.
    beside = held.owned + held.copies + max(held.buffers - held.gradients, 0)
    return (held.network + held.gradients + held.optimizer) / 1e6, beside / 1e6


def simulated(cell: Cell, folder: Path, end: float) -> str:
    """Run a cell unless it would begin too late, and keep what it found; return a line that says it."""
    start = time.perf_counter()
    if start >= end:
        return ""
    found, *_ = simulate(partial(measured, cell.run(folder)), cell.row.ranks).require()
    keep_cell(folder / f"{cell.name}.json", cell.name, start, found)
    return f"{cell.name}: {found['ends']}"


class Campaign:
    """The cells that are there, and those that come next."""

    def __init__(self, folder: Path, seeds: int):
        self._folder, self._record, self._seeds = folder, record_in(folder), seeds

    def tried(self, row: Row) -> dict[int, float]:
        """Return the held-out scores of the rates that were tried, by their place on the grid: 0 is the first one."""
        return {
            place: max(end["validation"] for end in record["ends"].values())
            for place in range(-6, 7)
            if (record := self._record(Cell(row, rate_at(row, place), 0)))
        }

    def next_rates(self, row: Row) -> list[float]:
        """Return the rates to try next; none once the best one has a neighbour on both sides."""
        scores = self.tried(row)
        best = max(scores, key=scores.__getitem__, default=None)
        places = [0] if best is None else [place for place in (best + 1, best - 1) if place not in scores]
        return [rate_at(row, place) for place in places]

    def cells(self, row: Row) -> list[Cell]:
        """Return the cells at the best rate of the plain row: of one seed until that rate is inside its grid."""
        scores, seeds = self.tried(row.plain), 1 if self.next_rates(row.plain) else self._seeds
        return [Cell(row, rate_at(row, max(scores, key=scores.__getitem__)), seed) for seed in range(seeds) if scores]

    def todo(self, rows: Sequence[Row]) -> Iterator[Cell]:
        """Yield the cells that can be run now: rates first, then seeds."""
        for row in rows:
            yield from (Cell(row, rate, 0) for rate in self.next_rates(row)[:1] if not row.regularised)
        for row in rows:
            yield from (cell for cell in self.cells(row) if not self._record(cell))

    def records(self, row: Row) -> list[dict]:
        """Return what the cells of the best rate found."""
        return [record for record in map(self._record, self.cells(row)) if record]

    def lines(self, row: Row) -> Iterator[dict]:
        """Yield a line of the table for each form in which a row's network is scored."""
        found = self.records(row)
        trained, beside = memory(self.cells(row)[0], self._folder) if found else (0, 0)
        for form in found[0]["ends"] if found else ():
            if form == "blocks" and row.method != NEVER:
                continue
            scores = [record["ends"][form]["test"] for record in found]
            yield {
                "P": row.ranks,
                "width a rank": row.units if row.method.startswith("whole") else row.width,
                "method": ", ".join(filter(None, (row.method, "side by side" * (form == "blocks"), row.regularised))),
                "rate": f"{self.cells(row)[0].rate:g}{', edge' * bool(self.next_rates(row.plain))}",
                "steps": row.steps,
                "seeds": len(scores),
                "held out": f"{mean(record['ends'][form]['validation'] for record in found):.4f}",
                "score": f"{mean(scores):.4f}",
                "+-": f"{interval(scores):.4f}" if len(scores) > 1 else "",
                "MB sent": f"{found[0].get('bytes', 0) / 1e6:.1f}",
                "MB trained": f"{float(trained):.3g}",
                "MB beside": f"{float(beside):.3g}",
            }


def rate_at(row: Row, place: int) -> float:
    return float(f"{row.task.rate * FACTOR**place:.2g}")


def rows_of(task: Task, steps: int = 0) -> list[Row]:
    """Return a task's rows, the most telling first."""
    steps, several = steps or task.steps, [ranks for ranks in task.ranks if ranks > 1]
    widths = [(ranks, width or task.whole // ranks) for ranks in several for width in task.widths]
    alone = sorted({width for _, width in widths} | {ranks * width for ranks, width in widths})
    # Subnets are added up for the same examples.
    methods = [name for name in METHODS if task.placement == "shared" or not name.startswith(JOINT)]
    rows = [Row(task, *each, method, steps) for each in widths for method in methods]
    rows += [Row(task, 1, width, ALONE, steps) for width in alone]
    return rows + [replace(row, regularised=name) for row in rows for name in REGULARISED]


def prepare(task: Task, raw: Path, folder: Path) -> None:
    """Make the files of a task that are not there."""
    name = task.name.removesuffix("-alike").removesuffix("-by-label")
    if task.data.endswith(".npz"):
        if not (folder / task.data).exists():
            sys.exit(f"{folder / task.data} is missing; see python -m benchmarks.controls.mlbench --help.")
    elif "identifiers" in name:
        prepare_identifiers(folder / task.data, int(Path(task.data).stem.rpartition("-")[2]))
    else:
        SHORT[{"digits": "speech"}.get(name, name)].prepare(raw, folder)


def main() -> None:
    """Run the cells that are not there, and report."""
    parser = cells_parser(__doc__)
    parser.add_argument("--raw", type=Path, default=HERE.parents[1] / "shared/data", help="the raw data")
    parser.add_argument("--task", choices=TASKS, action="append", help="may be repeated; by default all")
    parser.add_argument("--ranks", type=int, action="append", help="rows of so many ranks; may be repeated")
    parser.add_argument("--width", type=int, action="append", help="rows of this width a rank; may be repeated")
    parser.add_argument("--only", action="append", help="rows of methods that begin so; may be repeated")
    parser.add_argument("--regularised", default="", help="weight decay or dropout, with or without its number")
    parser.add_argument("--steps", type=int, default=0, help="another number of local steps")
    parser.add_argument("--seeds", type=int, default=5, help="of each best rate (5)")
    parser.add_argument("--processes", type=int, help="cells at a time (one a core)")
    options = parser.parse_args()
    options.cells.mkdir(exist_ok=True)
    for name, task in ((name, TASKS[name]) for name in options.task or TASKS):
        restore_cells(f"plateau-{name}", options.cells, options.results)
        campaign = Campaign(options.cells, options.seeds)
        if not options.report:
            chosen = [row for row in rows_of(task, options.steps) if row.ranks in (options.ranks or task.ranks)]
            chosen = [row for row in chosen if not options.width or row.width in options.width]
            chosen = [row for row in chosen if row.method.startswith(tuple(options.only or ("",)))]
            chosen = [row for row in chosen if f"{row.regularised} ".startswith(options.regularised + " ")]
            prepare(task, options.raw, options.cells)
            todo = partial(campaign.todo, chosen)
            run_cells(todo, simulated, options.cells, options.minutes, options.processes)
        if files := [*options.cells.glob(f"{name}-P*.json")]:
            prepare(task, options.raw, options.cells)
        lengths = sorted({int(file.stem.partition("-lr")[0].rpartition("-n")[2]) for file in files})
        rows = [row for steps in lengths for row in rows_of(task, steps)]
        if found := [line for row in rows for line in campaign.lines(row)]:
            title = f"{task.title}, data {SAID[task.placement]}"
            notes = (
                f"{title}; {task.batch} examples a rank and step, J = {task.local_steps}, a cosine of learning rates. "
                "Held out: a tenth of the training examples, which choose rates: neighbours are 3 times apart, with a "
                "worse one on both sides, unless on the edge. +-: half of the 95% interval of the mean over seeds. MB "
                "sent: by all ranks, evaluations left out. MB trained: a rank's weights, gradients and optimizer, as "
                "planned; beside: averages, copies, fed-back errors and rows to save. Never redealt, side by side, is "
                "an ensemble of P narrow networks. One rank has all data, and makes as many steps as each of several."
            )
            store_cells(f"plateau-{name}", files, options.results)
            reporting.report(f"plateau-{name}", f"Long runs: {title}", found, notes, folder=options.results)
    if options.report and not options.task:
        panels = {title: curves(campaign, TASKS[name], *of_rank) for title, (name, *of_rank) in PANELS.items()}
        draw_curves(panels, options.results / "plateau.svg")
        known = {title: lines_of_sums(campaign, TASKS[name], *of_rank) for title, (name, *of_rank) in SUMS.items()}
        draw_bytes(known, options.results / "joint-bytes.svg")


def curves(campaign: Campaign, task: Task, ranks: int, width: int) -> dict[str, list[dict]]:
    """Return the records of a panel by method."""
    rows = [row for row in rows_of(task) if (row.ranks, row.width) == (ranks, width)]
    return {row.method: found for row in rows if (found := campaign.records(row))}


def lines_of_sums(campaign: Campaign, task: Task, ranks: int, width: int) -> list[dict]:
    """Return the table's lines without regularisation: sums in int8, and subnets that never move side by side."""
    rows = [row for row in rows_of(task) if (row.ranks, row.width, row.regularised) == (ranks, width, "")]
    lines = [line for row in rows for line in campaign.lines(row) if line["method"] != NEVER]
    return [line for line in lines if not line["method"].startswith(JOINT) or "int8" in line["method"]]


if __name__ == "__main__":
    main()
