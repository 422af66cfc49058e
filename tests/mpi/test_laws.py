"""Laws of a whole run that do not depend on the method's arithmetic, and what is told of a run."""

import numpy as np
import pytest
import torch
from small import assert_same_bits, checkpoint_state, small_run, trained, whole

from istmpi.config import methods
from istmpi.engine.partition import Partition
from istmpi.errors import DivergedError, IstmpiError
from istmpi.training.loop import Training


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
        checkpoint_state(looked_at)
        progress.append(one)
    assert [(one.loss, one.bytes) for one in progress] == [(one.loss, one.bytes) for one in expected]
    assert_same_bits(whole(looked_at), whole(left_alone))


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize("method", methods.METHODS)
def test_a_loss_that_turns_nan_stops_all_ranks_and_keeps_the_last_good_weights(comm, method):
    settings = {"optimizer__lr": 1e200, "model__norm": "none", "method__optimizer_state": "carry"}
    training = Training(small_run(method__name=method, optimizer__momentum=0.9, **settings), comm)
    if method == "joint":
        training.method.begin(0)  # then weights between subnets are zeros
    before = whole(training)
    with pytest.raises(DivergedError) as diverged:
        list(training.rounds())
    message = str(diverged.value)
    assert comm.allgather(message) == [message] * comm.size
    assert message.startswith("rank 0: the loss is no longer finite in round 1, local step 2; ")
    assert "Lower optimizer.lr (1e+200)" in message
    assert_same_bits(whole(training), before)


DIVERGING = {method: ({"method__name": method, "train__batch": 500}, 7) for method in methods.METHODS}
DIVERGING["one sum a round"] = ({"method__name": "joint", "method__local_steps": 1, "train__batch": 500}, 2)
DIVERGING["seldom shared"] = ({"method__share_every": 3, "model__bias": True}, 7)
for place, step in {"early": 9, "where it leaves": 10}.items():
    DIVERGING[place] = ({"method__local_steps": 4, "method__delay": 2, "method__redeal": 0.6}, step)


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize("settings, poisoned", DIVERGING.values(), ids=DIVERGING)
def test_the_round_and_the_rank_are_those_that_went_wrong(comm, settings, poisoned):
    """One rank meets a value that is not finite in the third round. The weights of the second round are kept."""
    spared, training = (Training(small_run(**settings), comm) for _ in range(2))
    rounds = spared.rounds()
    next(rounds), next(rounds)
    batch, last = training.method.batch, comm.size - 1

    def poisoning(step):
        taken = batch(step)
        if comm.rank == last and step == poisoned:
            taken.inputs[0][0, 0] = np.nan
        return taken

    training.method.batch = poisoning
    rounds = training.rounds()
    next(rounds), next(rounds)
    local_steps = training.run.method.local_steps
    step, seen_by = poisoned - 2 * local_steps + 1, last if local_steps > 1 else 0
    with pytest.raises(DivergedError, match=rf"^rank {seen_by}: .* in round 3, local step {step}; ") as diverged:
        next(rounds)
    assert diverged.value.everywhere
    assert_same_bits(whole(training), whole(spared))


@pytest.mark.parametrize("local_steps", [1, 2])
def test_a_gradient_that_is_not_finite_changes_no_subnet_of_a_sum(comm, local_steps):
    """Its step's loss is finite, and the gradients of other ranks are."""
    settings = {"method__name": "joint", "method__local_steps": local_steps, "optimizer__momentum": 0.9}
    spared, training = (Training(small_run(**settings), comm) for _ in range(2))
    next(spared.rounds())
    rounds, method, last = training.rounds(), training.method, comm.size - 1
    next(rounds)
    go_back = method._go_back

    def spoiling(*rest):
        go_back(*rest)
        if comm.rank == last:
            next(method.subnet.network.parameters()).grad.view(-1)[0] = np.inf

    method._go_back = spoiling
    with pytest.raises(DivergedError, match=rf"^rank {last}: .* in round 2, local step {local_steps}; "):
        next(rounds)
    assert_same_bits(training.method.of_this_rank(), spared.method.of_this_rank())
    assert_same_bits(whole(training), whole(spared))


@pytest.mark.ranks(also=1)
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


def test_each_ranks_compute_and_wait_are_those_of_its_clock(comm):
    training = Training(small_run(method__name="fedavg", train__batch=100), comm)
    before = [{}] * comm.size
    for progress in training.rounds():
        now = comm.allgather(dict(training.clock.seconds))
        last = progress.last_round
        for phase, told in (("compute", last.compute), ("wait", last.wait)):
            spent = [of[phase] - earlier.get(phase, 0.0) for of, earlier in zip(now, before)]
            assert told == pytest.approx(spent)
            assert last.phases[phase] == pytest.approx(np.mean(spent))
        before = now


def test_what_a_round_took_adds_up(comm):
    _, progress = trained(comm)
    assert sum(one.last_round.bytes for one in progress) == progress[-1].bytes
    assert [one.local_steps for one in progress] == [3, 6, 9, 12]
    assert [one.examples for one in progress] == [8 * comm.size * one.local_steps for one in progress]
    assert sum(one.last_round.examples for one in progress) == progress[-1].examples
    assert sum(one.last_round.seconds for one in progress) == pytest.approx(progress[-1].seconds)
    assert {one.ranks for one in progress} == {comm.size} and {one.score_name for one in progress} == {"accuracy"}
    assert ["evaluate" in one.last_round.phases for one in progress] == [False, False, False, True]
