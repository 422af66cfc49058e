"""Sparse rows in, the labels that are ranked first out, a line for each row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from istmpi.data.sparse.split import Ragged
from istmpi.multilabel import ranked_first

if TYPE_CHECKING:
    from istmpi.deploy.network import CalibratedNetwork

MOST_LOGITS = 2**25
"""In memory at a time."""


def ranked_lines(
    network: CalibratedNetwork, blocks: Iterable[Ragged], labels: int, top: int, loss: str, form: str
) -> Iterator[str]:
    """The ``top`` labels of each row and their odds, from the largest: ``csv`` with a line of names, or ``jsonl``.

    Trained with ``softmax`` the odds of all labels sum to 1, with ``binary`` each is for itself.
    """
    top, step, number = min(top, labels), max(MOST_LOGITS // labels, 1), 0
    names = [f"{what}_{place}" for place in range(1, top + 1) for what in ("label", "score")]
    header: list[list[str]] = [["row", *names]]
    for rows in blocks:
        for start in range(0, len(rows), step):
            logits = network.of_rows(rows.take(np.arange(start, min(start + step, len(rows)))))
            values, found = ranked_first(logits, top)
            odds = (values - logits.logsumexp(dim=1, keepdim=True)).exp() if loss == "softmax" else values.sigmoid()
            text = io.StringIO()
            lines = csv.writer(text, lineterminator="\n")
            if form == "csv":
                lines.writerows(header)
                header = []
            for labels_of, odds_of in zip(found.tolist(), odds.numpy()):
                scores = [float(str(one)) for one in odds_of]
                if form == "csv":
                    lines.writerow([number, *(item for pair in zip(labels_of, scores) for item in pair)])
                else:
                    text.write(json.dumps({"row": number, "labels": labels_of, "scores": scores}) + "\n")
                number += 1
            yield text.getvalue()
