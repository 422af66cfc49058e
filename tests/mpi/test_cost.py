"""The cost model against what really went through MPI, byte for byte; and the cluster measured."""

from pathlib import Path

import networks
import own_data
import pytest
from own_runs import BOTH, DEEP, NERF, OWN_WEIGHTS
from replay_cases import GCN, OTHERS, TEXT, TRANSFORMER, XC
from replaying import run_of
from small import own_run, small_run

from istmpi.cluster import alone, links, measure, timing, transfers
from istmpi.cluster.time import round_time
from istmpi.config.methods import METHODS
from istmpi.cost import cost, round_bytes
from istmpi.data.sources import open_dataset
from istmpi.engine.slots import list_kinds
from istmpi.models import mlp_network
from istmpi.training.loop import Training
from istmpi.training.same_network import build_network

ADAM = {"optimizer__name": "adam", "method__optimizer_state": "carry", "optimizer__lr": 0.001}
CARRIED = {"optimizer__momentum": 0.5, "method__optimizer_state": "carry"}
SELDOM = {"method__share_every": 2, "method__partition": ["hidden2"]}
LARGEST = {"method__partition": ["hidden1"], "method__shared_wire": "top-k", "method__top": 900, "model__bias": True}
IST = {
    "bias, layer norm": {"model__bias": True, "model__norm": "layer"},
    "adam carried, float32": {**ADAM, "model__dtype": "float32"},
    "shares": {"method__shares": [3.0, 1.0, 2.0, 0.5, 1.5]},
    "a part redealt": {"method__redeal": 0.3},
    "outer momentum, adam carried": {**ADAM, "method__outer_momentum": 0.9},
    "a part redealt, int8": {"method__redeal": 0.3, "model__bias": True, "method__wire": "int8"},
    "seldom shared, int8": {**SELDOM, "method__redeal": 0.5, "method__wire": "int8"},
    "largest changes": LARGEST,
    "largest changes, adam carried, int8": {**LARGEST, **ADAM, "method__redeal": 0.5, "method__wire": "int8"},
}
SPECIAL = {
    "streaming-diloco": {"method__fragments": 2, "method__delay": 0},
    "fedavg": {"method__fraction": 0.7, "train__batch": 400},
    "dynamic-averaging": {"method__threshold": 0.0},
    "codistillation": {"method__burn_in": 1},
}
EXAMPLES = Path(networks.__file__).parents[2] / "examples"
EXAMPLE = f"{EXAMPLES}/convnet.py:ConvNet"
PACKAGES = {"llama": "transformers", "vision transformer": "timm"}
"""What `istmpi[examples]` brings."""
EXPERTS = {"model__name": "moe", "data__source": TEXT, "data__length": 12, "train__batch": 4}
EXPERTS |= {"model__layers": 1, "model__heads": [3], "model__experts": [5], "model__hidden": 12, "model__top": 3}
OWN = {
    "own": {"model__name": f"{networks.__file__}:Shaken"},
    "convnet, a part redealt": {"model__name": EXAMPLE, "method__redeal": 0.3, **ADAM},
    "convnet, seldom shared": {"model__name": EXAMPLE, "method__share_every": 3, **CARRIED},
    "llama": {"model__name": f"{EXAMPLES}/llama.py:Llama", "model__dtype": "float32"},
    "vision transformer": {"model__name": f"{EXAMPLES}/vit.py:ViT", "model__dtype": "float32"},
    "blocks, seldom shared": DEEP | {"method__share_every": 2},
    "blocks and channels": BOTH | CARRIED,
    "experts": EXPERTS,
    "a transformer": TRANSFORMER,
    "sparse rows": XC | {"optimizer__momentum": 0.9, "method__optimizer_state": "carry"},
    "a graph in clusters": GCN | {"data__graph": "clusters", "train__batch": 2},
}
JOINED = {
    "plain": {},
    "some widths": {"method__partition": ["wide"], "method__share_every": 2},
    "in fewer bits": {"method__wire": "int8", **ADAM, "model__dtype": "float32"},
    "shares": {"method__shares": [2.0, 1.0, 1.0]},
    "early": {"method__delay": 1},
}
"""Settings with which elements that all ranks have travel in other ways."""


def combine(method, case=None, **more):
    return {"method__name": method, **IST.get(case, {}), **SPECIAL.get(method, {}), **more}


