"""Graphs: sums over neighbours against dense matrices, clusters, samples, tables of networks, what they cost."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from graphs import CLASSES, FEATURES, NODES, made, matrix
from torch.nn import functional

from istmpi.config import Run
from istmpi.cost import cost
from istmpi.cost.evaluation import evaluation_plan
from istmpi.data.graph.split import Graph, GraphSplit, sample_neighbours
from istmpi.data.sparse.split import Ragged
from istmpi.errors import ConfigError
from istmpi.inspection.examine import inspect
from istmpi.models.aggregation import drop
from istmpi.models.graphs import GAT, GCN, SAGE
from istmpi.models.tables import Facts, find_table
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.tasks import NODE_CLASSES, NodeClasses

MODELS = {"gcn": GCN, "sage": SAGE}


def split(how="full", several=False, fanout=(2, 2)):
    return GraphSplit(made(several=several), np.arange(0, NODES, 2), how, fanout)


def whole():
    x, offsets, columns = split().batch(np.arange(1)).inputs
    return x.double(), offsets, columns


def test_no_warning_about_sparse_matrices_reaches_a_user():
    """A product on a GPU makes a matrix whose checks nobody chose; here one is made by hand."""
    matrix = "torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (1, 1))"
    program = f"import istmpi.models.aggregation, torch; {matrix}.to_sparse_csr()"
    assert not subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True).stderr


@pytest.mark.parametrize("model", [GCN, SAGE, GAT])
def test_graph_networks_train_on_bags_of_words_under_autocast(model):
    """Sparse products have no bfloat16: they are in float32."""
    data = split(several=True)
    network = model(FEATURES, CLASSES, (4, 4))
    plain = network(*data.batch(np.arange(1)).inputs)
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(*data.batch(np.arange(1)).inputs)
    logits.float().square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in network.parameters())
    assert torch.allclose(logits.float(), plain, atol=0.05 * plain.abs().max().item())


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"hidden": 0}, r"model.hidden = \[0\] must name at least one layer of at least one unit\."),
        ({"hidden": [1.5]}, r"model.hidden = \[1.5\] must be a whole number, each\."),
        ({"hidden": "abc"}, "model.hidden = 'abc' must be a list\\."),
        ({"dropout": 1.0}, r"model.dropout = 1.0 must lie in \[0, 1\)\."),
        ({"aggregate_first": 3}, "model.aggregate_first = 3 must be true or false\\."),
    ],
)
def test_arguments_that_no_network_can_have_are_refused_before_it_is_made(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Run().override({"model.name": "gcn", **{f"model.{name}": value for name, value in arguments.items()}})
    assert Run().override({"model.name": "gcn", "model.hidden": 32}).model.arguments["hidden"] == (32,)


def test_dropout_of_a_bag_of_words():
    """A quarter of what is not zero is dropped, and the rest grows by a third."""
    x = torch.zeros(200, 1000)
    x[:, ::20] = 3.0
    bags = drop(x, torch.nn.Dropout(0.25))
    kept = bags.matrix.to_dense()
    assert torch.equal(bags.transposed.to_dense(), kept.t())
    assert set(kept.unique().tolist()) == {0.0, 4.0} and not kept[x == 0].any()
    assert (kept > 0).sum().item() == pytest.approx(7500, abs=6 * (10000 * 0.25 * 0.75) ** 0.5)
    none = torch.nn.Dropout(0.0)
    assert torch.equal(drop(x, none).matrix.to_dense(), x)
    for dense in (x.bfloat16(), x + 1):
        assert drop(dense, none) is dense


def test_a_union_of_clusters_keeps_the_edges_between_them():
    data = split("clusters")
    graph, dense = data.graph, matrix(*whole()[1:])
    assert len(data) == 5
    batch = data.batch(np.array([3, 1, 3]))
    nodes = np.flatnonzero(np.isin(graph.clusters, [1, 3]))
    x, offsets, columns = batch.inputs
    assert torch.equal(matrix(offsets, columns), dense[nodes][:, nodes])
    assert np.array_equal(x.numpy(), graph.x[nodes])
    expected = [graph.labels[node] if node % 2 == 0 else -1 for node in nodes]
    assert batch.targets.tolist() == expected and batch.examples == sum(node % 2 == 0 for node in nodes)


def star(leaves):
    lists = [list(range(1, leaves + 1))]
    for leaf in range(leaves):
        lists.append([0, 1 + leaves + 2 * leaf, 2 + leaves + 2 * leaf])
    lists += [[1 + leaf // 2] for leaf in range(2 * leaves)]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    columns = np.concatenate(lists).astype(np.int32)
    return Graph(np.zeros((len(lists), 1), np.float32), Ragged(offsets, (columns,)), np.zeros(len(lists), np.int64))


def test_neighbours_are_sampled_evenly():
    """Chi-square with 9 degrees of freedom: above 27.9 in one of 1,000 cases, for this seed it is not."""
    graph, count, draws = star(10), np.zeros(11), 3000
    for key in range(draws):
        nodes, _, _ = sample_neighbours(graph, np.array([0]), (3,), key)
        assert len(nodes) == 4
        count[nodes] += 1
    assert count[0] == draws
    expected = draws * 3 / 10
    # Three of ten without replacement: the variance of a count is 0.7 of a multinomial one's times 10 / 9.
    assert ((count[1:] - expected) ** 2 / expected).sum() / 0.7 * 0.9 < 27.9


def test_a_sample_goes_out_hop_by_hop():
    graph = star(10)
    nodes, offsets, columns = sample_neighbours(graph, np.array([0]), (4, 2), 5)
    dense = matrix(torch.from_numpy(offsets), torch.from_numpy(columns)).numpy()
    assert (dense <= matrix(graph.neighbours.offsets, graph.neighbours.arrays[0]).numpy()[nodes][:, nodes]).all()
    degrees, leaves = dense.sum(axis=1), (nodes > 0) & (nodes <= 10)
    assert degrees[0] == 4 and degrees[leaves].tolist() == [2] * 4 and not degrees[nodes > 10].any()
    assert [len(sample_neighbours(graph, np.array([0]), (99, 99), key)[0]) for key in (3, None)] == [31, 31]


def test_the_size_of_an_example_is_that_of_batches():
    data = split()
    assert data.measure_examples(1, 0) == (NODES, data.graph.edges)
    assert split("clusters").measure_examples(5, 0) == (NODES / 5, data.graph.edges / 5)
    nodes, edges = split("neighbours", fanout=(1,)).measure_examples(4, 0)
    assert 1 <= nodes <= 2 and edges <= 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("settings", [{"hidden": (6, 4, 3)}, {"hidden": (5,), "norm": "none", "dropout": 0.2}])
def test_the_declared_table_is_what_is_found(model, settings):
    own = user_network(model, (FEATURES,), CLASSES, settings, NODE_CLASSES)
    found, facts = inspect(own).tree(), Facts((FEATURES,), CLASSES, degree=2)
    declared = find_table(model, facts, own.settings).tree() | {"source": own.source.hash}
    declared["operators"] = [one for one in declared["operators"] if one["kind"] != "Aggregation"]
    for tree in (found, declared):
        tree["operators"].sort(key=lambda one: one["module"])
    assert found == declared


def of_table(model, **settings):
    code = user_network(model, (FEATURES,), CLASSES, settings, NODE_CLASSES)
    table = find_table(model, Facts((FEATURES,), CLASSES, degree=split().graph.edges / NODES), code.settings)
    network = Architecture(model, table, "float32")
    network.nodes = NODES, NODES
    return network


@pytest.mark.parametrize("model", MODELS)
def test_products_are_what_torch_counts_and_sums_are_edges_times_widths(model):
    hidden = (12, 8)
    batch = split().batch(np.arange(1))
    network = MODELS[model](FEATURES, CLASSES, hidden)
    dense_products = []

    class Products(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
                a, b = args[-2:]
                if a.layout == b.layout == torch.strided:
                    dense_products.append(2 * a.numel() * b.shape[1])
            return func(*args, **(kwargs or {}))

    with Products():
        NodeClasses.loss(network(*batch.inputs), batch.targets).backward()
    run = Run().override({"model.name": model, "train.batch": 1, "optimizer.name": "adam"})
    flops = cost(run, of_table(model, hidden=hidden), 1).largest.flops
    assert sum(dense_products) == flops.products
    assert float(flops.lookups) == pytest.approx(2 * 2 * split().graph.edges * (12 + 8 + CLASSES))


def naive_attention(x, weights, offsets, columns, heads, units):
    values = x @ weights["layers.0.product.weight"].T
    made = torch.zeros(len(x), heads * units, dtype=torch.float64)
    for head in range(heads):
        mine = values[:, head * units : (head + 1) * units]
        own, heard = weights["layers.0.scores.weight"][2 * head : 2 * head + 2, :, 0]
        for node in range(len(x)):
            others = [node, *columns[offsets[node] : offsets[node + 1]].tolist()]
            scores = [functional.leaky_relu(mine[node] @ own + mine[other] @ heard, 0.2) for other in others]
            shares = torch.softmax(torch.stack(scores), dim=0)
            made[node, head * units : (head + 1) * units] = sum(a * mine[n] for a, n in zip(shares, others))
    return made


def test_attention_is_over_what_a_node_hears_from_and_itself():
    torch.manual_seed(0)
    heads, units = 3, 4
    network = GAT(FEATURES, CLASSES, heads=(heads,), units=units).double()
    x, offsets, columns = split().batch(np.arange(1)).inputs
    weights = {name: values.detach() for name, values in network.named_parameters()}
    hidden = functional.elu(naive_attention(x.double(), weights, offsets, columns, heads, units))
    edges = matrix(offsets, columns) + torch.eye(len(x), dtype=torch.float64)
    root = edges.sum(1).rsqrt()
    logits = hidden @ weights["last.weight"].T + weights["last.bias"]
    assert torch.allclose(network(x.double(), offsets, columns), root[:, None] * (edges @ (root[:, None] * logits)))


@pytest.mark.parametrize("model, layers", [("gcn", 2), ("sage", 3)])
def test_all_weights_are_gathered_where_the_layers_that_a_pass_makes_fit_too(model, layers):
    """GraphSAGE has the input of its widest layer and two products of it at a time."""
    network = of_table(model, hidden=(64, 64))
    weights = sum(one.size(network.lengths) * one.itemsize for one in network.parameters.values())
    room = weights + layers * NODES * 64 * 4
    assert not evaluation_plan(network, 2, room, []).by_units
    assert evaluation_plan(network, 2, room - 1, []).by_units
