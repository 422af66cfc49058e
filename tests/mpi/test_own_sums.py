"""Losses and scores that count tokens: sums and counts give the same numbers for any batch and any number of ranks."""

import numpy as np
import pytest
import torch
from masked_data import FILE, Net, Sequences, sums
from small import own_run, whole

from istmpi.errors import ConfigError, DivergedError
from istmpi.training.loop import Training
from istmpi.training.run import run_training
from istmpi.training.watch import Watch


def masked_run(network, source="splits", **settings):
    names = {"data__source": f"{FILE}:{source}", "model__name": f"{FILE}:{network}"}
    return own_run(**names, optimizer__lr=0.05, train__rounds=2, **settings)


def plain_scores(training, blank=False):
    """The loss and the accuracy of the trained weights over all test targets that count, in plain PyTorch."""
    training.method.publish()
    network = Net().double()
    network.load_state_dict({name: torch.from_numpy(values) for name, values in whole(training).items()})
    items = [Sequences(50, 2, blank)[index] for index in range(50)]
    batch = [torch.stack(part) for part in zip(*items)]
    with torch.no_grad():
        loss, right, count = sums(network(batch[0]), batch)
    return float(loss) / float(count), float(right) / float(count)


@pytest.mark.ranks(also=1)
@pytest.mark.parametrize("network, source, batch", [("Pairs", "blank", 7), ("Named", "splits", 1)])
def test_sums_and_counts_give_the_score_of_all_targets(comm, network, source, batch):
    """The score does not depend on evaluate.batch or the ranks; a target of -100 does not count."""
    training = Training(masked_run(network, source, method__name="local-sgd", evaluate__batch=batch), comm)
    score = [*training.rounds()][-1].score
    assert (score.loss, score.score) == pytest.approx(plain_scores(training, source == "blank"), abs=1e-9)
    assert score.examples == 50 and training.score_name == "accuracy"
    if network == "Named":
        assert score.more == {"wrong": pytest.approx(1 - score.score)}


@pytest.mark.parametrize("network", ["Net", "Named"])
def test_data_parallel_weighs_ranks_by_their_targets(comm, network):
    """A step's gradient is that of the joined batches of all ranks, although their counts differ."""
    settings = {"method__name": "data-parallel", "data__placement": "sharded", "method__local_steps": 1}
    training = Training(masked_run(network, "blank", train__batch=3, **settings).override({"train.rounds": 1}), comm)
    before = {name: torch.from_numpy(values.copy()) for name, values in whole(training).items()}
    parts = comm.allgather([tensor.numpy() for tensor in training.batches.at(0).targets])
    [*training.rounds()]
    plain = Net().double()
    plain.load_state_dict(before)
    x, y = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts))
    loss, _, count = sums(plain(x), (x, y))
    (loss / count).backward()
    trained = whole(training)
    for name, parameter in plain.named_parameters():
        np.testing.assert_allclose(trained[name], (parameter - 0.05 * parameter.grad).detach().numpy(), atol=1e-12)


@pytest.mark.parametrize(
    "network, batch, expected",
    [
        ("Means", 1000, "is not a mean over rows: two halves of a batch do not average to the whole batch."),
        ("Means", 1, "Means: loss is not a mean over rows"),
        ("Means", 8, "Means: loss is not a mean over rows"),  # every fourth row counts for six
        ("Rows", 8, ""),
        ("Pairs", 8, ""),
    ],
)
def test_a_mean_that_depends_on_the_batch_gets_one_note(comm, shared_tmp, network, batch, expected):
    """One note names the function if two halves of a batch do not average to the whole batch."""
    notes = []

    class Noting(Watch):
        def noticed(self, message):
            notes.append(message)

    settings = {"method__name": "local-sgd", "evaluate__batch": batch, "evaluate__every": 1}
    run_training(masked_run(network, output__folder=str(shared_tmp / "run"), **settings), comm, Noting())
    found = [note for note in notes if "halves" in note]
    assert len(found) == bool(expected and comm.rank == 0)
    assert all(expected in note and note.endswith("Return a pair (sum, count).") for note in found)


REFUSED = {
    "Halfway": (ConfigError, "Halfway: loss returns the value as a number for a batch, and the value as a pair before"),
    "Minus": (ConfigError, "Minus: score returns a pair (sum, count) with the count -1; it must be at least 0"),
    "Nothing": (ConfigError, "the score has the count 0 in all batches. Return a count above 0"),
    "Means": (DivergedError, "Means: loss is nan for a batch of 1 example, but the network's outputs are finite."),
}


@pytest.mark.parametrize("network", REFUSED)
def test_an_unusable_sum_or_mean_is_refused_by_its_name(comm, network):
    """A wrong count, a changing form and a mean of nothing name the function, not the network or its rate."""
    kind, expected = REFUSED[network]
    batch = 1 if network == "Means" else 7
    with pytest.raises(kind) as refused:
        [*Training(masked_run(network, "blank", method__name="local-sgd", evaluate__batch=batch), comm).rounds()]
    assert expected in str(refused.value) and "optimizer.lr" not in str(refused.value)
