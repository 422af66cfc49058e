"""Predictions as text, a line for each example, a batch at a time."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from istmpi.data.decoder import Block
from istmpi.data.graph.split import GraphSplit
from istmpi.data.hdf5 import open_prepared
from istmpi.data.sparse.split import Ragged
from istmpi.data.writer import SUFFIXES
from istmpi.deploy.network import CalibratedNetwork
from istmpi.errors import DataError
from istmpi.foreign import printable
from istmpi.multilabel import rank_first

BATCH = 256
"""The most examples that are predicted at a time."""
MOST_LOGITS = 2**25
"""Logits of ranked labels that are in memory at a time."""


class Predictions(NamedTuple):
    names: Sequence[str | int]
    """The names of examples."""
    values: np.ndarray
    """Their outputs ``[b, outputs]``."""
    true: Sequence[str] | None
    """Their true classes; None if unknown."""
    added: Sequence[Sequence[Any]] = ()
    """Further cells of each example; empty for none."""


def split_blocks(
    blocks: Iterable[Block],
) -> Iterator[tuple[Sequence[str | int], np.ndarray, Sequence[str] | None]]:
    """Yield names, examples and true classes of at most `BATCH` examples."""
    for names, x, true in blocks:
        assert names is not None, "readers name or number the examples to predict"
        for start in range(0, len(x), BATCH):
            rows = slice(start, start + BATCH)
            yield names[rows], x[rows], true and true[rows]


def predict(network: CalibratedNetwork, blocks: Iterable[Block]) -> Iterator[Predictions]:
    """Yield blocks with a network's outputs in place of x."""
    for names, x, true in split_blocks(blocks):
        yield Predictions(names, network(x), true)


def lines(
    predictions: Iterable[Predictions],
    classes: Sequence[str] | None,
    outputs: int,
    all_outputs: bool,
    form: str,
    example: str = "example",
    named: Sequence[str] | None = None,
    top: int | None = None,
    added: Sequence[str] = (),
) -> Iterator[str]:
    """Yield predictions as text, block by block.

    ``form``: ``csv``, with a first line of column names, or ``jsonl``. ``top``: the number of
    likeliest labels to give; 0 gives all labels above 1/2, None the likeliest class, or the outputs
    of a network without classes. ``all_outputs``: True adds all outputs. ``example``: the name of
    the first column. ``named``: the names of outputs that are not classes. ``added``: the names of
    the blocks' further cells.
    """
    if classes is not None:
        classes = tuple(map(printable, classes))
    answer = _name_answer(classes, top)
    keys: Sequence[str] | None = classes
    names: list[str] = []
    if named and classes is None:  # no name may equal that of the first column
        keys = tuple(map(printable, named))
        names = [f"output_{name}" if name == example else name for name in keys]
    elif all_outputs or not answer:
        names = [f"output_{name}" for name in classes or range(outputs)]
    is_first = True
    for block in predictions:
        rows = _make_rows(block, classes, top, form, len(names))
        true = ["true_class"] * bool(classes and block.true)
        header = [example, *answer, *added, *true, *names]
        if form == "jsonl":
            yield "".join(_json(dict(zip(header, row)), names, keys) for row in rows)
        else:
            yield _csv([header, *rows] if is_first else rows)
        is_first = False


def _make_rows(
    block: Predictions, classes: Sequence[str] | None, top: int | None, form: str, outputs: int
) -> list[list[Any]]:
    """Return the cells of each example of a block, with the first ``outputs`` outputs."""
    true = block.true
    rows = []
    for place, (name, outputs_of_row) in enumerate(zip(block.names, block.values)):
        cells = [name, *_answer(outputs_of_row, classes, top, form)]
        if block.added:
            cells += block.added[place]
        if classes and true:
            cells.append(printable(true[place]))
        rows.append([*cells, *map(_number, outputs_of_row[:outputs])])
    return rows


def _name_answer(classes: Sequence[str] | None, top: int | None) -> list[str]:
    if classes:
        return ["class", "probability"]
    if top is not None:
        return ["labels", "probabilities"]
    return []


def _answer(
    row: np.ndarray, classes: Sequence[str] | None, top: int | None, form: str
) -> list[Any]:
    """Return the values of the columns that `_name_answer` names."""
    if top is not None:
        return _labels(row, top, form)
    if classes is None:
        return []
    return _class(row, classes)


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _class(outputs: np.ndarray, classes: Sequence[str]) -> list[Any]:
    """Return the likeliest class, and its softmax probability."""
    best = int(outputs.argmax())
    # Without the largest output, no exponential is too large for a float.
    odds = np.exp(outputs.astype(np.float64) - float(outputs[best]))
    return [classes[best], _number(outputs.dtype.type(1 / odds.sum()))]


