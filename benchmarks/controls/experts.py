"""A mixture of experts that are never redealt, and dense transformers of a rank's bytes, in long runs on text.

    python -m benchmarks.controls.experts --cells FOLDER [--minutes 60]   # resumes; after this time cells stop
    python -m benchmarks.controls.experts --cells FOLDER --report         # only the table

The corpus is that of `controls.decoder`; each rank has a part of it, and two experts in each of two layers. A dense
transformer has a rank's bytes and FLOPs. The ensemble is a dense transformer a rank that never sends anything, scored
by their mean outputs: it trains by codistillation before its burn-in ends. A cell is a run of simulated ranks, which is
saved ten times, and resumed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch.func import functional_call

from benchmarks.controls.decoder import prepare
from benchmarks.controls.rivals import interval, record_in
from benchmarks.processes import cells_parser, run_cells
from benchmarks.reporting import keep_cell, report, restore_cells, store_cells
from istmpi.comm import Communicator
from istmpi.comm.stopping import StopSources
from istmpi.config import Run
from istmpi.devices import HOST
from istmpi.engine.slots import select_weights
from istmpi.errors import StoppedError
from istmpi.simulated import simulate
from istmpi.training.loop import Training
from istmpi.training.run import open_run
from istmpi.trees import map_tensors

NAME, RANKS, LOCAL_STEPS = "experts-long", 4, 20
STEPS = {4: 5000, 8: 2500}
"""Local steps by the number of ranks: as many passes over the text."""
TEXT = {"data.length": 64, "train.batch": 16, "train.threads": 1, "evaluate.examples": 512}
LAYERS = {"model.layers": 2, "model.embed": 64, "model.heads": [4, 4], "model.head_dim": 16}
ADAMW = {"optimizer.name": "adamw", "optimizer.schedule": "cosine", "optimizer.warm_up": 20, "optimizer.clip": 1.0}
DENSE = {"model.name": "transformer", "model.hidden": [256, 256]}
MOE = {"model.name": "moe", "model.hidden": 128}
ENSEMBLE = "dense, ensemble"
ROWS: Mapping[str, Mapping[str, object]] = {
    ENSEMBLE: DENSE | {"method.name": "codistillation", "method.burn_in": 10**6},
    "moe, IST, never redealt": MOE | {"method.name": "ist", "method.redeal": 0.0},
    "dense, local SGD": DENSE | {"method.name": "local-sgd"},
    "moe, local SGD": MOE | {"method.name": "local-sgd"},
}
RATES = 0.006, 0.02, 0.002
"""The learning rates of the first seed. Other seeds have the first rate, and leave out the last row."""


class Cell(NamedTuple):
    """A run of a row; its name is its file's."""

    row: str
    steps: int
    rate: float
    seed: int
    ranks: int = RANKS

    @property
    def name(self) -> str:
        row = self.row.replace(", ", "-").replace(" ", "-") + f"-P{self.ranks}" * (self.ranks != RANKS)
        return f"{row}-n{self.steps}-lr{self.rate:g}-s{self.seed}"

    def run(self, folder: Path) -> Run:
        rounds = self.steps // LOCAL_STEPS
        experts = {"model.experts": [2 * self.ranks] * 2} if self.row.startswith("moe") else {}
        of_cell = {"data.source": str(folder / "text.h5"), "optimizer.lr": self.rate, "train.seed": self.seed}
        often = {"train.rounds": rounds, "evaluate.every": rounds, "checkpoint.every": max(rounds // 10, 1)}
        method = {"method.local_steps": LOCAL_STEPS, "method.optimizer_state": "carry"}
        kept = {"output.folder": str(folder / "runs" / self.name)}
        return Run().override(
            {**TEXT, **LAYERS, **ADAMW, **method, **ROWS[self.row], **experts, **of_cell, **often, **kept}
        )


class Ensemble:
    """The ranks' own networks, which return the mean of their outputs; used like a `SharedBlocks`. Collective."""

    labels, same_examples, moments, device = None, True, {}, HOST

    def __init__(self, training: Training):
        tensors = training.method.of_this_rank()
        weights = {name: tensors[name] for name in select_weights(tensors)}
        self._network = partial(functional_call, training.architecture.without_values(None).eval(), weights)
        self._communicator = training.communicator

    def load_moments(self, moments: Mapping[str, Any]) -> None:
        """Do nothing: there is no batch normalisation."""

    def finish(self) -> None:
        """Do nothing: weights stay loaded."""

    release = finish

    @torch.no_grad()
    def __call__(self, *inputs: Any) -> Any:
        return map_tensors(self._mean, self._network(inputs))

    def _mean(self, outputs: torch.Tensor) -> torch.Tensor:
        summed = self._communicator.allreduce_sum(outputs.reshape(-1).numpy())
        return torch.from_numpy(summed).view(outputs.shape) / self._communicator.size


def measured(run: Run, ensemble: bool, end: float, communicator: Communicator) -> dict:
    """Train, from where an earlier run was saved; return the losses by form.

    Raises StoppedError at the ``end`` (Unix time). Collective.
    """
    begin = partial(Training, run, communicator)
    with open_run(run, communicator, begin, StopSources(end), None, "auto") as (training, _, record):
        if record:
            for progress in training.rounds():
                record.add(progress)
            record.end()
        forms = {}
        if ensemble:
            training.evaluator.network = Ensemble(training)
            forms["ensemble"] = training.evaluator.score().loss
        for form in () if ensemble else ("merged", "blocks")[: 1 + (run.method.redeal == 0)]:
            training.evaluator.arrange(training.method.holders(training.rounds_done - 1), form)
            forms[form] = training.evaluator.score().loss
    return {"nats": forms, "bytes": training.tally.counts.bytes, "loss": training.tally.counts.loss}


def simulated(cell: Cell, folder: Path, end: float) -> str:
    """Run a cell until its ``end``, and keep what it found; return a line that says it."""
    start = time.perf_counter()
    if start >= end:
        return ""
    program = partial(measured, cell.run(folder), cell.row == ENSEMBLE, time.time() + end - start)
    try:
        found, *_ = simulate(program, cell.ranks).require()
    except StoppedError as stopped:
        return f"{cell.name}: {stopped}"
    keep_cell(folder / f"{cell.name}.json", cell.name, start, found)
    return f"{cell.name}: {found['nats']}"


def lines(cells: list[Cell], folder: Path) -> Iterator[dict[str, object]]:
    """Yield a line of the table for each row, rate and form."""
    for group in dict.fromkeys(cell._replace(seed=0) for cell in cells):
        alike = [cell for cell in cells if cell._replace(seed=0) == group]
        found = list(filter(None, map(record_in(folder), alike)))
        for form in found[0]["nats"] if found else ():
            nats = [record["nats"][form] for record in found]
            yield {
                "P": group.ranks,
                "steps": group.steps,
                "method": group.row + ", side by side" * (form == "blocks"),
                "rate": f"{group.rate:g}",
                "seeds": len(nats),
                "nats": f"{mean(nats):.4f}",
                "+-": f"{interval(nats):.4f}" if len(nats) > 1 else "",
                "MB sent": f"{found[0]['bytes'] / 1e6:.0f}",
            }


def main() -> None:
    """Run the cells that are not there, and report."""
    parser = cells_parser(__doc__)
    parser.add_argument("--ranks", type=int, choices=STEPS, default=RANKS, help=f"number of ranks ({RANKS})")
    parser.add_argument("--only", action="append", help="rows that begin so; may be repeated")
    parser.add_argument("--seeds", type=int, default=3, help="of the first rate (3)")
    parser.add_argument("--processes", type=int, help="cells at a time (one a core)")
    options = parser.parse_args()
    options.cells.mkdir(exist_ok=True)
    restore_cells(NAME, options.cells, options.results)
    size, digest = prepare(options.cells / "text.h5")
    cells = [Cell(row, STEPS[ranks], rate, 0, ranks) for ranks in STEPS for rate in RATES for row in ROWS]
    seeds = range(1, options.seeds)
    cells += [
        Cell(row, STEPS[ranks], RATES[0], seed, ranks) for ranks in STEPS for seed in seeds for row in [*ROWS][:-1]
    ]

    def missing() -> list[Cell]:
        only = tuple(options.only or ("",))
        todo = [cell for cell in cells if cell.ranks == options.ranks and cell.row.startswith(only)]
        return [cell for cell in todo if not record_in(options.cells)(cell)]

    if not options.report:
        run_cells(missing, simulated, options.cells, options.minutes, options.processes)
    if found := list(lines(cells, options.cells)):
        notes = (
            "Nats a token over 512 windows of the test documents after the local steps; rates are 3 "
            "times apart. +-: half of the 95% interval of the mean over seeds. MB sent: by all ranks, evaluations "
            "left out; the ensemble's are those of its start. Dense transformers have a rank's bytes and FLOPs. The "
            f"corpus: {size:,} bytes, SHA-256 {digest[:16]}."
        )
        store_cells(NAME, options.cells.glob("*-s?.json"), options.results)
        title = "Experts that are never redealt, and dense transformers of a rank's size"
        report(NAME, title, found, notes, folder=options.results)


if __name__ == "__main__":
    main()