def cases():
    yield from IST.items()
    yield from OWN.items()
    for method, spec in METHODS.items():
        wire = {"method__wire": "int8"} if spec.encodes else {}
        yield f"{method}, adam", combine(method, "adam carried, float32", **wire)
    for method in ("fedavg", "diloco", "sparse-loco"):
        yield f"{method}, outer", combine(method, "outer momentum, adam carried")
    for method in ("ist", "local-sgd"):
        yield f"{method}, outer, int8", combine(method, method__outer_momentum=0.5, method__wire="int8")
    yield "local-sgd, adam kept", combine("local-sgd", **ADAM | {"method__optimizer_state": "keep"})
    for case in ("xc", "xc, momentum, in blocks", "resnet by blocks"):  # tests/unit/test_networks.py has others
        yield f"joint, {case}", OTHERS[case] | {"method__name": "joint"}
    yield "downpour, three rounds old", combine("downpour", method__staleness=3)
    yield "joint, clipped", {"method__name": "joint", "method__local_steps": 1, "optimizer__clip": 0.1}
    yield "joint, three passes", {"method__name": "joint", "method__local_steps": 6, "method__passes": 3}
    own = {"model__name": f"{own_data.FILE}:Logits", "data__source": f"{own_data.FILE}:two_inputs"}
    yield "joint, outputs that own data do not tell", own | {"method__name": "joint"}
    for case, settings in JOINED.items():
        yield f"joined, {case}", NERF | settings
    yield "joined, own weights", OWN_WEIGHTS | ADAM


CASES = dict(cases())
WARNED = pytest.mark.filterwarnings("default")  # other packages warn


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("case", [pytest.param(case, marks=WARNED if case in PACKAGES else ()) for case in CASES])
def test_predicted_bytes_are_the_counted_bytes(comm, shared_tmp, case):
    if case in PACKAGES:
        pytest.importorskip(PACKAGES[case])
    settings = CASES[case]
    if settings.get("method__wire") and "model__dtype" not in settings:
        settings = settings | {"model__dtype": "float32"}
    run = comm.broadcast_from_root(run_of(settings, comm.size, shared_tmp) if comm.rank == 0 else None)
    training = Training(run, comm)
    total = 0
    for number in range(max(run.method.share_every, 2)):
        before = comm.traffic.bytes
        training.method.run(number)
        counted = comm.allgather(comm.traffic.bytes - before)
        assert counted == round_bytes(run, training.architecture, comm.size, number), f"round {number}"
        assert list_kinds(training.store.parameters) == training.method.spec.slots(run)
        total += sum(counted)
    if settings.get("method__name") in ("local-sgd", "data-parallel"):
        assert cost(run, training.architecture, comm.size).sent_bytes(0, number + 1) == total


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(transfers, "TRANSFER_WIDTHS", (32, 64))
    monkeypatch.setattr(links, "MESSAGE_BYTES", (2**10, 2**14))
    monkeypatch.setattr(alone, "REPEATS", 1)
    return monkeypatch


def find_shapes(measured):
    return {(row["batch"], row["inputs"], row["outputs"]) for row in measured.measured["products"]["points"]}


@pytest.mark.ranks(also=1)
def test_the_cluster_is_measured_in_bounded_time_and_alike_on_every_rank(comm, quick):
    quick.setattr(timing, "SECONDS", 0.01)
    quick.setattr(timing, "TURN_SECONDS", 0.001)
    run, network = small_run(model__hidden=[32, 32]), mlp_network(64, (32, 32), 10)
    measured = measure.measure(run, network, comm)
    assert all(other == measured for other in comm.allgather(measured))
    time = round_time(cost(run, network, comm.size), measured)
    assert time.compute > 0 and time.transfer > 0
    assert set(measured.links) == {"alltoallv", "allreduce", "allgather"}
    assert len(measured.measured["alltoallv"].get("points", [])) == (2 if comm.size > 1 else 0)
    assert {(8, 64, 32), (8, -(-32 // comm.size), 10)} <= find_shapes(measured)


def test_the_cluster_is_measured_at_the_shapes_of_a_users_network(comm, quick):
    """Products that seem to take no longer when they are larger still have a rate."""

    def work_once(communicator, work):
        work()
        return 1e-4

    quick.setattr(timing, "time_slowest", work_once)
    quick.setattr(measure, "MOST_ELEMENTS", 8 * 256 * 9)
    run = own_run(model__name=f"{networks.__file__}:Convolutional", model__channels=[16, 8], model__hidden=6)
    measured = measure.measure(run, build_network(run, open_dataset("digits"), comm), comm)
    assert {(8 * 64, 9, 16), (128, 144, 8), (8, 32, 6)} <= find_shapes(measured)
    assert all(0 < rate < float("inf") for rate in measured.flops) and measured.product_seconds == 0
    assert all(other == measured for other in comm.allgather(measured))
