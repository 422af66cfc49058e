"""Weights that leave before a round's end, against the naive oracle; and what must not matter."""

import oracle
import pytest
from small import assert_same_bits, assert_trained, trained, whole

from istmpi.comm import mpi
from istmpi.cost import round_bytes

PLAIN = {"model__norm": "none", "model__bias": True, "method__local_steps": 4, "train__rounds": 4}
MOMENTUM = {"optimizer__momentum": 0.6, "method__optimizer_state": "carry"}


@pytest.mark.parametrize("delay, redeal", [(0, 0.3), (1, 0.0), (3, 0.3)])
def test_what_leaves_does_so_early_and_what_stays_keeps_all_its_steps(comm, delay, redeal):
    settings = PLAIN | MOMENTUM | {"method__delay": delay, "method__redeal": redeal}
    training, progress = trained(comm, **settings)
    run, network = training.run, training.architecture
    expected, losses = oracle.train(run, network, comm.size, network.groups)
    assert_trained(training, progress, expected, losses, 1e-11)
    if comm.size > 1 and redeal:
        other, _ = oracle.train(run.override({"method.delay": 0 if delay else 2}), network, comm.size, network.groups)
        name = "hidden2.linear.weight"
        assert abs(other[name] - expected[name]).max() > 1e-6, "a delay that makes no difference is no test"


STREAMING = {"method__name": "streaming-diloco", "method__fragments": 2, "method__local_steps": 8}


@pytest.mark.parametrize("settings", [MOMENTUM | {"method__redeal": 0.4}, {"method__wire": "int8"}, STREAMING], ids=str)
def test_without_threads_every_bit_is_the_same(comm, monkeypatch, settings):
    """Where no thread may call MPI, all that leaves early travels at the end of the round."""
    settings = {"method__local_steps": 4, "method__delay": 2, "model__dtype": "float32", **settings}
    expected, progress = trained(comm, **settings)
    monkeypatch.setattr(mpi, "threads_may_call", lambda: False)
    alone, its = trained(comm, **settings)
    assert_same_bits(whole(alone), whole(expected))
    assert [(one.loss, one.bytes) for one in its] == [(one.loss, one.bytes) for one in progress]


@pytest.mark.parametrize("wire, changed", [("float32", {}), ("int8", {"model__bias": True, **MOMENTUM})])
def test_what_is_sent_is_what_is_sent_without_a_delay_and_known_to_the_byte(comm, wire, changed):
    """In each round, and in all of them together; what is not dealt out goes round a ring, whatever its size."""
    settings = {"model__dtype": "float32", "model__norm": "none", "method__redeal": 0.5, "method__wire": wire} | changed
    early, its = trained(comm, **settings, method__delay=2)
    run, network = early.run, early.architecture
    assert [one.last_round.bytes for one in its] == [sum(round_bytes(run, network, comm.size, one)) for one in range(4)]
    late, progress = trained(comm, **settings)
    if wire == "float32":
        assert its[-1].bytes == progress[-1].bytes
    assert all(one.last_round.background > 0 for one in its[:-1])
    assert progress[0].last_round.background == its[-1].last_round.background == 0
