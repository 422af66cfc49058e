"""How many collective calls wait for each other: on a link with a long delay, each of them costs a round trip."""

import pytest
import torch
from small import trained

from istmpi.checkpoint.saver import commit
from istmpi.evaluation.fitting import HALVINGS, fit_temperature, list_middles


def count_calls(comm, work):
    """Collective calls of this rank, on all communicators, while it does some work."""
    before = sum(comm.whereabouts.arrivals.values())
    work()
    return sum(comm.whereabouts.arrivals.values()) - before


@pytest.mark.parametrize("method, more", [("local-sgd", 0), ("ist", 2)])
def test_an_evaluation(comm, method, more):
    """One call adds up the scores. A batch normalisation takes three, and dealt weights two: to owners, and to all."""
    training, _ = trained(comm, method__name=method)
    norms = len(training.architecture.batch_norms)
    assert count_calls(comm, training.evaluate) == 1 + 3 * norms + bool(norms) + more * (comm.size > 1)


def test_a_checkpoint(comm, shared_tmp):
    """Checksums go to rank 0 in two calls; one has the file's layout, and two say that all parts and the name are there."""
    training, _ = trained(comm, method__name="local-sgd")
    header, pieces = training.state()
    path = shared_tmp / "network.h5"
    assert count_calls(comm, lambda: commit(path, header, pieces, "direct", comm)) == 5
    assert path.exists()


@pytest.mark.parametrize("examples, most", [(40, 9), (2**15, 41)])
def test_a_temperature_is_that_of_one_halving_at_a_time(examples, most):
    """With few logits, several halvings share a message; the bits are those of 40 halvings, one after the other."""
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(examples, 10, generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (examples,), generator=generator)
    calls = []

    def add_up(values):
        calls.append(len(values))
        return values

    fitted = fit_temperature(logits, labels, add_up)
    assert len(calls) == most
    smoothing = 1 / (examples + 2)
    targets = torch.full_like(logits, smoothing / 10)
    targets[torch.arange(examples), labels] += 1 - smoothing
    low, high = -torch.tensor(20.0, dtype=torch.float64).log().item(), -torch.tensor(0.05).double().log().item()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        odds = torch.softmax(logits * torch.tensor(middle, dtype=torch.float64).exp(), dim=1)
        if ((odds - targets) * logits).sum() > 0:
            high = middle
        else:
            low = middle
    assert fitted == pytest.approx(torch.tensor(-(low + high) / 2).double().exp().item(), rel=1e-9)
    assert len(list_middles(0.0, 1.0, 3)) == 7
