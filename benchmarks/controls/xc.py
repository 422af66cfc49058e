"""Sparse rows with many labels (Reuters): IST beside one rank, local SGD and the controls.

    python -m benchmarks.controls.xc --raw reuters-xc.tar.gz  # hours on two cores; again to go on
    python -m benchmarks.controls.xc --raw ... --only "P = 8"  # the rows whose names contain that
    python -m benchmarks.controls.xc --raw ... --seeds 1  # the first seed alone
    python -m benchmarks.controls.xc --report  # the table anew

All rows take as many local steps of each rank, by Adam whose state is carried. Every row has a learning rate of its
own: of those tried the best on the last tenth of the training rows, which training then leaves out, on seed 0. A cell
is one ``mpirun -n P istmpi train`` (MPIRUN names another launcher), and a file in benchmarks/cells-xc, which is not
run again.
"""

import argparse
import json
import statistics
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.controls.small_images import train
from benchmarks.reporting import HERE, RESULTS, report

HIDDEN = 256
RANKS = (2, 4, 8)
SEEDS = 3
RATES = (0.01, 0.03)
COMMON = {
    "model.name": "xc",
    "train.batch": "64",
    "train.threads": "1",
    "train.rounds": "12",
    "method.local_steps": "20",
    "method.optimizer_state": "carry",
    "optimizer.name": "adam",
    "evaluate.every": "12",
}
LOSSES = ("softmax", "binary")
LOCAL_SGD = {"method.name": "local-sgd"}
VARIANTS: dict[str, dict[str, str]] = {
    "IST": {},
    "IST, a tenth redealt": {"method.redeal": "0.1"},
    "IST, never redealt": {"method.redeal": "0"},
    "local SGD": LOCAL_SGD,
    "narrow network, local SGD": LOCAL_SGD,
}
NOTES = (
    "P@k and PSP@k are of the full network on the test rows, the median over seeds and the least and the largest. MB "
    "are those that all ranks handed to MPI. A local step of a rank takes 64 rows, so P ranks read P times as many as "
    "one. A narrow network has a P-th of the width. Each row has the learning rate of the two that was better in "
    "validation, with one seed."
)


@dataclass(frozen=True)
class Row:
    """What is compared: a name, the ranks, and the settings that differ."""

    name: str
    ranks: int
    loss: str
    hidden: int = HIDDEN
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def all_settings(self) -> dict[str, str]:
        own = {"model.hidden": f"[{self.hidden}]", "train.multi_label_loss": self.loss}
        return COMMON | own | self.settings

    def cell(self, folder: Path, rate: float, seed: int | None) -> Path:
        """The file of a learning rate and a seed; without a seed, of the validation."""
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{self.name}-{self.loss}-{self.hidden}")
        return folder / f"{name}-{rate:g}-{'validation' if seed is None else seed}.json"

    def rate(self, folder: Path) -> float | None:
        """The learning rate that was the best in validation; None before all were tried."""
        tried = {rate: self.cell(folder, rate, None) for rate in RATES}
        if not all(cell.exists() for cell in tried.values()):
            return None
        return max(tried, key=lambda rate: json.loads(tried[rate].read_text())["last"]["score"]["score"])


def rows() -> Iterator[Row]:
    """All that is compared."""
    for loss in LOSSES:
        yield Row("one rank", 1, loss, HIDDEN, LOCAL_SGD)
        for ranks in RANKS:
            for name, settings in VARIANTS.items():
                hidden = HIDDEN // ranks if name.startswith("narrow") else HIDDEN
                yield Row(f"{name}, P = {ranks}", ranks, loss, hidden, settings)


def main() -> None:
    """Run the cells that are not there yet, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--raw", type=Path, help="rows in the Extreme Classification Repository's format, as a tar file"
    )
    parser.add_argument("--only", action="append", help="rows whose names contain this; may be repeated")
    parser.add_argument("--loss", default="", help="of this loss alone: softmax or binary")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"so many for each row ({SEEDS})")
    parser.add_argument("--cells", type=Path, default=HERE / "cells-xc", help="the folder of the cells")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes (results/)")
    parser.add_argument("--report", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.cells.mkdir(exist_ok=True)
    if not options.report:
        validation, test = prepare(options.raw, options.cells)
        named = [row for row in rows() if not options.only or any(part in row.name for part in options.only)]
        chosen = [row for row in named if row.loss.startswith(options.loss)]
        for row in chosen:
            for rate in RATES:
                run(row, row.cell(options.cells, rate, None), validation, rate, 0)
        for seed in range(options.seeds):
            for row in chosen:
                rate = row.rate(options.cells)
                run(row, row.cell(options.cells, rate, seed), test, rate, seed)
    found = [(row, row.rate(options.cells)) for row in rows()]
    table = [line(row, rate, summaries) for row, rate in found if (summaries := read(options.cells, row, rate))]
    report("xc", "Reuters: sparse rows with many labels", table, NOTES, folder=options.results)


def prepare(raw: Path, folder: Path) -> tuple[Path, Path]:
    """Prepare the data sets that are not there: one that holds training rows out for validation, and the whole."""
    validation, test = folder / "validation.h5", folder / "rows.h5"
    if not test.exists():
        subprocess.run(["istmpi", "prepare", "xc", raw, test], check=True)
    if not validation.exists():
        with tempfile.TemporaryDirectory() as split, tarfile.open(raw) as archive:
            train_file = next(one for one in archive.getmembers() if one.name.endswith("train.txt"))
            header, *lines = archive.extractfile(train_file).read().decode().splitlines()
            _, features, labels = header.split()
            cut = len(lines) * 9 // 10
            for name, part in (("train", lines[:cut]), ("test", lines[cut:])):
                text = "\n".join([f"{len(part)} {features} {labels}", *part])
                (Path(split) / f"{name}.txt").write_text(text + "\n")
            subprocess.run(["istmpi", "prepare", "xc", split, validation], check=True)
    return validation, test


def run(row: Row, cell: Path, data: Path, rate: float, seed: int) -> None:
    """Run a cell that is not there yet."""
    if cell.exists():
        return
    given = {"data.source": str(data), "train.seed": str(seed), "optimizer.lr": str(rate)}
    with tempfile.TemporaryDirectory() as folder:
        found = train(Path(folder) / "run", row.ranks, row.all_settings | given)
    cell.write_text(json.dumps(found))


def read(folder: Path, row: Row, rate: float | None) -> list[dict]:
    """The summaries of the seeds of a row that are there."""
    files = [row.cell(folder, rate, seed) for seed in range(100)] if rate else []
    return [json.loads(file.read_text()) for file in files if file.exists()]


def line(row: Row, rate: float, summaries: list[dict]) -> dict[str, object]:
    """A line of the table."""
    scores = [{"P@1": last["score"]["score"], **last["score"]["more"]} for last in (one["last"] for one in summaries)]
    first = summaries[0]["last"]
    return {
        "method": row.name,
        "loss": row.loss,
        "hidden": row.hidden,
        "rate": rate,
        "seeds": len(summaries),
        **{name: _spread([score[name] for score in scores]) for name in ("P@1", "P@3", "P@5", "PSP@1", "PSP@5")},
        "local steps": first["local_steps"],
        "MB sent": f"{first['bytes'] / 1e6:.0f}",
    }


def _spread(values: list[float]) -> str:
    middle = f"{statistics.median(values):.4f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.4f} to {max(values):.4f})"


if __name__ == "__main__":
    main()
