"""What a network of one's own is planned to send, against what it sends."""

from pathlib import Path

import networks
import pytest
from own_runs import BOTH, DEEP
from small import own_run

from istmpi.cluster import measure
from istmpi.cost import cost, round_bytes
from istmpi.data.sources import open_dataset
from istmpi.training.loop import Training
from istmpi.training.network import build_network

FILE = networks.__file__
EXAMPLE = f"{Path(FILE).parents[2] / 'examples' / 'convnet.py'}:ConvNet"
CONVOLUTIONAL = {"model__name": f"{FILE}:Convolutional", "model__channels": [16, 8], "model__hidden": 6}


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("network, method, changed", [
    *((f"{FILE}:Shaken", method, {}) for method in ("ist", "fedavg", "codistillation")),
    *((EXAMPLE, method, {}) for method in ("ist", "local-sgd", "data-parallel")),
    (EXAMPLE, "ist", {"optimizer__name": "adam", "method__optimizer_state": "carry", "method__redeal": 0.3}),
    (EXAMPLE, "ist", {"method__partition": ["hidden"], "method__outer_momentum": 0.5}),
    ("resnet", "ist", DEEP),
    ("resnet", "ist", DEEP | {"method__share_every": 2}),
    (EXAMPLE, "ist", {"method__share_every": 3, "optimizer__momentum": 0.5, "method__optimizer_state": "carry"}),
    (EXAMPLE, "ist", {"method__share_every": 2}),
    (EXAMPLE, "ist", {"method__partition": []}),
    ("resnet", "ist", BOTH | {"optimizer__momentum": 0.5, "method__optimizer_state": "carry"}),
])  # fmt: skip
def test_predicted_bytes_are_the_counted_bytes(comm, network, method, changed):
    special = {"fedavg": {"method__fraction": 0.7, "train__batch": 400}, "codistillation": {"method__burn_in": 1}}
    settings = {"model__name": network, "method__name": method, **special.get(method, {}), **changed}
    training = Training(own_run(**settings), comm)
    plan, counted = cost(training.run, training.architecture, comm.size), []
    for number in range(3):
        before = comm.traffic.bytes
        training.method.run(number)
        counted.append(comm.allgather(comm.traffic.bytes - before))
        predicted = round_bytes(training.run, training.architecture, comm.size, number)
        assert counted[-1] == predicted, f"round {number}"
    if method in ("local-sgd", "data-parallel"):
        assert plan.sent_bytes(0, 3) == sum(map(sum, counted))


def test_the_cluster_is_measured_at_the_shapes_of_ones_user_network(comm, monkeypatch):
    monkeypatch.setattr(measure, "timed", lambda communicator, work: work() or 1e-4)
    monkeypatch.setattr(measure, "TRANSFER_WIDTHS", (32, 64))
    monkeypatch.setattr(measure, "MESSAGE_BYTES", (2**10, 2**14))
    monkeypatch.setattr(measure, "MOST_ELEMENTS", 8 * 256 * 9)
    run = own_run(**CONVOLUTIONAL)
    network = build_network(run, open_dataset("digits"), comm)
    found = measure.measure(run, network, comm)
    shapes = {(row["batch"], row["inputs"], row["outputs"]) for row in found.measured["products"]["points"]}
    assert {(8 * 64, 9, 16), (128, 144, 8), (8, 32, 6)} <= shapes
    assert all(one == found for one in comm.allgather(found))
