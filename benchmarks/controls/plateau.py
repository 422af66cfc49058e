"""IST and narrow networks in long runs, each at the best learning rate inside its grid.

    python -m benchmarks.controls.plateau --cells FOLDER --task reuters             # resumes; all its widths and ranks
    python -m benchmarks.controls.plateau --cells FOLDER --task cifar --seeds 1     # the first seed of everything
    python -m benchmarks.controls.plateau --cells FOLDER --report                   # only the tables

A row is a method at a number of ranks and at a width a rank. The rates are 3 times apart; more are tried until the
best one, on a tenth of the training examples that is held out, has a worse one on both sides. A cell is a run of
simulated ranks, with a cosine of the learning rate; its file has the score of all evaluations. Where units are dealt
once, the network is scored as the full one and as its subnets side by side (`evaluate.form`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from benchmarks import reporting
from benchmarks.controls.identifiers import prepare as prepare_identifiers
from benchmarks.controls.rivals import interval, record_in
from benchmarks.controls.tasks import TASKS as SHORT
from benchmarks.processes import run_cells
from benchmarks.reporting import HERE, RESULTS, keep_cell, restore_cells, store_cells
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.errors import DivergedError
from istmpi.simulated import simulate
from istmpi.training.loop import Training

FACTOR = 3.0
"""The quotient of neighbouring learning rates."""
EVALUATIONS = 10
METHODS: Mapping[str, Mapping[str, object]] = {
    "ist": {"method.name": "ist"},
    "ist, a tenth redealt": {"method.name": "ist", "method.redeal": 0.1},
    "ist, never redealt": {"method.name": "ist", "method.redeal": 0.0},
    "narrow, local SGD": {"method.name": "local-sgd"},
    "narrow, SparseLoCo": {"method.name": "sparse-loco"},
    "whole, local SGD": {"method.name": "local-sgd"},
}
SPARSE = {"model.name": "xc", "optimizer.name": "adam", "method.optimizer_state": "carry"}


@dataclass(frozen=True)
class Task:
    """Data, and a network whose hidden layers have ``layers`` times as many units as all ranks together hold."""

    name: str
    title: str
    data: str
    layers: int
    widths: tuple[int, ...]
    """Units of a hidden layer that a rank holds; 0: a P-th of ``whole``."""
    ranks: tuple[int, ...]
    steps: int
    batch: int
    rate: float
    """The learning rate that is tried first."""
    settings: Mapping[str, object]
    whole: int = 0
    local_steps: int = 20
    placement: str = "sharded"


TASKS = {
    task.name: task
    for task in (
        Task("reuters", "Reuters, P@1 on test rows", "rows.h5", 1, (4, 16, 64), (8, 4), 3000, 64, 0.01, SPARSE),
        Task(
            "identifiers",
            "The next identifier of 2,048 in Python's standard library, P@1 on test modules",
            "identifiers-2048.h5",
            1,
            (4, 16, 64),
            (8, 4),
            3000,
            64,
            0.01,
            SPARSE,
        ),
        Task(
            "cifar",
            "CIFAR-10 at 16 x 16 pixels, 768-512-512-10, accuracy on test images",
            "images-16.h5",
            2,
            (0, 16),
            (4, 8),
            4000,
            32,
            0.1,
            {},
            512,
        ),
        Task(
            "digits",
            "Spoken digits, 4096-512-512-10, accuracy of a speaker who was not trained on",
            "speech.h5",
            2,
            (0, 16),
            (4, 8),
            2000,
            16,
            0.01,
            {},
            512,
        ),
    )
}
for like in ("reuters", "identifiers", "cifar", "digits"):
    task = TASKS[like]
    alike = f"{like}-alike", f"{task.title}, all data on every rank"
    TASKS[alike[0]] = replace(task, name=alike[0], title=alike[1], placement="shared")


@dataclass(frozen=True)
class Row:
    """What is compared."""

    task: Task
    ranks: int
    width: int
    method: str
    steps: int

    def cell(self, rate: float, seed: int) -> Cell:
        return Cell(self, rate, seed)


@dataclass(frozen=True)
class Cell:
    """A run of a row; its name is its file's."""

    row: Row
    rate: float
    seed: int

    @property
    def name(self) -> str:
        row = self.row
        method = row.method.replace(", ", "-").replace(" ", "-")
        return f"{row.task.name}-P{row.ranks}-w{row.width}-{method}-n{row.steps}-lr{self.rate:g}-s{self.seed}"

    def run(self, folder: Path) -> Run:
        """Return the settings; data are a part each, a tenth of the training examples is held out."""
        row, task = self.row, self.row.task
        units = row.width if row.method.startswith("narrow") else row.width * row.ranks
        rounds = row.steps // task.local_steps
        return Run().override(
            {
                **task.settings,
                **METHODS[row.method],
                "data.source": str(folder / task.data),
                "data.placement": task.placement,
                "data.validation": 0.1,
                "model.hidden": [units] * task.layers,
                "method.local_steps": task.local_steps,
                "optimizer.lr": self.rate,
                "optimizer.schedule": "cosine",
                "train.batch": task.batch,
                "train.rounds": rounds,
                "train.patience": EVALUATIONS,
                "train.seed": self.seed,
                "train.threads": 1,
                "evaluate.every": max(rounds // EVALUATIONS, 1),
                "evaluate.form": "merged",
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
    forms = ("merged", "blocks") if run.method.name == "ist" else ("merged",)
    for form in forms:
        training.evaluator.arrange(training.method.holders(training.rounds_done - 1), form)
        ends[form] = {split: training.evaluator.score(split).score for split in ("validation", "test")}
    return {"curve": curve, "ends": ends, "bytes": progress.bytes}


def simulated(cell: Cell, folder: Path, end: float) -> str:
    """Run a cell unless it would begin too late, and keep what it found; return a line that says it."""
    start = time.perf_counter()
    if start >= end:
        return ""
    run = cell.run(folder)
    found, *_ = simulate(lambda communicator: measured(run, communicator), cell.row.ranks).require()
    keep_cell(folder / f"{cell.name}.json", cell.name, start, found)
    return f"{cell.name}: {found['ends']}"


class Campaign:
    """The cells that are there, and those that come next."""

    def __init__(self, folder: Path, seeds: int):
        self._record, self._seeds = record_in(folder), seeds

    def score(self, row: Row, rate: float) -> float | None:
        """Return a rate's score on the held-out examples; None where it was not tried."""
        found = self._record(row.cell(rate, 0))
        return found and max(end["validation"] for end in found["ends"].values())

    def tried(self, row: Row) -> dict[int, float]:
        """Return the scores of the rates that were tried, by their place on the grid: 0 is the first one."""
        scores = {place: self.score(row, rate_at(row, place)) for place in range(-6, 7)}
        return {place: score for place, score in scores.items() if score is not None}

    def next_rates(self, row: Row) -> list[float]:
        """Return the rates to try next; none once the best one has a neighbour on both sides."""
        scores = self.tried(row)
        best = max(scores, key=scores.__getitem__, default=None)
        places = [0] if best is None else [place for place in (best + 1, best - 1) if place not in scores]
        return [rate_at(row, place) for place in places]

    def best(self, row: Row) -> float | None:
        """Return the best rate, once it is inside its grid."""
        scores = self.tried(row)
        return None if not scores or self.next_rates(row) else rate_at(row, max(scores, key=scores.__getitem__))

    def cells(self, row: Row) -> list[Cell]:
        """Return the cells of the best rate."""
        rate = self.best(row)
        return [] if rate is None else [row.cell(rate, seed) for seed in range(self._seeds)]

    def todo(self, rows: Sequence[Row]) -> Iterator[Cell]:
        """Yield the cells that can be run now: rates first, then seeds."""
        for row in rows:
            yield from (row.cell(rate, 0) for rate in self.next_rates(row)[:1])
        for row in rows:
            yield from (cell for cell in self.cells(row) if not self._record(cell))

    def lines(self, row: Row) -> Iterator[dict]:
        """Yield a line of the table for each form in which a row's network is scored."""
        found = [record for record in map(self._record, self.cells(row)) if record]
        for form in found[0]["ends"] if found else ():
            scores = [record["ends"][form]["test"] for record in found]
            yield {
                "P": row.ranks,
                "width a rank": row.width,
                "method": row.method + (", side by side" if form == "blocks" else ""),
                "rate": f"{self.best(row):g}",
                "steps": row.steps,
                "seeds": len(scores),
                "score": f"{mean(scores):.4f}",
                "+-": f"{interval(scores):.4f}" if len(scores) > 1 else "",
                "MB sent": f"{found[0]['bytes'] / 1e6:.1f}",
            }


def rate_at(row: Row, place: int) -> float:
    """Return the learning rate at a place of the grid."""
    return float(f"{row.task.rate * FACTOR**place:.2g}")


def rows_of(task: Task, steps: int = 0) -> list[Row]:
    """Return a task's rows, the most telling first."""
    widths = [(ranks, width or task.whole // ranks) for ranks in task.ranks for width in task.widths]
    return [Row(task, *each, method, steps or task.steps) for each in widths for method in METHODS]


def prepare(task: Task, raw: Path, folder: Path) -> None:
    """Make the files of a task that are not there."""
    name = task.name.removesuffix("-alike")
    if name == "identifiers":
        prepare_identifiers(folder / task.data, 2048)
    else:
        SHORT[{"digits": "speech"}.get(name, name)].prepare(raw, folder)


def main() -> None:
    """Run the cells that are not there, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True, help="the folder of the cells and the prepared data")
    parser.add_argument("--raw", type=Path, default=HERE.parents[1] / "shared/data", help="the raw data")
    parser.add_argument("--task", choices=TASKS, action="append", help="may be repeated; by default all")
    parser.add_argument("--ranks", type=int, action="append", help="rows of so many ranks; may be repeated")
    parser.add_argument("--width", type=int, action="append", help="rows of this width a rank; may be repeated")
    parser.add_argument("--only", action="append", help="rows of methods that begin so; may be repeated")
    parser.add_argument("--steps", type=int, default=0, help="another number of local steps")
    parser.add_argument("--seeds", type=int, default=5, help="of each best rate (5)")
    parser.add_argument("--minutes", type=float, default=600, help="no cell begins after that")
    parser.add_argument("--processes", type=int, help="cells at a time (one a core)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.cells.mkdir(exist_ok=True)
    for name in options.task or TASKS:
        task = TASKS[name]
        restore_cells(f"plateau-{name}", options.cells, options.results)
        campaign = Campaign(options.cells, options.seeds)
        if not options.report:
            chosen = rows_of(replace(task, ranks=tuple(options.ranks or task.ranks)), options.steps)
            chosen = [row for row in chosen if not options.width or row.width in options.width]
            only = tuple(options.only or ("",))
            run(campaign, [row for row in chosen if row.method.startswith(only)], options)
        files = [*options.cells.glob(f"{name}-P*.json")]
        lengths = sorted({int(file.stem.partition("-lr")[0].rpartition("-n")[2]) for file in files})
        rows = [row for steps in lengths for row in rows_of(task, steps)]
        if found := [line for row in rows for line in campaign.lines(row)]:
            notes = (
                f"{task.title}; {task.batch} examples a rank and step, J = {task.local_steps}, data "
                f"{'all on every rank' if task.placement == 'shared' else 'a part each'}, a cosine of the learning "
                "rate. Rates: the best of neighbours 3 times apart on a tenth of the training examples, with a worse "
                "one on both sides. +-: half of the 95% interval of the mean over seeds. MB: "
                "sent by all ranks, evaluations left out."
            )
            store_cells(f"plateau-{name}", files, options.results)
            reporting.report(f"plateau-{name}", f"Long runs: {task.title}", found, notes, folder=options.results)


def run(campaign: Campaign, rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Run the cells that are not there, some at a time, until none is left or time is up."""
    if rows:
        prepare(rows[0].task, options.raw, options.cells)
    run_cells(lambda: campaign.todo(rows), simulated, options.cells, options.minutes, options.processes)


if __name__ == "__main__":
    main()
