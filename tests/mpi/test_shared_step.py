"""The outer step of what IST does not deal out: DiLoCo where nothing is, resumed at any point, on any ranks."""

import numpy as np
import pytest
from resuming import resumed, save, stop_at
from small import assert_same_bits, small_run, trained, whole

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm import Communicator
from istmpi.cost import cost
from istmpi.engine.slots import Slot
from istmpi.errors import ConfigError
from istmpi.training.loop import Training

STEP = {"method__shared_lr": 0.7, "method__shared_momentum": 0.9}
CARRIED = {"method__optimizer_state": "carry", "optimizer__momentum": 0.5, "model__dtype": "float32"}
HALF = {**STEP, **CARRIED, "method__partition": ["hidden1"], "model__bias": True, "model__dropout": 0.3}

pytestmark = pytest.mark.ranks(only=[1, 3])


@pytest.mark.parametrize("every", [1, 2])
def test_with_nothing_dealt_out_it_is_diloco_of_as_many_steps_bit_for_bit(comm, every):
    """Two rounds up to a mean are one of twice as many local steps, whose optimizer is never reset."""
    nothing, shared = trained(comm, method__partition=[], method__share_every=every, **STEP, **CARRIED)
    settings = {"method__local_steps": 3 * every, "train__rounds": 4 // every, **CARRIED}
    settings |= {"method__name": "diloco", "method__outer_lr": 0.7, "method__outer_momentum": 0.9}
    diloco, losses = trained(comm, **settings)
    assert_same_bits(whole(nothing), whole(diloco))
    if every == 1:
        assert [one.loss for one in shared] == [one.loss for one in losses]
        assert np.diff([one.bytes for one in shared]).tolist() == np.diff([one.bytes for one in losses]).tolist()


def test_rate_1_without_momentum_is_no_step_bit_for_bit(comm):
    settings = {"method__partition": [], "method__share_every": 2}
    plain, _ = trained(comm, **settings)
    step, _ = trained(comm, **settings, method__shared_lr=1.0, method__shared_momentum=0.0)
    assert_same_bits(whole(step), whole(plain))


@pytest.mark.parametrize("every", [1, 2])
def test_two_halves_are_the_whole_wherever_it_was_stopped(comm, shared_tmp, every):
    """Inside rounds, with and without a mean at their end, and before their first steps; again and again."""
    run = HALF | {"method__share_every": every, "train__rounds": 5}
    expected, losses = trained(comm, **run)
    path, found = None, []
    for done, step in ((0, 1), (1, 0), (1, 1), (2, 0), (3, 1))[:: 3 - every]:
        training = Training(small_run(**run), comm)
        if path:
            training.resume(path)
        rounds = training.rounds()
        found += [next(rounds) for _ in range(done - training.rounds_done)]
        if step:
            stop_at(training, done, step)
            assert list(rounds) == []
        else:
            training.stop._signal = "a test"
            assert not training._run_round()
        assert (training.rounds_done, training.local_step) == (done, step and step + 1)
        path = save(training, shared_tmp / "stopped.h5")
        with open_checkpoint(path) as checkpoint:
            assert list(checkpoint.errors()) == []
    again, rest = resumed(comm, path, **run)
    assert_same_bits(whole(again), whole(expected))
    assert [one.loss for one in found + rest] == [one.loss for one in losses]


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("stopped", ["between rounds", "inside a round", "where the fastest was through with it"])
def test_other_ranks_take_the_step_from_where_these_started(comm, shared_tmp, stopped):
    """What is left of the rounds up to the mean changes nothing, at such a rate; so the step is that of the formula."""
    run = HALF | {"method__share_every": 2, "optimizer__momentum": 0.0, "method__optimizer_state": "reset"}
    run |= {"model__dtype": "float64", "train__rounds": 6}
    training = Training(small_run(**run), comm)
    rounds = training.rounds()
    for _ in range(3):
        next(rounds)
    last = 4
    if stopped == "inside a round":
        stop_at(training, 3, 1)
        assert list(rounds) == [] and training.local_step < 3
    elif stopped != "between rounds":
        last = 6  # the mean of that round is not taken by a ring any more, but the next one is
        training.stop._gossip.notify = lambda _: None
        if comm.rank == 0:
            stop_at(training, 3, 1)
        assert list(rounds) == [] and training.local_step == 3
    path, saved = save(training, shared_tmp / "saved.h5"), whole(training)
    alone = Communicator(comm.mpi.Split(comm.rank))
    other, progress = resumed(alone, path, **run | {"optimizer__lr": 1e-300, "train__rounds": last})
    assert progress[-1].round == last
    found, shared = whole(other), [name for name in saved if getattr(name, "kind", "") == "start"]
    wanted = training.method.spec.shared(training.run, training.architecture)
    assert [slot.parameter for slot in shared] == wanted and not any(name in found for name in shared)
    changes = []
    for slot in shared:
        name, start = slot.parameter, saved[slot]
        change = saved[name] - start
        velocity = 0.9 * saved[Slot(name, "velocity")] + change
        changes.append(np.abs(change).max())
        np.testing.assert_allclose(found[Slot(name, "velocity")], velocity, rtol=0, atol=1e-15, err_msg=name)
        there = start + 0.7 * (change + 0.9 * velocity)
        np.testing.assert_allclose(found[name], there, rtol=0, atol=1e-15, err_msg=name)
    assert max(changes) > 1e-3 and saved["labels.linear.weight/velocity"].any()


def test_a_rank_has_the_copies_that_are_planned(comm):
    run = HALF | {"method__share_every": 2}
    training = Training(small_run(**run), comm)
    next(training.rounds())
    shared = training.method._shared
    copies = sum(one.nbytes for held in (shared.outer.start, shared._velocity) for one in held.values())
    plain = small_run(**run | {"method__shared_lr": 1.0, "method__shared_momentum": 0.0})
    with_step, without = (cost(one, training.architecture, comm.size).largest.memory for one in (training.run, plain))
    if comm.size > 1:
        assert copies == with_step.copies - without.copies > 0
    training.method.publish()
    rows = {
        name: one.nbytes
        for name, one in training.store.tensors.items()
        if getattr(name, "kind", "") in ("start", "velocity")
    }
    assert max(comm.allgather(sum(rows.values()))) == with_step.owned - without.owned > 0


def test_it_goes_on_into_a_finish_and_out_of_one(comm):
    """The finish starts from the mean; what is left of rounds up to a mean that is not taken has no outer step."""
    run = HALF | {"method__share_every": 3, "model__dropout": 0.0}
    finished, _ = trained(comm, **run, method__finish="local-sgd:50%")
    assert not any("velocity" in name or "start" in name for name in whole(finished))
    begun, _ = trained(comm, **run | {"method__name": "local-sgd", "method__finish": "ist:75%"})
    names = {name.parameter for name in whole(begun) if getattr(name, "kind", "") == "velocity"}
    assert names == set(begun.method.spec.shared(begun.method.job.run, begun.architecture))


def test_it_is_refused_beside_an_outer_step_of_all_weights(comm):
    with pytest.raises(ConfigError, match=r"shared_momentum = 0.9 do not go with an outer step") as refused:
        Training(small_run(**HALF, method__outer_momentum=0.5), comm)
    assert refused.value.everywhere