def _labels(outputs: np.ndarray, top: int, form: str) -> list[Any]:
    """Return the cells of the likeliest labels and their probabilities; ``top`` 0: above 1/2."""
    # A probability is above 1/2 where its logit is above 0.
    count = top or int((outputs > 0).sum())
    order = np.argsort(-outputs, kind="stable")[:count]
    # The sigmoid, in a form in which no exponential is too large for a float.
    odds = np.exp(-np.logaddexp(0, -outputs[order].astype(np.float64))).astype(outputs.dtype)
    labels = order.tolist()
    probabilities = [*map(_number, odds)]
    if form == "jsonl":
        return [labels, probabilities]
    # A cell of CSV holds one text.
    return [";".join(map(str, labels)), ";".join(map(str, probabilities))]


def _json(row: dict[str, Any], names: Sequence[str], keys: Sequence[str] | None) -> str:
    """Return a line of JSON. ``names``: columns of outputs. ``keys``: their keys; None: a list."""
    # In JSON the outputs are one value, an object or a list, instead of columns.
    outputs = [row.pop(name) for name in names]
    if outputs:
        row["outputs"] = dict(zip(keys, outputs)) if keys else outputs
    return json.dumps(row, ensure_ascii=False) + "\n"


def _number(value: np.floating) -> float | str:
    # By its text: as many digits as the type has, and not those of its double.
    number = float(str(value))
    return number if isfinite(number) else str(value)


def write_node_lines(
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
    logits = network.compute_graph(_graph(source, features))
    if classes is None:
        # Without classes, a node has any number of labels, each with its own probability.
        logits = 1 / (1 + np.exp(-logits))

    def predictions() -> Iterator[Predictions]:
        for start in range(0, len(logits), BATCH):
            stop = min(start + BATCH, len(logits))
            yield Predictions(range(start, stop), logits[start:stop], None)

    return lines(predictions(), classes, outputs, all_outputs, form, "node")


def _graph(source: str, features: int) -> GraphSplit:
    """Return the nodes of a prepared graph. Raises DataError for other data or features."""
    path = Path(source)
    if not path.is_file() or path.suffix not in SUFFIXES:
        raise DataError(
            f"{path} is not a prepared graph. Make it: istmpi prepare graph SRC GRAPH.h5"
        )
    data = open_prepared(path)
    if not isinstance(data.test, GraphSplit):
        raise DataError(f"{path} is for {data.task}, but this network takes a graph. Give a graph.")
    if data.features != features:
        raise DataError(
            f"{path} has {data.features:,} features per node, but the network takes {features:,}. "
            "Give as many."
        )
    return data.test


def write_ranked_lines(
    network: CalibratedNetwork,
    blocks: Iterable[Ragged],
    labels: int,
    top: int,
    form: str,
) -> Iterator[str]:
    """Yield lines of each row's ``top`` labels with probabilities, the largest first.

    ``form``: as for `lines`. Probabilities of all labels sum to 1 after training with ``softmax``;
    with ``binary`` they are independent.
    """
    top = min(top, labels)
    if form == "csv":
        yield _csv([_name_ranks(top)])
    # A row has a logit for each of very many labels.
    step = max(MOST_LOGITS // labels, 1)
    number = 0
    for rows in blocks:
        for start in range(0, len(rows), step):
            part = rows.take(np.arange(start, min(start + step, len(rows))))
            ranked, scores = _rank(network.compute_rows(part), top, network.label_loss)
            numbers = range(number, number + len(part))
            yield _write_ranked(numbers, ranked, scores, form)
            number += len(part)


def _name_ranks(top: int) -> list[str]:
    columns = ["row"]
    for place in range(1, top + 1):
        columns += [f"label_{place}", f"score_{place}"]
    return columns


def _rank(logits: torch.Tensor, top: int, loss: str) -> tuple[list[list[int]], list[list[float]]]:
    """Return the ``top`` labels of each row of ``logits`` ``[b, labels]``, and their probabilities,
    the largest first."""
    values, ranked = rank_first(logits, top)
    if loss == "softmax":
        odds = (values - logits.logsumexp(dim=1, keepdim=True)).exp()
    else:
        odds = values.sigmoid()
    scores = []
    for odds_of_row in odds.numpy():
        # By its text, as in `_number`.
        scores.append([float(str(value)) for value in odds_of_row])
    return ranked.tolist(), scores


def _write_ranked(
    numbers: Iterable[int],
    ranked: Iterable[Sequence[int]],
    scores: Iterable[Sequence[float]],
    form: str,
) -> str:
    rows = []
    texts = []
    for number, labels_of_row, scores_of_row in zip(numbers, ranked, scores):
        if form == "csv":
            rows.append([number, *chain.from_iterable(zip(labels_of_row, scores_of_row))])
        else:
            row = {"row": number, "labels": labels_of_row, "scores": scores_of_row}
            texts.append(json.dumps(row) + "\n")
    return _csv(rows) if form == "csv" else "".join(texts)
