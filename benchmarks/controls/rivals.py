"""Is it IST that is needed? IST, its controls and today's rivals beside each other, each tuned on the same budget.

    python -m benchmarks.controls.rivals --cells FOLDER  # resumes; the most telling first
    python -m benchmarks.controls.rivals --cells FOLDER --ranks 8 --seeds 1  # the first seed of everything
    python -m benchmarks.controls.rivals --cells FOLDER --task cifar  # another task
    python -m benchmarks.controls.rivals --cells FOLDER --report  # only the table

Data alike on all ranks, sharded, and by label. Every method's learning rate and local steps are the best of six
settings on a validation split of the training data, with the data placed as where they are used. A cell is a run of
simulated ranks, whose accuracies and bytes are those of ``mpirun``, to the last bit; as many run at a time as there are
cores. Its file has a point for each evaluation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks import reporting
from benchmarks.controls.tasks import BY_LABEL, NARROW, NEVER, PLACEMENTS, TASKS, TENTH, Task, hidden_of
from benchmarks.processes import cells_parser, run_cells
from benchmarks.reporting import HERE, keep_cell, restore_cells, store_cells
from istmpi.comm import Communicator
from istmpi.config import Run
from istmpi.errors import DivergedError
from istmpi.simulated import simulate
from istmpi.training.loop import Training

SHORT_OR_LONG = (10, 40)
"""Local steps of a round that are tried."""
OF_METHOD = {"streaming-diloco": (30, 60), "sparse-loco": (10, 30)}
"""Where others are usual."""
TWENTIETH, NARROW_LOCO = "ist-twentieth", "narrow-sparse-loco"
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "ist": {"method.name": "ist"},
    TENTH: {"method.name": "ist", "method.redeal": 0.1},
    TWENTIETH: {"method.name": "ist", "method.redeal": 0.05},
    NEVER: {"method.name": "ist", "method.redeal": 0},
    **{name: {"method.name": method} for name, method in NARROW.items()},
    NARROW_LOCO: {"method.name": "sparse-loco"},
    "local-sgd": {"method.name": "local-sgd"},
    "diloco": {"method.name": "diloco"},
    "streaming-diloco": {"method.name": "streaming-diloco"},
    "sparse-loco": {"method.name": "sparse-loco"},
}
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% quantiles of Student's t for 1 to 9 degrees of freedom."""
ADJUSTED = "-adjusted"
"""Behind a name: with train.logit_adjustment = 1. By label alone; elsewhere all ranks have the same classes."""
WITH_ADJUSTMENT = tuple(name + ADJUSTED for name in ("ist", TENTH, "narrow-local-sgd", "local-sgd", "diloco"))
MOST_TELLING = ("sparse-loco", "streaming-diloco", NEVER, "ist", "narrow-local-sgd", "local-sgd", TENTH)
METHODS = (*MOST_TELLING, *(name for name in SETTINGS if name not in MOST_TELLING))
COMPARED = (
    ("ist", NEVER),
    ("ist", TENTH),
    (TENTH, NEVER),
    ("narrow-local-sgd", "ist"),
    (NARROW_LOCO, TENTH),
    ("sparse-loco", "ist"),
)
"""What the exchange is worth, redealing all of it, and the narrow and the whole network beside it."""


def methods_of(task: Task, placement: str) -> tuple[str, ...]:
    """What is compared where the data are placed so."""
    return METHODS + (WITH_ADJUSTMENT if task.adjustment and placement == BY_LABEL else ())


Record = Callable[["Cell"], dict | None]
TITLE = "Short runs: IST, its controls and today's rivals"


