"""What is kept for the loss of a rank: it changes nothing, costs what is predicted, and is what the others need."""

import threading
import time

import numpy as np
import pytest
import torch
from small import assert_same_bits, small_run, whole

from istmpi.cost import round_bytes
from istmpi.engine.slots import kinds_of
from istmpi.methods import METHODS
from istmpi.methods.base import InterruptedRound
from istmpi.methods.outer import Outer
from istmpi.methods.survival import CALL
from istmpi.training.loop import Training
from istmpi.training.remains import Report, planned, rebuilt
from istmpi.training.survival import protect

SURVIVING = [name for name, spec in METHODS.items() if spec.survives]
CASES = {
    "plain": {},
    "momentum carried": {"optimizer__momentum": 0.9, "method__optimizer_state": "carry", "optimizer__lr": 0.01},
    "a part redealt": {"method__redeal": 0.3},
    "one group dealt": {"method__partition": ["hidden2"]},
    "nothing dealt": {"method__partition": []},
}


@pytest.mark.ranks(also=3)
@pytest.mark.parametrize("method", SURVIVING)
@pytest.mark.parametrize("case", CASES)
def test_it_changes_no_bit_and_its_bytes_are_predicted(comm, method, case):
    settings = {"method__name": method, **CASES[case]}
    plain = Training(small_run(**settings), comm)
    kept = Training(small_run(**settings, comm__survive=True), comm)
    protect(kept)
    for number in range(3):
        plain.method.run(number, InterruptedRound())
        before = comm.traffic.bytes
        kept.method.run(number, InterruptedRound())
        counted = comm.allgather(comm.traffic.bytes - before)
        assert counted == round_bytes(kept.run, kept.architecture, comm.size, number), f"round {number}"
        assert kinds_of(kept.store.tensors) == kept.method.spec.slots(kept.run)
    assert_same_bits(whole(plain), whole(kept))


@pytest.mark.real
@pytest.mark.ranks(min=2)
def test_who_waits_for_a_copy_is_seen_to_wait(comm, monkeypatch):
    """Or a rank that stops while its copy is under way would never be missed."""
    training = Training(small_run(comm__survive=True), comm)
    protect(training)
    begun, over, seen = training.survival.begun, threading.Event(), set()

    def late(*arguments):
        time.sleep(0.5)
        begun(*arguments)

    def look():
        while not over.wait(0.01):
            seen.update(wait.call for wait in list(comm.whereabouts.waiting.values()))

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(training.survival, "begun", late)
    looks = threading.Thread(target=look)
    looks.start()
    training.method.run(0, InterruptedRound())
    over.set()
    looks.join()
    assert CALL in comm.allgather(seen)[0]


@pytest.mark.ranks(also=3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lost", ["first", "last"])
def test_what_is_left_is_the_network_without_the_lost_rank_s_round(comm, case, lost):
    if comm.size == 1:
        pytest.skip("nobody would be left")
    lost = 0 if lost == "first" else comm.size - 1
    training = Training(small_run(**CASES[case], comm__survive=True), comm)
    protect(training)
    survival = training.survival
    for number in range(3):
        training.method.run(number, InterruptedRound())
    start = whole(training)
    training.method.run(3, InterruptedRound())  # after which the rank is gone
    values = survival.layers[-1].values
    tensors = comm.allgather({name: tensor.numpy() for name, tensor in values.tensors.items()})
    left = [rank for rank in range(comm.size) if rank != lost]
    with comm.among(left) as some:
        if some is None:
            return
        reports = some.allgather(Report.of(survival))
        plan = planned(comm.size, reports)
        assert (plan.round, plan.lost, plan.layers, plan.complete, plan.orphans) == (3, (lost,), (3,), True, ())
        store = rebuilt(plan, reports, survival, some, None, False, Outer())
        rows = some.allgather({name: tensor.numpy() for name, tensor in store.tensors.items()})
        got = {name: np.concatenate([part[name] for part in rows]) for name in store.tensors}
    for name, of in values.parameters.items():
        expected, count = np.array(start[name]), np.zeros(start[name].shape)
        total = np.zeros_like(expected)
        for rank in left:
            axes = enumerate(of.pattern.axes)
            at = np.ix_(*(np.asarray(values.layout.positions(axis, place, rank)) for place, axis in axes))
            count[at] += 1
            total[at] += tensors[rank][name]
        held = count > 0
        expected[held] = (total / np.maximum(count, 1))[held]
        assert (got[name][count <= 1] == expected[count <= 1]).all(), f"{name}: where no mean is taken, bit for bit"
        torch.testing.assert_close(torch.as_tensor(got[name]), torch.as_tensor(expected), rtol=1e-12, atol=1e-14)
