"""GIST: training on graphs against a dense oracle, whatever the ranks; the full network; what cannot be."""

import numpy as np
import pytest
import torch
from graph_oracle import loss_of, train
from graphs import CLASSES, FEATURES, naive_logits, write
from live_bytes import LiveBytes
from own_runs import own_trained
from replay_cases import GCN, SAMPLED
from small import assert_same_bits, assert_trains, own_run, whole

from istmpi.cost.evaluation import evaluation_plan
from istmpi.cost.whole_graph import whole_graph_bytes
from istmpi.evaluation.full import FullNetwork
from istmpi.models.graphs import GAT
from istmpi.training.loop import Training

WIDTHS = {"hidden1": 13, "hidden2": 11}
TOLERANCE = 1e-8
"""A layer normalisation over two or three units makes more of what rounding leaves of their difference."""


@pytest.fixture
def graph(comm, shared_tmp):
    if comm.rank == 0:
        write(shared_tmp / "graph.h5")
        write(shared_tmp / "several.h5", several=True)
    comm.barrier()
    return str(shared_tmp / "graph.h5")


def settings(graph, **changed):
    return GCN | {"data__source": graph, "train__rounds": 2, "optimizer__lr": 0.1} | changed


CLUSTERS = {"data__graph": "clusters", "train__batch": 2}
CASES = {
    "full": {},
    "clusters, a tenth redealt": {**CLUSTERS, "method__redeal": 0.3},
    "neighbours": SAMPLED,
    "features first": {"model__aggregate_first": True},
}


def assert_trains_as_oracle(training):
    data, ranks = training.dataset.train, training.communicator.size
    return assert_trains(training, lambda initial: train(training.run, WIDTHS, data, initial, ranks), TOLERANCE)


@pytest.mark.parametrize(
    "model, case", [*(("sage", case) for case in CASES), ("gcn", "features first"), ("gcn", "neighbours")]
)
def test_it_trains_as_the_dense_oracle_does(comm, graph, model, case):
    training = Training(own_run(**settings(graph, model__name=model, **CASES[case])), comm)
    progress, expected = assert_trains_as_oracle(training)
    outputs, targets = full_outputs(training, expected)
    right = float((outputs.argmax(dim=1) == targets).sum()) / int((targets >= 0).sum())
    score = progress[-1].score
    assert (score.score, score.examples) == (pytest.approx(right), int((targets >= 0).sum()))
    assert score.loss == pytest.approx(float(loss_of(outputs, targets)))


def test_heads_of_attention_are_dealt(comm, graph):
    """The score is that of the plain module, whose last product sums P times the heads of a subnet."""
    heads, units = 6, 3
    ours = {**settings(graph, model__name="gat", model__heads=[heads], model__units=units), **CLUSTERS}
    del ours["model__hidden"]
    training, progress = own_trained(comm, **ours)
    score = progress[-1].score
    weights = {name: torch.from_numpy(values) for name, values in whole(training).items()}
    plain = GAT(FEATURES, CLASSES, (heads,), units).double()
    plain.load_state_dict({**weights, "last.weight": weights["last.weight"] / comm.size})
    batch = training.dataset.test.batch(np.arange(1)).to("cpu", torch.float64)
    outputs, on = plain(*batch.inputs).detach(), batch.targets >= 0
    assert score.loss == pytest.approx(float(loss_of(outputs, batch.targets)), abs=1e-9)
    assert score.score == pytest.approx(float((outputs.argmax(dim=1) == batch.targets)[on].double().mean()))


