"""The tables of `benchmarks.controls.convolutions`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.controls.convolutions_plan import (
    LOCAL_SGD,
    ONE_RANK,
    RATES,
    SEEDS,
    Cell,
    Row,
    best_rate,
    rate_rows,
    rows,
)
from benchmarks.reporting import report
from istmpi.cli.networks import describe_run
from istmpi.cli.run_options import resolve
from istmpi.cost import cost

Record = Callable[[Cell], dict[str, Any] | None]

NOTES = (
    "Accuracy: of the full network on the 10,000 test images after the last round, mean over the seeds; spread: the "
    "largest less the smallest. To one rank, to local SGD: mean difference in points, at the seeds that both have. "
    "All take 800 local steps of 64 images on each rank, in rounds of 20 where nothing else is said, so that P ranks "
    "consume P times as many images as one. FLOPs a step: products and convolutions of one rank's local step, of the "
    "whole network's; those of local SGD at the end are not among them. MB: what all ranks handed to MPI in the whole "
    "run. Momentum 0.9, which starts anew in every round but on one rank; a cosine to 0; random crops (2) and flips; "
    "dropout 0.2 in VGG: none of this was tuned. Tuned was one rate for each family, for the mean of the methods "
    "listed above, on seed 0 and 300 steps, so nobody has a rate of his own. A narrow network has a P-th of "
    "the widths that are dealt, and so a subnet's FLOPs. VGG is that with 11 layers: thin has channels 16, 32, 64, "
    "64, 64 and dense layers of 512, 512; ResNet has 1, 1 and 5 blocks of "
    "16, 32 and 64 channels, inner ones as many."
)


def write(record: Record, data: Path, folder: Path) -> None:
    """Write the report on the cells that there are, which were trained on these data."""
    found = {row: [one for seed in SEEDS if (one := record(Cell(row, seed)))] for row in rows()}
    there = sorted((row for row in rows() if found[row]), key=lambda row: (row.network.title, row.ranks))
    lines = [_line(row, found, data) for row in there]
    if not lines:
        print("there are no cells yet")
        return
    title = "What to deal out of a convolutional network: CIFAR-10 at 16 x 16, one training image in five"
    report("convolutions", title, lines, _rates(record) + NOTES, folder=folder)


def _line(row: Row, found: dict[Row, list[dict[str, Any]]], data: Path) -> dict[str, str | int]:
    """A row's line: means over its seeds, and what it has of local SGD on as many ranks at the same seeds."""
    accuracies = _accuracies(found[row])
    bytes_sent = found[row][0]["last"]["bytes"]
    beside = {one.method: one for one in found if one.network is row.network and one.ranks in (1, row.ranks)}
    alone, local_sgd = (found[beside[name]] if name in beside else [] for name in (ONE_RANK, LOCAL_SGD))
    share = flops(row, data) / flops(beside[ONE_RANK], data)
    return {
        "network": row.network.title,
        "method": row.method,
        "ranks": row.ranks,
        "seeds": len(accuracies),
        "accuracy": f"{statistics.mean(accuracies):.4f}",
        "spread": f"{max(accuracies) - min(accuracies):.4f}" if len(accuracies) > 1 else "",
        "to one rank": _difference(found[row], alone),
        "to local SGD": _difference(found[row], local_sgd),
        "FLOPs a step": f"{share:.0%}",
        "MB sent": f"{bytes_sent / 1e6:.1f}",
        "of local SGD's": f"{bytes_sent / local_sgd[0]['last']['bytes']:.1%}" if local_sgd else "",
    }


def flops(row: Row, data: Path) -> float:
    """Those of the products in a rank's local step."""
    words = (*(f"{key}={value}" for key, value in row.settings.items()), f"data.source={data}")
    network = describe_run(resolve("digits", words, {}), None)
    return float(cost(network.run, network.architecture, row.ranks).flops("products")) / row.ranks


def _accuracies(records: list[dict[str, Any]]) -> list[float]:
    return [one["last"]["score"]["score"] for one in records]


def _difference(records: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """The mean difference in points, over the seeds that both have."""
    by_seed = {one["settings"]["train.seed"]: one["last"]["score"]["score"] for one in others}
    differences = [
        one["last"]["score"]["score"] - by_seed[seed]
        for one in records
        if (seed := one["settings"]["train.seed"]) in by_seed
    ]
    return f"{100 * statistics.mean(differences):+.1f}" if differences else ""


def _rates(record: Record) -> str:
    """What the validation split said, and which rate was taken."""

    def accuracy(cell: Cell) -> float | None:
        one = record(cell)
        return one and one["last"]["score"]["score"]

    sentences = []
    for family in dict.fromkeys(row.network.family for row in rate_rows()):
        tried: dict[str, list[str]] = {}
        for row in rate_rows():
            if row.network.family == family:
                score = accuracy(Cell(row, 0))
                tried.setdefault(f"{row.method}, {row.ranks} ranks", []).append(
                    "-" if score is None else f"{score:.3f}"
                )
        said = "; ".join(f"{method} {', '.join(scores)}" for method, scores in tried.items())
        rates = ", ".join(map(str, RATES))
        sentences.append(f"* {family}: at {rates}: {said}. Taken: {best_rate(family, accuracy)}.")
    return "Validation accuracy by learning rate:\n\n" + "\n".join(sentences) + "\n\n"
