"""Logits that allow for a rank's own classes: against the formula by hand; refusals; without it nothing changes."""

import numpy as np
import pytest
import torch
from small import own_run, whole
from torch.nn import functional

from istmpi.methods.logit_adjustment import LogitAdjustment
from istmpi.training.loop import Training

BY_LABEL = {"data__placement": "by-label", "data__alpha": 0.2, "train__rounds": 2, "method__local_steps": 3}


def test_logits_are_those_of_a_rank_with_equally_many_of_each_class(comm):
    training = Training(own_run(**BY_LABEL), comm)
    labels = training.batches.labels
    assert len(labels) == training.batches.examples
    logits, targets = torch.randn(6, 10, dtype=torch.float64), torch.from_numpy(labels[:6].astype(np.int64))
    loss = functional.cross_entropy(LogitAdjustment(training.batches, 1.0)(logits), targets)
    counts = torch.tensor([(labels == label).sum() for label in range(10)], dtype=torch.float64)
    weighted = counts * logits.exp()
    by_hand = -(weighted[range(6), targets] / weighted.sum(1)).log().mean()
    assert float(loss) == pytest.approx(float(by_hand))
    several = LogitAdjustment(training.batches, 0.5)([logits, 2 * logits])
    assert torch.allclose(several[1] - 2 * logits, several[0] - logits)


@pytest.mark.parametrize("method", ["ist", "local-sgd"])
def test_it_trains_with_every_method_and_stays_finite(comm, method):
    found = []
    for strength in (0.0, 1.0):
        training = Training(own_run(**BY_LABEL, method__name=method, train__logit_adjustment=strength), comm)
        progress = list(training.rounds())
        assert np.isfinite(progress[-1].loss) and np.isfinite(progress[-1].score.loss)
        found.append(whole(training))
    assert any(not np.array_equal(found[0][name], found[1][name]) for name in found[0])
