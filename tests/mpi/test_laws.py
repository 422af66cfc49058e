"""Laws of a whole run that do not depend on the method's arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small import assert_same_bits, small_run, trained, whole

from istmpi.config import methods
from istmpi.engine.partition import Partition
from istmpi.errors import DivergedError, IstmpiError
from istmpi.training.loop import Training

METHODS = pytest.mark.parametrize("method", methods.METHODS)


@pytest.mark.both
@pytest.mark.ranks(min=2)
def test_a_deal_that_differs_is_noticed_before_weights_are_scrambled(comm, monkeypatch):
    training = Training(small_run(), comm)
    before = whole(training)
    draw = Partition.draw

    def other(seed, **facts):
        return draw(seed=seed + (comm.rank == comm.size - 1), **facts)

    monkeypatch.setattr(Partition, "draw", staticmethod(other))
    with pytest.raises(IstmpiError, match=f"^rank {comm.size - 1}: the deal of round 1 differs"):
        next(training.rounds())
    assert_same_bits(whole(training), before)


@pytest.mark.parametrize("method", [name for name in methods.METHODS if name not in ("fedavg", "joint")])
def test_every_step_is_taken_also_the_last_before_a_boundary(comm, method):
    """35 examples a rank, batches of 8, 3 local steps: neither divides the other, and none is thrown away."""
    settings = {"data__placement": "sharded", "method__local_steps": 3, "train__rounds": 5}
    training = Training(small_run(method__name=method, **settings), comm)
    taken = []
    at = training.batches.at
    training.batches.at = lambda step: (taken.append(step), at(step))[1]
    progress = list(training.rounds())
    assert taken == list(range(15))
    assert [(one.round, one.local_steps, one.examples) for one in progress] == [
        (done, 3 * done, 3 * done * 8 * comm.size) for done in range(1, 6)
    ]


def test_a_rank_of_fedavg_takes_its_examples_once_in_every_pass(comm):
    settings = {"data__placement": "sharded", "train__batch": 30, "method__epochs": 2}
    training = Training(small_run(method__name="fedavg", **settings), comm)
    split, taken = training.dataset.train, []
    take = split.batch
    split.batch = lambda indices, key=None: (taken.append(sorted(indices.tolist())), take(indices, key))[1]
    for round in range(3):
        training.method.run(round)
    mine = sorted(row for batch in taken for row in batch)
    own = sorted(set(mine))
    assert len(own) == training.batches.examples
    assert mine == sorted(own * 2 * 3), "two passes in each of three rounds"
    assert training.method.examples == len(mine)


def test_with_nothing_dealt_out_two_rounds_up_to_a_mean_are_one_of_twice_as_many_steps(comm):
    state = {"method__optimizer_state": "carry", "optimizer__momentum": 0.5, "model__dtype": "float32"}
    seldom, _ = trained(comm, method__partition=[], method__share_every=2, **state)
    steps = {"method__local_steps": 6, "train__rounds": 2}
    local, losses = trained(comm, method__name="local-sgd", **steps, **state)
    assert_same_bits(whole(seldom), whole(local))


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize(
    "method, times", [("data-parallel", 3), ("local-sgd", 1), ("diloco", 1), ("codistillation", 1)]
)
def test_whole_networks_send_what_their_algorithm_says(comm, method, times, carry):
    """Fetched once; then a ring of 2(P-1)/P of it, or all of it to each other rank, at 3 local steps a round."""
    settings = {"optimizer__momentum": 0.9, "method__optimizer_state": "carry" if carry else "reset"}
    training, progress = trained(comm, method__name=method, method__burn_in=2, **settings)
    architecture, ranks = training.architecture, comm.size
    network = sum(8 * parameter.size(architecture.lengths) for parameter in architecture.parameters.values())
    slots = len(training.method.spec.slots(training.run))
    start = (ranks - 1) * network * (1 + slots)
    averaged = network * (2 if carry and method in ("local-sgd", "diloco") else 1)
    each = 2 * (ranks - 1) * averaged * times
    expected = [start + done * each for done in range(1, 5)]
    if method == "codistillation":
        expected = [start + max(done - 2, 0) * ranks * (ranks - 1) * network for done in range(1, 5)]
    assert [one.bytes for one in progress] == expected


@pytest.mark.both
@pytest.mark.parametrize(
    "settings", [{}, {"method__redeal": 0.3}, {"method__delay": 2, "method__redeal": 0.5}], ids=str
)
def test_looking_at_the_network_changes_neither_what_is_learnt_nor_what_is_sent(comm, settings):
    """Weights that stay with their holders come home for an evaluation or a checkpoint, and stay all the same."""
    settings = settings | {"optimizer__momentum": 0.9, "method__optimizer_state": "carry"}
    left_alone, expected = trained(comm, optimizer__lr=0.03, **settings)
    looked_at = Training(small_run(optimizer__lr=0.03, evaluate__every=1, **settings), comm)
    progress = []
    for one in looked_at.rounds():
        looked_at.state()
        progress.append(one)
    assert [(one.loss, one.bytes) for one in progress] == [(one.loss, one.bytes) for one in expected]
    assert_same_bits(whole(looked_at), whole(left_alone))


# ---- a loss that is no longer finite


@METHODS
def test_a_loss_that_turns_nan_stops_all_ranks_and_keeps_the_last_good_weights(comm, method):
    settings = {"optimizer__lr": 1e200, "model__norm": "none", "method__optimizer_state": "carry"}
    training = Training(small_run(method__name=method, optimizer__momentum=0.9, **settings), comm)
    before = whole(training)
    with pytest.raises(DivergedError) as diverged:
        list(training.rounds())
    message = str(diverged.value)
    assert comm.allgather(message) == [message] * comm.size
    assert message.startswith("rank 0: the loss is no longer finite in round 1, local step 2; ")
    assert "Lower optimizer.lr (1e+200)" in message
    assert_same_bits(whole(training), before)


@METHODS
def test_the_round_and_the_rank_are_those_that_went_wrong(comm, method):
    """One rank meets an example that is not finite in the third round; the second round's weights are kept."""
    training = Training(small_run(method__name=method, train__batch=500), comm)
    batch = training.method.batch

    def poisoned(step):
        taken = batch(step)
        if comm.rank == comm.size - 1 and step == 7:
            taken.inputs[0][0, 0] = np.nan
        return taken

    training.method.batch = poisoned
    rounds = training.rounds()
    next(rounds), next(rounds)
    good = whole(training)
    assert all(np.isfinite(values).all() for values in good.values())
    with pytest.raises(DivergedError, match=rf"^rank {comm.size - 1}: .* in round 3, local step 2; ") as diverged:
        next(rounds)
    assert diverged.value.everywhere
    assert_same_bits(whole(training), good)