def test_several_labels_a_node(comm, graph):
    run = own_run(**settings(graph.replace("graph.h5", "several.h5"), model__name="sage", **CLUSTERS))
    training = Training(run, comm)
    progress, expected = assert_trains_as_oracle(training)
    outputs, targets = full_outputs(training, expected)
    on = targets[:, 0] >= 0
    said, true = outputs[on] > 0, targets[on] == 1
    f1 = 2 * (said & true).sum() / (said.sum() + true.sum())
    score = progress[-1].score
    assert (score.score, score.examples) == (pytest.approx(float(f1)), int(on.sum()))
    assert score.loss == pytest.approx(float(loss_of(outputs, targets)))


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_local_graphs_may_be_of_any_size(comm, graph, shared_tmp, model):
    """What is free on a rank with a large graph is not on one with a small one, but all have the same plan."""
    nodes = 40 if comm.rank == 0 else 400
    write(shared_tmp / f"uneven-{comm.rank}.h5", seed=comm.rank, nodes=nodes, edges=2 * nodes)
    source = str(shared_tmp / "uneven-{rank}.h5")
    hidden = {"hidden1": 128, "hidden2": 128}
    changed = {"model__name": model, "data__placement": "local", "model__hidden": list(hidden.values())}
    training, progress = own_trained(comm, **settings(source, **changed))
    score = progress[-1].score
    weights = {name: torch.from_numpy(one) for name, one in whole(training).items()}
    outputs, targets = full_outputs(training, weights, hidden)
    on = int((targets >= 0).sum())
    sums = [float((outputs.argmax(dim=1) == targets).sum()), float(loss_of(outputs, targets)) * on, on]
    right, loss, count = comm.allreduce_sum(np.array(sums, dtype=float)).tolist()
    assert (score.score, score.examples) == (pytest.approx(right / count), count)
    assert score.loss == pytest.approx(loss / count)


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_units_spread_over_ranks_give_the_same_score(comm, graph, model, monkeypatch):
    """Whatever room there is: each rank with some units of each layer, some nodes at a time, or with all weights."""
    monkeypatch.setattr("istmpi.evaluation.spread_units.GATHERED", 60)
    training, _ = own_trained(comm, **settings(graph, model__name=model, train__rounds=1))
    network, evaluator = training.architecture, training.evaluator
    scores = []
    for room in (0, 10**9):
        plan = evaluation_plan(network, comm.size, room, [], numbers=3 + 3 * 3)  # of three classes
        assert plan.by_units == (room == 0) and bool(plan.sharded) == plan.by_units
        evaluator.network = FullNetwork(network, training.store, comm, plan.sharded, by_units=plan.by_units)
        before = comm.traffic.bytes
        scores.append(evaluator.score())
        assert sum(comm.allgather(comm.traffic.bytes - before)) == plan.sent
    assert scores[0].loss == pytest.approx(scores[1].loss, abs=1e-9)
    assert scores[0].score == scores[1].score


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_a_whole_graph_takes_the_memory_that_is_planned(comm, graph, model, monkeypatch):
    monkeypatch.setattr("istmpi.evaluation.spread_units.GATHERED", 1000)
    monkeypatch.setattr("istmpi.cost.whole_graph.GATHERED", 1000)
    wide = {"hidden1": 2048, "hidden2": 2048}
    training = Training(own_run(**settings(graph, model__name=model, model__hidden=list(wide.values()))), comm)
    network, store = training.architecture, training.store
    plan = evaluation_plan(network, comm.size, 0, [])
    full = FullNetwork(network, store, comm, plan.sharded, by_units=plan.by_units)
    full.load_moments({})
    inputs = training.dataset.test.batch(np.arange(1)).to("cpu", torch.float64).inputs
    with LiveBytes([*store.tensors.values(), *full.gathered.values(), *inputs]) as counter:
        full(*inputs)
    assert 0.8 <= counter.peak / whole_graph_bytes(network, comm.size) <= 1.2


def full_outputs(training, weights, widths=WIDTHS):
    """Of the whole graph by the full network, and the targets of the test split."""
    batch = training.dataset.test.batch(np.arange(1))
    scale = dict.fromkeys(widths, 1 / training.communicator.size)
    return naive_logits(training.run.model.name, weights, batch.inputs, scale), batch.targets


def test_a_batch_without_a_training_node_changes_nothing(comm, graph):
    """Clusters of two nodes, some of which have none that is for training."""
    training = Training(own_run(**settings(graph, **CLUSTERS, train__rounds=1)), comm)
    before = whole(training)
    none = torch.full((len(training.dataset.train.graph),), -1)
    network = training.architecture.build(training.architecture.lengths)
    batch = training.dataset.test.batch(np.arange(1)).to("cpu", torch.float64)
    loss = training.method.task.loss(network(*batch.inputs), none)
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(not one.grad.any() for one in network.parameters())
    assert_same_bits(before, whole(training))


def test_a_network_of_ones_own_is_trained_alike(comm, graph):
    """The same class, found and proved instead of declared: the same weights to the last bit, the same score."""
    found, scores = [], []
    for name in ("sage", "istmpi.models.graphs:SAGE"):
        training = Training(own_run(**settings(graph, model__name=name, **CLUSTERS)), comm)
        scores.append(list(training.rounds())[-1].score)
        found.append(whole(training))
        assert training.architecture.nodes[1] == len(training.dataset.train.graph)
    assert_same_bits(*found)
    assert scores[0].loss == pytest.approx(scores[1].loss, abs=1e-9) and scores[0].score == scores[1].score
