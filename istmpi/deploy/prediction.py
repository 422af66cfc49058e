"""Examples in, one line of text for each out; a batch at a time."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from istmpi.data.dense.predict import Block
from istmpi.foreign import printable

if TYPE_CHECKING:
    from istmpi.deploy.network import CalibratedNetwork

BATCH = 256
"""Examples whose activations are in memory at a time."""


class Predicted(NamedTuple):
    """Some examples and what a network says of them."""

    examples: Sequence[str | int]
    outputs: np.ndarray
    """``[b, outputs]``"""
    exits: np.ndarray | None = None
    """At which exit each of them left, from 1, where they may leave early."""


def predict(network: CalibratedNetwork, blocks: Iterable[Block], threshold: float | None = None) -> Iterator[Predicted]:
    """The examples and the network's outputs for them, in order; with a ``threshold`` they may leave early."""
    for names, x in blocks:
        for start in range(0, len(x), BATCH):
            rows = slice(start, start + BATCH)
            if threshold is None:
                yield Predicted(names[rows], network(x[rows]))
            else:
                yield Predicted(names[rows], *network.leaving_early(x[rows], threshold))


def lines(
    predictions: Iterable[Predicted],
    classes: Sequence[str] | None,
    outputs: int,
    all_outputs: bool,
    form: str,
    example: str = "example",
    named: Sequence[str] | None = None,
    top: int | None = None,
) -> Iterator[str]:
    """Text, piece by piece: ``csv`` with a line of names first, or ``jsonl``.

    A classifier's example gets its class, the probability of that class, the exit at which it left where it may leave
    early and, with ``all_outputs``, every output as it leaves the network; otherwise an example gets its outputs. With
    ``top`` it gets so many labels and the probability of each, likeliest first; with 0 those likelier than not.
    ``example``: what it is called. ``named``: what outputs that are no classes are called.
    """
    classes = classes and tuple(map(printable, classes))
    answer = ["class", "probability"] if classes else [] if top is None else ["labels", "probabilities"]
    names = [f"output_{name}" for name in classes or range(outputs)] if all_outputs or not answer else []
    named = tuple(map(printable, named)) if named and classes is None else None
    if named:
        names = [f"output_{name}" if name in (example, "exit") else name for name in named]
    first = True
    for examples, values, exits in predictions:
        early = [] if exits is None else ["exit"]
        header = [example, *answer, *early, *names]
        answers = (_class(row, classes) if top is None else _labels(row, top, form) for row in values)
        rows = [
            [name, *chosen, *([] if exits is None else [int(exits[n])]), *map(_number, row[: len(names)])]
            for n, (name, chosen, row) in enumerate(zip(examples, answers, values))
        ]
        if form == "jsonl":
            yield "".join(_json(dict(zip(header, row)), names, classes or named) + "\n" for row in rows)
            continue
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows] if first else rows)
        first = False
        yield text.getvalue()


def _class(outputs: np.ndarray, classes: Sequence[str] | None) -> list[Any]:
    if classes is None:
        return []
    best = int(outputs.argmax())
    odds = np.exp(outputs.astype(np.float64) - float(outputs[best]))
    return [classes[best], _number(outputs.dtype.type(1 / odds.sum()))]


def _labels(outputs: np.ndarray, top: int, form: str) -> list[Any]:
    order = np.argsort(-outputs, kind="stable")[: top or int((outputs > 0).sum())]
    odds = np.exp(-np.logaddexp(0, -outputs[order].astype(np.float64))).astype(outputs.dtype)
    answer = order.tolist(), [*map(_number, odds)]
    return [*answer] if form == "jsonl" else [";".join(map(str, each)) for each in answer]


def _json(row: dict[str, Any], names: Sequence[str], keys: Sequence[str] | None) -> str:
    outputs = [row.pop(name) for name in names]
    if outputs:
        row["outputs"] = dict(zip(keys, outputs)) if keys else outputs
    return json.dumps(row, ensure_ascii=False)


def _number(value: np.floating) -> float | str:
    number = float(str(value))
    return number if isfinite(number) else str(value)
