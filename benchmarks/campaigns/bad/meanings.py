"""The right values of a result: what a prepared file must hold, and what a command must have said."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Right = Callable[[Path, str], str]


def differ(given: Any, expected: Any, what: str) -> str:
    """Where two values are not the same, in words; else empty."""
    return "" if given == expected else f"{what} {given!r}, not {expected!r}"


def says(*words: str) -> Right:
    """The output has each of these words."""

    def right(folder: Path, out: str) -> str:
        squeezed = "".join(out.split())  # a terminal breaks lines
        missing = [word for word in words if "".join(word.split()) not in squeezed]
        return f"it does not say {missing}" if missing else ""

    return right


def answers(reference: Path) -> Right:
    """The predictions in out.csv are those of a reference."""
    return lambda folder, out: differ((folder / "out.csv").read_text(), reference.read_text(), "answers")


def counts(split: Mapping[str, int], classes: Sequence[str] | None = None, left_out: int = 0) -> Right:
    """The output of --json has these examples of each split, these classes, and so many files left out."""

    def right(folder: Path, out: str) -> str:
        report = json.loads(out)
        wrong = differ(report["counts"], dict(split), "counts")
        if classes is not None:
            wrong = wrong or differ(sorted(report["classes"]), sorted(classes), "classes")
        told = [int(note["text"].split(" ")[0].replace(",", "")) for note in report["left_out"]]
        return wrong or ("" if sum(told) >= left_out else f"{left_out} are missing, left out {report['left_out']}")

    return right


def examples(labels: Sequence[str], x: np.ndarray, spread: bool = False) -> Right:
    """out.h5 has these examples [n, ...], of these classes, in any order; the first feature tells them apart.

    ``spread``: training sees each column that varies with the deviation 1.
    """
    x = np.asarray(x, np.float64).reshape(len(x), -1)

    def right(folder: Path, out: str) -> str:
        from istmpi.data.sources import open_dataset

        data = open_dataset(str(folder / "out.h5"))
        wrong = differ(data.task, "classification", "task") or differ(
            sorted(data.classes), sorted(set(labels)), "classes"
        )
        given, names = _stored(data)
        wrong = wrong or differ(given.shape, x.shape, "examples")
        if wrong:
            return wrong
        mine, other = np.argsort(given[:, 0], kind="stable"), np.argsort(x[:, 0], kind="stable")
        scale = np.ptp(x, axis=0) + 1e-3 * (np.ptp(x, axis=0) == 0)
        far = np.abs(given[mine] - x[other]) > 1e-3 * scale
        if far.any():
            row, column = np.argwhere(far)[0]
            return f"feature {column} {given[mine][row, column]:.17g}, not {x[other][row, column]:.17g}"
        deviation = data.train.batch(np.arange(len(data.train))).inputs[0].numpy().reshape(len(data.train), -1).std(0)
        if spread and not (np.abs(deviation - 1) < 0.01)[np.ptp(x, axis=0) > 0].all():
            return f"deviations in training {deviation.tolist()}"
        return differ([names[place] for place in mine], [labels[place] for place in other], "labels")

    return right


def _stored(data: Any) -> tuple[np.ndarray, list[str]]:
    """All examples of a data set as the source has them, and the names of their classes."""
    x, names = [], []
    for split in data.splits.values():
        rows = split.with_normalisation(None).batch(np.arange(len(split))).inputs[0].numpy()
        x.append(rows.reshape(len(rows), -1).astype(np.float64) + (0 if data.offset is None else data.offset))
        names += [data.classes[label] for label in split.labels()]
    return np.concatenate(x), names


def sparse_rows(rows: Sequence[tuple[Sequence[int], Mapping[int, float]]]) -> Right:
    """out.h5 has these rows, each labels and values by features counted from 0, in any order."""

    def right(folder: Path, out: str) -> str:
        from istmpi.data.sources import open_dataset

        given: Counter[str] = Counter()
        for split in open_dataset(str(folder / "out.h5")).splits.values():
            for place in range(len(split)):
                row, targets = (of.take(np.array([place])) for of in (split.rows, split.targets))
                values = zip(*(array.tolist() for array in row.arrays))
                given[_row(targets.arrays[0].tolist(), dict(values))] += 1
        expected = Counter(_row(labels, values) for labels, values in rows)
        return differ(min(given - expected, default=""), min(expected - given, default=""), "rows")

    return right


def _row(labels: Sequence[int], values: Mapping[int, float]) -> str:
    return f"{sorted(set(labels))} {sorted((column, round(float(value), 4)) for column, value in values.items())}"
