"""Losses and scores of rows that have any number of labels among very many.

The loss ``softmax`` is the mean over an example's labels of the cross-entropy among all labels. The
loss ``binary`` is the sum over all labels of the cross-entropy of each label alone.

Both losses of an example are ``total(logits) - sum over its labels of weight * logit``. So a few
numbers hold the contribution of a part of the labels, and ranks send no logits (`compute_parts`).

PSP@k is a precision at k in which a hit counts 1 / propensity of its label (the odds that a true
label is noted), divided by the best ranking's value (Jain, Prabhu and Varma, KDD 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

AT = (1, 3, 5)
TOP = max(AT)


@dataclass(frozen=True)
class Labels:
    """Any number of labels for each example.

    Example i has ``columns[offsets[i] : offsets[i + 1]]``.
    """

    offsets: torch.Tensor
    columns: torch.Tensor
    """Label numbers of all examples, int64; ``offsets`` is ``[b + 1]``."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> torch.Tensor:
        """The number of labels of each example: ``[b]`` int64."""
        return self.offsets.diff()

    @property
    def rows(self) -> torch.Tensor:
        """The number of the example of each of ``columns``, int64."""
        import torch

        examples = torch.arange(len(self), device=self.offsets.device)
        return torch.repeat_interleave(examples, self.counts)

    def to(self, device: torch.device | str) -> Labels:
        return Labels(self.offsets.to(device), self.columns.to(device))


