"""Examples in, one line of text for each out; a batch at a time."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import Any

import numpy as np

from istmpi.data.inputs import Block
from istmpi.foreign import printable

BATCH = 256
"""Examples whose activations are in memory at a time."""


def predict(network: Callable[[np.ndarray], np.ndarray], blocks: Iterable[Block]) -> Iterator[Block]:
    """The examples' names and the network's outputs ``[b, outputs]``, in order."""
    for names, x in blocks:
        for start in range(0, len(x), BATCH):
            yield names[start : start + BATCH], network(x[start : start + BATCH])


def lines(
    predictions: Iterable[Block], classes: Sequence[str] | None, outputs: int, all_outputs: bool, form: str
) -> Iterator[str]:
    """Text, piece by piece: ``csv`` with a line of names first, or ``jsonl``.

    A classifier's example gets its class, the probability of that class and, with ``all_outputs``, every output as it
    leaves the network; otherwise an example gets its outputs.
    """
    classes = classes and tuple(map(printable, classes))
    names = [f"output_{name}" for name in classes or range(outputs)] if all_outputs or classes is None else []
    header = ["example", *(["class", "probability"] if classes else []), *names]
    first = True
    for examples, values in predictions:
        rows = [[name, *_class(row, classes), *map(_number, row[: len(names)])] for name, row in zip(examples, values)]
        if form == "jsonl":
            yield "".join(_json(dict(zip(header, row)), names, classes) + "\n" for row in rows)
            continue
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows] if first else rows)
        first = False
        yield text.getvalue()


def _class(outputs: np.ndarray, classes: Sequence[str] | None) -> list[Any]:
    """The likeliest class and its probability."""
    if classes is None:
        return []
    best = int(outputs.argmax())
    odds = np.exp(outputs.astype(np.float64) - float(outputs[best]))
    return [classes[best], _number(outputs.dtype.type(1 / odds.sum()))]


def _json(row: dict[str, Any], names: Sequence[str], classes: Sequence[str] | None) -> str:
    """One example as an object, its outputs as one inside it, or as a list."""
    outputs = [row.pop(name) for name in names]
    if outputs:
        row["outputs"] = dict(zip(classes, outputs)) if classes else outputs
    return json.dumps(row, ensure_ascii=False)


def _number(value: np.floating) -> float | str:
    """The shortest decimals that read back to the same number of its type."""
    number = float(str(value))
    return number if isfinite(number) else str(value)