@dataclass(frozen=True)
class Cell:
    """A run; its name is its file's."""

    task: Task
    kind: str
    """``rate``: on the validation split; ``control``: on the test split."""
    method: str
    placement: str
    ranks: int
    lr: float
    local_steps: int
    seed: int = 0

    @property
    def name(self) -> str:
        setting = f"{self.placement}-lr{self.lr:g}-J{self.local_steps}-s{self.seed}"
        return f"{self.task.name}-{self.kind}-P{self.ranks}-{self.method}-{setting}"

    def run(self, data: Mapping[str, Path]) -> Run:
        """The task's evaluations, or one after each round; one at the end where it tunes."""
        task, method = self.task, self.method.removesuffix(ADJUSTED)
        rounds = task.steps[self.kind] // self.local_steps
        return Run().override(
            {
                **task.settings,
                **SETTINGS[method],
                "train.logit_adjustment": float(method != self.method),
                "data.source": str(data[self.kind]),
                "data.placement": self.placement,
                "model.hidden": hidden_of(method, task.hidden, self.ranks),
                "method.local_steps": self.local_steps,
                "optimizer.lr": self.lr,
                "train.batch": task.batch,
                "train.rounds": rounds,
                "train.seed": self.seed,
                "train.threads": 1,
                "evaluate.every": max(rounds // task.evaluations, 1) if self.kind == "control" else rounds,
            }
        )


def tried(task: Task, method: str, placement: str, ranks: int) -> list[Cell]:
    """A method's budget: as many settings for each."""
    settings = product(task.rates, OF_METHOD.get(method.removeprefix("narrow-"), SHORT_OR_LONG))
    return [Cell(task, "rate", method, placement, ranks, lr, steps) for lr, steps in settings]


def chosen(record: Record, task: Task, method: str, placement: str, ranks: int) -> Cell | None:
    """The setting that is most accurate on the validation split; None before all were tried."""
    cells = tried(task, method, placement, ranks)
    found = {cell.name: (cell, one["points"][-1]["accuracy"]) for cell in cells if (one := record(cell))}
    return max(found.values(), key=lambda known: known[1])[0] if len(found) == len(cells) else None


def controls(record: Record, task: Task, method: str, placement: str, ranks: int, seeds: int) -> list[Cell]:
    """The cells of the chosen setting."""
    best = chosen(record, task, method, placement, ranks)
    return [replace(best, kind="control", seed=seed) for seed in range(seeds)] if best else []


def plan(record: Record, task: Task, ranks: int, seeds: int) -> Iterator[Cell]:
    """The cells that are not there yet and can be run, each once: by seeds; those of a method once it is tuned."""
    for seed in range(seeds):
        for placement in task.placements:
            for method in methods_of(task, placement):
                tuning = tried(task, method, placement, ranks) if seed == 0 else []
                cells = [*tuning, *controls(record, task, method, placement, ranks, seeds)[seed : seed + 1]]
                yield from (cell for cell in cells if not record(cell))


def measured(run: Run, communicator: Communicator) -> dict:
    """What a run finds. Collective."""
    points = []
    try:
        for one in Training(run, communicator).rounds():
            if one.score is not None:
                points.append({"step": one.local_steps, "accuracy": one.score.score, "megabytes": one.bytes / 1e6})
    except DivergedError as error:
        points.append({"step": 0, "accuracy": 0.0, "megabytes": 0.0, "diverged": str(error)})
    return {"points": points}


def _shown(task: Task) -> list[tuple[str, str]]:
    return [
        (placement, method)
        for placement in task.placements
        for method in (*SETTINGS, *(name for name in methods_of(task, placement) if name.endswith(ADJUSTED)))
    ]


def rows(record: Record, task: Task, ranks: int, seeds: int) -> list[dict]:
    """Each method's accuracy and bytes, by placement; only what is there."""
    found = []
    for placement, method in _shown(task):
        cells = controls(record, task, method, placement, ranks, seeds)
        ends = [one["points"][-1] for one in map(record, cells) if one]
        if not ends:
            continue
        accuracies = [end["accuracy"] for end in ends]
        found.append(
            {
                "data": PLACEMENTS[placement],
                "method": method,
                "P": ranks,
                "lr, J": f"{cells[0].lr:g}, {cells[0].local_steps}",
                "seeds": len(ends),
                "accuracy": f"{mean(accuracies):.4f}",
                "+-": f"{interval(accuracies):.4f}" if len(ends) > 1 else "",
                "least and most": f"{min(accuracies):.4f} .. {max(accuracies):.4f}",
                "MB sent": mean(end["megabytes"] for end in ends),
            }
        )
    return found


def differences(record: Record, task: Task, ranks: int, seeds: int) -> list[dict]:
    """How many points one method is ahead of another with the same seeds, by placement; only what is there."""
    found = []
    for placement in task.placements:
        for one, other in COMPARED:
            ends = [
                {cell.seed: known["points"][-1]["accuracy"] for cell in cells if (known := record(cell))}
                for cells in (controls(record, task, method, placement, ranks, seeds) for method in (one, other))
            ]
            points = [100 * (ends[0][seed] - ends[1][seed]) for seed in ends[0] if seed in ends[1]]
            if len(points) > 1:
                name = {"data": PLACEMENTS[placement], "ahead": one, "of": other, "P": ranks, "seeds": len(points)}
                found.append({**name, "points": f"{mean(points):+.1f}", "+-": f"{interval(points):.1f}"})
    return found


def interval(values: list[float]) -> float:
    """Half of the 95% confidence interval of the mean of up to ten values, by Student's t."""
    return STUDENT[len(values) - 2] * stdev(values) / len(values) ** 0.5


def commits(record: Record, task: Task, ranks: int, seeds: int) -> list[str]:
    """Of the code with which the rows were measured."""
    shown = _shown(task)
    cells = (cell for placement, method in shown for cell in controls(record, task, method, placement, ranks, seeds))
    return sorted({one["commit"] for one in map(record, cells) if one})


def record_in(folder: Path) -> Callable[[Any], dict | None]:
    """What a cell, which has a name, found, as its file in a folder says; None without one."""

    def record(cell: Any) -> dict | None:
        path = folder / f"{cell.name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    return record


def report_name(task: Task, ranks: int) -> str:
    """Of the table of a task, and of its cells beside it."""
    return "-".join(["controls-rivals", *[task.name] * (task.name != "speech"), *[str(ranks)] * (ranks != 4)])


def main() -> None:
    parser = cells_parser(__doc__)
    parser.add_argument("--raw", type=Path, default=HERE.parents[1] / "shared/data", help="the raw data")
    parser.add_argument("--task", choices=TASKS, default="speech", help="what is trained (speech)")
    parser.add_argument("--seeds", type=int, default=5, help="of each chosen setting (5)")
    parser.add_argument("--ranks", type=int, default=4, help="of each run (4)")
    parser.add_argument(
        "--placement", action="append", choices=PLACEMENTS, help="runs with this one alone; may be repeated"
    )
    options = parser.parse_args()
    task = TASKS[options.task]

    record, ranks = record_in(options.cells), options.ranks
    name = report_name(task, ranks)
    options.cells.mkdir(exist_ok=True)
    restore_cells(name, options.cells, options.results)
    if not options.report:
        campaign(options, replace(task, placements=tuple(options.placement or task.placements)), record)
    if found := rows(record, task, ranks, options.seeds):
        notes = (
            f"{task.title}; narrow: a P-th of the widths; {task.batch} examples a rank and step, "
            f"{task.steps['control']} steps. Learning rate and J: the best of {len(task.rates)} x 2 on a validation "
            f"split of the training data after {task.steps['rate']} steps, for each placement. +-: half of the 95% "
            "interval of the mean over seeds, by Student's t. MB: sent by all ranks, evaluations left out. Measured at "
            f"{', '.join(commits(record, task, ranks, options.seeds))}."
        )
        if apart := differences(record, task, ranks, options.seeds):
            notes += f"\n\n## Differences of accuracy, in points, seed by seed\n\n{reporting.table(apart)}"
        store_cells(name, options.cells.glob(f"{task.name}-[cr]*-P{ranks}-*.json"), options.results)
        reporting.report(
            name,
            f"{task.steps['control']} steps: IST, its controls and today's rivals",
            found,
            notes,
            folder=options.results,
        )


def campaign(options: argparse.Namespace, task: Task, record: Record) -> None:
    """Run the cells that are not there: those that tune, then those of what was chosen."""
    task.prepare(options.raw, options.cells)
    cells = partial(plan, record, task, options.ranks, options.seeds)
    run_cells(cells, simulated, options.cells, options.minutes)


def simulated(cell: Cell, folder: Path, end: float) -> str:
    """Run a cell unless it would begin too late, and keep what it found; a line that says it."""
    start = time.perf_counter()
    if start >= end:
        return ""
    run = cell.run(cell.task.data(folder))
    found, *_ = simulate(lambda communicator: measured(run, communicator), cell.ranks).require()
    keep_cell(folder / f"{cell.name}.json", cell.name, start, found)
    return f"{cell.name}: {found['points'][-1]['accuracy']:.4f}"


if __name__ == "__main__":
    main()
