"""Predictions as text, a line for each example, a batch at a time."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from istmpi.data.decoder import Block
from istmpi.data.graph.split import GraphSplit
from istmpi.data.hdf5 import open_prepared
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import SUFFIXES
from istmpi.deploy.network import CalibratedNetwork
from istmpi.errors import DataError
from istmpi.foreign import printable
from istmpi.multilabel import ranked_first
from istmpi.tasks import TASKS

BATCH = 256
"""The most examples that are predicted at a time."""
MOST_LOGITS = 2**25
"""Logits of ranked labels that are in memory at a time."""


def predict(network: CalibratedNetwork, blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks with a network's outputs, ``[b, outputs]``, in place of x."""
    for names, x, true in blocks:
        for start in range(0, len(x), BATCH):
            rows = slice(start, start + BATCH)
            yield names[rows], network(x[rows]), true and true[rows]


def lines(
    predictions: Iterable[Block],
    classes: Sequence[str] | None,
    outputs: int,
    all_outputs: bool,
    form: str,
    example: str = "example",
    named: Sequence[str] | None = None,
    top: int | None = None,
) -> Iterator[str]:
    """Yield predictions as text, block by block. ``form``: ``csv``, with a first line of column
    names, or ``jsonl``.

    ``top``: the number of likeliest labels to give; 0 gives all labels above 1/2, None the
    likeliest class, or the outputs of a network without classes. ``all_outputs``: True adds all
    outputs. ``example``: the name of the first column. ``named``: the names of outputs that are not
    classes.
    """
    classes = classes and tuple(map(printable, classes))
    answer = (
        ["class", "probability"] if classes else [] if top is None else ["labels", "probabilities"]
    )
    names = (
        [f"output_{name}" for name in classes or range(outputs)]
        if all_outputs or not answer
        else []
    )
    keys = classes
    if named and classes is None:
        keys = tuple(map(printable, named))
        names = [f"output_{name}" if name == example else name for name in keys]
    first = True
    for examples, values, true in predictions:
        rest = [[printable(its)] for its in true] if classes and true else [[]] * len(values)
        header = [example, *answer, *["true_class"] * bool(classes and true), *names]
        answers = (
            _class(row, classes) if top is None else _labels(row, top, form) for row in values
        )
        rows = [
            [name, *chosen, *its, *map(_number, row[: len(names)])]
            for name, chosen, row, its in zip(examples, answers, values, rest)
        ]
        if form == "jsonl":
            yield "".join(_json(dict(zip(header, row)), names, keys) for row in rows)
        else:
            yield _csv([header, *rows] if first else rows)
        first = False


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


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
    return json.dumps(row, ensure_ascii=False) + "\n"


def _number(value: np.floating) -> float | str:
    number = float(str(value))
    return number if isfinite(number) else str(value)


def node_lines(
    network: CalibratedNetwork,
    source: str,
    features: int,
    classes: Sequence[str] | None,
    outputs: int,
    all_outputs: bool,
    form: str,
) -> Iterator[str]:
    """Yield blocks of lines, as `lines` does: a line for every node of the prepared graph
    ``source``.

    Raises DataError unless ``source`` is a prepared graph with ``features`` features.
    """
    logits = network.of_graph(_graph(source, features))
    if classes is None:
        logits = 1 / (1 + np.exp(-logits))
    parts = (
        range(start, min(start + BATCH, len(logits))) for start in range(0, len(logits), BATCH)
    )
    predictions = ((part, logits[part.start : part.stop], None) for part in parts)
    return lines(predictions, classes, outputs, all_outputs, form, "node")


def _graph(source: str, features: int) -> GraphSplit:
    path = Path(source)
    if not path.is_file() or path.suffix not in SUFFIXES:
        raise DataError(
            f"{path} is not a prepared graph. Make it: istmpi prepare graph SRC GRAPH.h5"
        )
    data = open_prepared(path)
    if not TASKS[data.task].of_nodes:
        raise DataError(f"{path} is for {data.task}, but this network takes a graph. Give a graph.")
    if data.features != features:
        raise DataError(
            f"{path} has {data.features:,} features per node, but the network takes {features:,}. Give as many."
        )
    return data.test


def ranked_lines(
    network: CalibratedNetwork,
    blocks: Iterable[Ragged],
    labels: int,
    top: int,
    loss: str,
    form: str,
) -> Iterator[str]:
    """Yield lines of each row's ``top`` labels with probabilities, the largest first. ``form``: as
    for `lines`.

    Probabilities of all labels sum to 1 after training with ``softmax``; with ``binary`` they are
    independent.
    """
    top, step, number = min(top, labels), max(MOST_LOGITS // labels, 1), 0
    if form == "csv":
        yield _csv(
            [
                [
                    "row",
                    *(
                        f"{what}_{place}"
                        for place in range(1, top + 1)
                        for what in ("label", "score")
                    ),
                ]
            ]
        )
    for rows in blocks:
        for start in range(0, len(rows), step):
            logits = network.of_rows(rows.take(np.arange(start, min(start + step, len(rows)))))
            values, labels_of = ranked_first(logits, top)
            odds = (
                (values - logits.logsumexp(dim=1, keepdim=True)).exp()
                if loss == "softmax"
                else values.sigmoid()
            )
            answers = [
                (at, its, [float(str(odd)) for odd in scores])
                for at, (its, scores) in enumerate(zip(labels_of.tolist(), odds.numpy()), number)
            ]
            if form == "csv":
                yield _csv(
                    [at, *chain.from_iterable(zip(its, scores))] for at, its, scores in answers
                )
            else:
                yield "".join(
                    json.dumps(dict(zip(("row", "labels", "scores"), row))) + "\n"
                    for row in answers
                )
            number += len(answers)