def weigh_labels(targets: Labels, loss: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float64 weights: one for each true label's logit, one for each example's total."""
    import torch

    counts = targets.counts.double()
    if loss == "binary":
        return torch.ones_like(targets.columns, dtype=torch.float64), torch.ones_like(counts)
    # An example without labels has no part in the mean.
    return counts.clamp(min=1).reciprocal()[targets.rows], (counts > 0).double()


def compute_totals(logits: torch.Tensor, loss: str) -> torch.Tensor:
    """Return the total of each example, ``[b]``, over the labels of ``logits``, ``[b, n]``: its
    log-sum-exp (softmax), or its sum of softplus (binary)."""
    from torch.nn import functional

    if loss == "softmax":
        return logits.logsumexp(dim=1)
    return functional.softplus(logits).sum(dim=1)


def combine_totals(totals: torch.Tensor, loss: str) -> torch.Tensor:
    """Combine totals of parts of the labels, ``[parts, b]``, into those of all, ``[b]``."""
    if loss == "softmax":
        return totals.logsumexp(dim=0)
    return totals.sum(dim=0)


def compute_losses(logits: torch.Tensor, targets: Labels, loss: str) -> torch.Tensor:
    """Return the loss of each example, ``[b]``. ``logits``: ``[b, labels]``, of all labels."""
    weights, shares = (values.to(logits.dtype) for values in weigh_labels(targets, loss))
    products = weights * logits[targets.rows, targets.columns]
    positive = logits.new_zeros(len(logits)).index_add(0, targets.rows, products)
    return shares * compute_totals(logits, loss) - positive


def compute_parts(logits: torch.Tensor, first: int, targets: Labels, loss: str) -> np.ndarray:
    """Return the contributions of some labels to each example, ``[b, 2 + 2 * TOP]`` float64.

    The labels are ``first`` to ``first + n - 1``, with logits ``[b, n]``. A contribution is the
    total; the weighted sum of true labels' logits; the top logits; their labels. Unused places are
    -inf.
    """
    import torch

    # In float64, so that sums over parts of the labels agree with the sum over all.
    logits = logits.double()
    count, labels = logits.shape
    numbers = torch.full((count, 2 + 2 * TOP), -torch.inf, dtype=torch.float64)
    if labels:
        weights, _ = weigh_labels(targets, loss)
        inside = (targets.columns >= first) & (targets.columns < first + labels)
        rows = targets.rows[inside]
        columns = targets.columns[inside] - first
        positive = torch.zeros(count, dtype=torch.float64)
        numbers[:, 0] = compute_totals(logits, loss)
        numbers[:, 1] = positive.index_add(0, rows, weights[inside] * logits[rows, columns])
        values, places = rank_first(logits, min(TOP, labels))
        numbers[:, 2 : 2 + values.shape[1]] = values
        numbers[:, 2 + TOP : 2 + TOP + values.shape[1]] = places + first
    else:
        # The total of no labels: the logarithm of an empty sum, or an empty sum.
        numbers[:, 0] = -torch.inf if loss == "softmax" else 0.0
        numbers[:, 1] = 0.0
    return numbers.numpy()


def rank_first(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each example's largest logits in order, and their places, ``[b, count]``.

    The lower place wins a tie, which topk leaves open.
    """
    import torch

    values, places = logits.topk(count, dim=1)
    least = values[:, -1:]
    tied = (logits >= least).sum(dim=1) > count
    for row in tied.nonzero()[:, 0].tolist():
        larger = (logits[row] > least[row]).nonzero()[:, 0]
        equal = (logits[row] == least[row]).nonzero()[:, 0]
        places[row] = torch.cat([larger, equal])[:count]
    # By place, and then by value without changing the order of equal ones.
    order = places.argsort(dim=1)
    places = places.gather(1, order)
    values = logits.gather(1, places)
    order = values.argsort(dim=1, descending=True, stable=True)
    return values.gather(1, order), places.gather(1, order)


class Ranking:
    """Sums over examples, for loss and `scores`.

    ``propensities``: a and b of `inverse_propensities`.
    """

    size = 2 + 3 * len(AT)
    """The number of sums.

    They are loss, examples and, for each k, hits, their inverse propensities, and those of the best
    ranking.
    """

    def __init__(self, counts: np.ndarray, rows: int, propensities: tuple[float, float], loss: str):
        """``counts``: the number of training rows, out of ``rows``, with each label."""
        self._inverse = inverse_propensities(counts, rows, *propensities)
        self._loss = loss

    def sums(self, parts: Sequence[np.ndarray], targets: Labels) -> np.ndarray:
        """Return the sums over a batch, ``[size]`` float64. ``parts``: the results of
        `compute_parts` for all labels."""
        import torch

        numbers = np.stack(parts)
        totals = combine_totals(torch.from_numpy(numbers[:, :, 0]), self._loss).numpy()
        positive = numbers[:, :, 1].sum(axis=0)
        _, shares = weigh_labels(targets, self._loss)
        best = _best_labels(numbers)
        is_label = np.isfinite(best)
        ranked = np.where(is_label, best, 0).astype(np.int64)
        examples = targets.rows.numpy()
        columns = targets.columns.numpy()
        # A number for each example with one of its labels, to look up a whole batch at once.
        pairs = examples * len(self._inverse) + columns
        hit = is_label & np.isin(np.arange(len(best))[:, None] * len(self._inverse) + ranked, pairs)
        gains = np.where(hit, self._inverse[ranked], 0.0)
        inverse = self._inverse[columns]
        largest = inverse[np.lexsort((-inverse, examples))]  # each example's, largest first
        places = np.arange(len(columns)) - targets.offsets.numpy()[examples]
        # ``places``: the rank of each of ``largest`` within its example, from 0.
        sums = [(shares.numpy() * totals - positive).sum(), len(best)]
        for k in AT:
            sums += [hit[:, :k].sum(), gains[:, :k].sum(), largest[places < k].sum()]
        return np.array(sums, dtype=np.float64)

    @staticmethod
    def scores(sums: np.ndarray) -> dict[str, float]:
        """Return P@k and PSP@k by name, from the sums over all examples of a split."""
        hits, gains, largest = (sums[2 + number :: 3] for number in range(3))
        scores = {f"P@{k}": float(hit / k / sums[1]) for k, hit in zip(AT, hits)}
        for k, gain, most_gain in zip(AT, gains, largest):
            # Without a true label in the whole split, the best ranking gains nothing.
            scores[f"PSP@{k}"] = float(gain / max(most_gain, 1e-300))
        return scores


def _best_labels(numbers: np.ndarray) -> np.ndarray:
    """Return each example's `TOP` labels over all parts, ``[b, TOP]``: -inf in unused places.

    ``numbers``: the stacked results of `compute_parts`, ``[parts, b, 2 + 2 * TOP]``.
    """
    values = np.concatenate(numbers[:, :, 2 : 2 + TOP], axis=1)
    labels = np.concatenate(numbers[:, :, 2 + TOP :], axis=1)
    # Among equal logits the lower label comes first; unused places come last.
    in_order = np.where(np.isfinite(labels), labels, np.inf)
    order = np.lexsort((in_order, -values), axis=1)[:, :TOP]
    return np.take_along_axis(labels, order, axis=1)


def inverse_propensities(counts: np.ndarray, rows: int, a: float, b: float) -> np.ndarray:
    """Return each label's 1 / propensity.

    It is ``1 + max(log(rows) - 1, 0) * ((b + 1) / (counts + b)) ** a``.
    """
    c = (log(max(rows, 2)) - 1) * (b + 1) ** a
    return 1 + max(c, 0) * (counts + b) ** -a
