"""The cost model against what really went through MPI, byte for byte, for every method; and the cluster measured."""

import pytest
from small import small_run

from istmpi.cluster import measure
from istmpi.cluster.time import round_time
from istmpi.config.methods import METHODS
from istmpi.cost import cost, round_bytes
from istmpi.engine.slots import kinds_of
from istmpi.models import mlp_network
from istmpi.training.loop import Training

CASES = {
    "plain": {},
    "bias, layer norm, double": {"model__bias": True, "model__norm": "layer"},
    "momentum carried": {"optimizer__momentum": 0.9, "method__optimizer_state": "carry", "optimizer__lr": 0.01},
    "adam carried, float32": {
        "optimizer__name": "adam",
        "method__optimizer_state": "carry",
        "model__dtype": "float32",
        "optimizer__lr": 0.001,
    },
    "adam kept": {"optimizer__name": "adam", "method__optimizer_state": "keep", "optimizer__lr": 0.001},
    "momentum reset": {"optimizer__momentum": 0.9, "optimizer__lr": 0.01},
    "shares": {"method__shares": [3.0, 1.0, 2.0, 0.5, 1.5]},
    "one group dealt": {"method__partition": ["hidden2"]},
    "a part redealt": {"method__redeal": 0.3},
    "outer momentum, adam carried": {
        "optimizer__name": "adam",
        "method__optimizer_state": "carry",
        "method__outer_momentum": 0.9,
        "optimizer__lr": 0.001,
    },
}
SPECIAL = {
    "streaming-diloco": {"method__fragments": 2, "method__delay": 0},
    "fedavg": {"method__fraction": 0.7, "train__batch": 400},
    "dynamic-averaging": {"method__threshold": 0.0},
    "codistillation": {"method__burn_in": 1},
}


OUTER = ("local-sgd", "diloco", "streaming-diloco", "sparse-loco")
OF_METHODS = [("ist", case) for case in CASES if case != "adam kept"]
OF_METHODS += [("local-sgd", "adam kept"), ("diloco", "adam kept")]
OF_METHODS += [(method, case) for method in METHODS if method != "ist" for case in ("plain", "adam carried, float32")]
OF_METHODS += [(method, "outer momentum, adam carried") for method in OUTER]
"""What else IST can be is none of the other methods' settings."""


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("method, case", OF_METHODS)
def test_predicted_bytes_are_the_counted_bytes(comm, method, case):
    changed = CASES[case] | SPECIAL.get(method, {})
    if "method__shares" in changed:
        changed["method__shares"] = changed["method__shares"][: comm.size]
    training = Training(small_run(method__name=method, **changed), comm)
    for number in range(3):
        before = comm.traffic.bytes
        training.method.run(number)
        counted = comm.allgather(comm.traffic.bytes - before)
        assert counted == round_bytes(training.run, training.architecture, comm.size, number), f"round {number}"
        assert kinds_of(training.store.tensors) == training.method.spec.slots(training.run)


def test_the_cluster_is_measured_in_bounded_time_and_alike_on_every_rank(comm, monkeypatch):
    monkeypatch.setattr(measure, "SECONDS", 0.01)
    monkeypatch.setattr(measure, "TURN_SECONDS", 0.001)
    monkeypatch.setattr(measure, "TRANSFER_WIDTHS", (32, 64))
    monkeypatch.setattr(measure, "MESSAGE_BYTES", (2**10, 2**14))
    run, network = small_run(model__hidden=[32, 32]), mlp_network(64, (32, 32), 10)
    found = measure.measure(run, network, comm)
    per_rank = comm.allgather(found)
    assert all(one == found for one in per_rank)
    time = round_time(cost(run, network, comm.size), found)
    assert time.compute > 0 and time.transfer > 0
    assert set(found.links) == {"alltoallv", "allreduce"}
    assert len(found.measured["alltoallv"].get("points", [])) == (2 if comm.size > 1 else 0)
    shapes = {(row["batch"], row["inputs"], row["outputs"]) for row in found.measured["products"]["points"]}
    assert (8, 64, 32) in shapes and (8, -(-32 // comm.size), 10) in shapes


def test_products_that_seem_to_take_no_longer_when_they_are_larger_still_have_a_rate(comm, monkeypatch):
    monkeypatch.setattr(measure, "timed", lambda communicator, work: 1e-5)
    found = measure.measure(small_run(model__hidden=[32, 32]), mlp_network(64, (32, 32), 10), comm)
    assert all(0 < rate < float("inf") for rate in found.flops) and found.product_seconds == 0
