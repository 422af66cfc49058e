"""The temperature of a classifier: where the cross-entropy is least, as a search over a grid finds it."""

import numpy as np
import pytest
import torch

from istmpi.evaluation.fitting import COLDEST, HOTTEST, fit_temperature


def drawn(seed, hotter, count=400, classes=5):
    """Logits that say how probable the labels are once they are divided by a number."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (count, classes))
    odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([generator.choice(classes, p=row) for row in odds])
    return torch.from_numpy(logits * hotter), torch.from_numpy(labels)


def naive(logits, labels):
    """By the definition, tried on a grid."""
    smoothing, (count, classes) = 1 / (len(labels) + 2), logits.shape
    best = None
    for temperature in np.exp(np.linspace(np.log(COLDEST), np.log(HOTTEST), 801)):
        scaled = logits.numpy() / temperature
        logs = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        total = -(1 - smoothing) * logs[range(count), labels.numpy()].sum() - smoothing / classes * logs.sum()
        best = min(best or (np.inf, 0), (total, temperature))
    return best[1]


@pytest.mark.parametrize("hotter", [0.2, 1, 4])
def test_it_is_what_a_grid_finds(hotter):
    logits, labels = drawn(0, hotter)
    found = fit_temperature(logits, labels, lambda own: own)
    assert found == pytest.approx(naive(logits, labels), rel=1e-2)
    assert found == pytest.approx(hotter, rel=0.2)


def test_it_stays_within_bounds_where_all_are_right_and_where_nothing_is_known():
    right = torch.eye(4, dtype=torch.float64).repeat(50, 1)
    sure = fit_temperature(right, right.argmax(dim=1), lambda own: own)
    assert COLDEST < sure < 0.5  # one of two more would be wrong: not surer than that
    odds = torch.softmax(right / sure, dim=1).max(dim=1).values.mean()
    assert float(odds) == pytest.approx(1 - 1 / 202 * 3 / 4, rel=1e-6)
    assert fit_temperature(right * np.nan, right.argmax(dim=1), lambda own: own) == 1
    guessed = fit_temperature(drawn(2, 1)[0], drawn(3, 1)[1], lambda own: own)
    assert guessed == pytest.approx(HOTTEST, rel=1e-6)