def poisoned(batch):
    return replace(batch, inputs=tuple(x * np.nan for x in batch.inputs))


@pytest.mark.both
@pytest.mark.parametrize("settings", [{}, {"method__share_every": 3, "model__bias": True}], ids=["", "seldom shared"])
def test_weights_that_nobody_sent_home_yet_are_kept_as_well(comm, settings):
    expected, _ = trained(comm, train__rounds=2, **settings)
    training = Training(small_run(train__batch=8, **settings), comm)
    batch = training.method.batch
    training.method.batch = lambda step: poisoned(batch(step)) if step == 7 else batch(step)
    rounds = training.rounds()
    next(rounds), next(rounds)
    with pytest.raises(DivergedError, match="in round 3, local step 2; "):
        next(rounds)
    assert_same_bits(whole(training), whole(expected))


def test_weights_that_overflow_in_the_last_step_are_not_kept(comm):
    """Every loss is finite, as it is computed before the step that breaks the weights."""
    training = Training(small_run(model__norm="none", optimizer__lr=1e308, method__local_steps=1), comm)
    before = whole(training)
    make = training.method.subnet.spec.make

    def breaking(parameters):
        parameters = list(parameters)
        optimizer = make(parameters)
        step = optimizer.step

        def then_break(*rest):
            step(*rest)
            if comm.rank == 0:
                parameters[0].data.view(-1)[0] = torch.inf

        optimizer.step = then_break
        return optimizer

    object.__setattr__(training.method.subnet.spec, "make", breaking)
    with pytest.raises(DivergedError, match="in round 1, local step 1"):
        next(training.rounds())
    assert_same_bits(whole(training), before)
