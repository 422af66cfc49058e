"""Graphs from the files that they come in: rules, counts, clusters, and what cannot be, in one line each."""

import csv
import gzip
import io
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from data_files import make_graph
from graphs import NODES, Matrix, matrix, write

from istmpi.data.hdf5 import open_prepared
from istmpi.data.prepare import prepare
from istmpi.data.settings import Data
from istmpi.data.sources import open_for_training
from istmpi.errors import ConfigError, DataError
from istmpi.tasks import NODE_CLASSES, NODE_LABELS

PAIRS = np.array([[0, 1, 2, 1, 4, 0], [1, 2, 3, 2, 4, 3]])
"""Of make_graph: undirected 0-1, 1-2, 2-3, 0-3; node 4 hears itself alone, node 5 has no edge."""
X = np.array([[n + 0.5, n * n] for n in range(6)], np.float32)
Y = np.array([0, 1, 0, 1, 0, 1])
MASKS = {"train_mask": Y < 0, "val_mask": Y < 0, "test_mask": Y < 0}
for name, nodes in (("train_mask", [0, 1]), ("val_mask", [5]), ("test_mask", [2, 4])):
    MASKS[name][nodes] = True


def arrays(**changed):
    """As PyG's data would be saved."""
    given = {"edge_index": PAIRS, "x": X, "y": Y, **MASKS, **changed}
    return {name: array for name, array in given.items() if array is not None}


def prepared(tmp_path, given, **options):
    np.savez(tmp_path / "graph.npz", **given)
    report = prepare("graph", tmp_path / "graph.npz", tmp_path / "graph.h5", force=True, **options)
    return report, open_prepared(report.target)


def edges_of(data):
    _, offsets, columns = data.test.batch(np.arange(1)).inputs
    return matrix(offsets, columns).numpy()


def expected_edges(directed=False):
    dense = np.zeros((6, 6))
    dense[PAIRS[1], PAIRS[0]] = 1
    np.fill_diagonal(dense, 0)
    return dense if directed else np.maximum(dense, dense.T)


def test_arrays_of_pyg(tmp_path):
    report, data = prepared(tmp_path, arrays())
    assert np.array_equal(edges_of(data), expected_edges())
    assert [*report.facts.values()] == [6, 2, 4, 1, 1, 2]  # nodes, alone, edges, loops, repeated, neighbours
    assert report.counts == {"train": 2, "test": 2, "validation": 1}
    assert (data.task, data.shape, data.outputs, data.classes) == (NODE_CLASSES, (2,), 2, ("0", "1"))
    x = data.train.batch(np.arange(1)).inputs[0].numpy()
    assert np.allclose(x, (X - X.mean(axis=0)) / X.std(axis=0), atol=1e-5)
    assert data.train.batch(np.arange(1)).targets.tolist() == [0, 1, -1, -1, -1, -1]
    assert data.splits["validation"].batch(np.arange(1)).targets.tolist() == [-1] * 5 + [1]


def test_a_directed_graph_is_heard_one_way_and_an_edge_told_in_both_is_not_there_twice(tmp_path):
    report, data = prepared(tmp_path, arrays(), directed=True)
    assert np.array_equal(edges_of(data), expected_edges(directed=True))
    assert (report.facts["directed edges"], report.facts["dropped duplicate edges"]) == (4, 1)
    report, data = prepared(tmp_path, arrays(edge_index=np.concatenate([PAIRS, PAIRS[::-1]], axis=1)))
    assert np.array_equal(edges_of(data), expected_edges())
    assert report.facts["dropped duplicate edges"] == 2  # 1-2 was there twice in each way


def test_tables_of_ogb_are_the_same_graph(tmp_path):
    _, expected = prepared(tmp_path, arrays())
    data = open_prepared(prepare("graph", make_graph(tmp_path / "ogb"), tmp_path / "ogb.h5").target)
    for split in expected.splits:
        one, other = (of.splits[split].batch(np.arange(1)) for of in (expected, data))
        assert all(np.array_equal(*pair) for pair in zip(one.inputs, other.inputs))
        assert np.array_equal(one.targets, other.targets)


def csr(dense):
    rows, columns = dense.nonzero()
    return np.searchsorted(rows, np.arange(len(dense) + 1)), columns, dense[rows, columns]


def test_matrices_as_those_of_cora(tmp_path):
    features = np.array([[0, 2, 2], [1, 0, 0], [0, 0, 0], [1, 1, 2], [0, 0, 3], [1, 0, 1]], np.float32)
    parts = {}
    for name, dense in (("adj", expected_edges()), ("attr", features)):
        keys = (f"{name}_indptr", f"{name}_indices", f"{name}_data", f"{name}_shape")
        parts |= dict(zip(keys, (*csr(dense), np.array(dense.shape))))
    _, data = prepared(tmp_path, {"labels": Y, **parts, **MASKS})
    assert np.array_equal(edges_of(data), expected_edges())
    sums = features.sum(axis=1, keepdims=True)
    assert np.allclose(data.train.graph.x, features / np.where(sums == 0, 1, sums))
    _, data = prepared(tmp_path, {"labels": Y, **parts, **MASKS}, normalise="none")
    assert np.array_equal(data.train.graph.x, features)


def test_several_labels_a_node_and_none_without_masks(tmp_path):
    _, data = prepared(tmp_path, arrays(y=np.array([[1, 0], [1, 1], [0, 0], [0, 1], [1, 1], [1, 0]])))
    assert (data.task, data.outputs, data.classes) == (NODE_LABELS, 2, None)
    assert data.train.batch(np.arange(1)).targets.tolist() == [[1, 0], [1, 1]] + [[-1, -1]] * 4
    given = {name: values for name, values in arrays().items() if name not in MASKS}
    report, data = prepared(tmp_path, {**given, "y": np.array([0.0, 1, np.nan, 1, 0, 1])})
    assert report.counts == {"train": 4, "test": 1}
    assert 2 not in {*data.train.nodes, *data.test.nodes}


def python2(value):
    """A pickle as Python 2 wrote them: protocol 2, scipy.sparse.csr and numpy.core by their old names."""
    content = pickle.dumps(value, protocol=2)
    for new, old in ((b"numpy._core", b"numpy.core"), (b"graphs\nMatrix", b"scipy.sparse.csr\ncsr_matrix")):
        content = content.replace(b"c" + new, b"c" + old)
    return content


def planetoid(folder):
    """Nodes 0 to 3 without, 4, 5 and 7 for testing; 6 is in no list."""
    folder.mkdir()
    dense, classes = np.eye(8, 3, dtype=np.float32) + 1, np.eye(2, dtype=np.int32)[[0, 1, 1, 0, 1, 0, 0, 1]]
    parts = {"graph": {0: [1, 7], 1: [0, 1], 4: [5], 7: [0], 6: []}}
    for prefix, nodes in (("", [0, 1]), ("all", [0, 1, 2, 3]), ("t", [7, 4, 5])):
        parts[f"{prefix}x"] = Matrix(*csr(dense[nodes]), dense[nodes].shape)
        parts[f"{prefix}y"] = classes[nodes]
    for name, value in parts.items():
        (folder / f"ind.tiny.{name}").write_bytes(python2(value))
    (folder / "ind.tiny.test.index").write_text("7\n4\n5\n")
    return dense, classes


def test_planetoids_files(tmp_path):
    dense, classes = planetoid(tmp_path / "raw")
    report = prepare("graph", tmp_path / "raw", tmp_path / "tiny.h5", normalise="none")
    data = open_prepared(report.target)
    expected = dense.copy()
    expected[6] = 0
    assert np.array_equal(data.train.graph.x, expected)
    assert np.array_equal(data.train.graph.labels, np.where(np.arange(8) == 6, -1, classes.argmax(axis=1)))
    assert [data.splits[name].nodes.tolist() for name in ("train", "validation", "test")] == [[0, 1], [2, 3], [4, 5, 7]]
    assert {(int(a), int(b)) for a, b in np.argwhere(edges_of(data)) if a < b} == {(0, 1), (0, 7), (4, 5)}
    assert report.facts["dropped edges from a node to itself"] == 1


class Runs:
    def __reduce__(self):
        return print, ("this must not be run",)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("graph", pickle.dumps({0: Runs()}, protocol=2), r"ind\.tiny\.graph is not a Planetoid pickle"),
        ("graph", pickle.dumps(np.array([Runs()], object), protocol=2), "is not a Planetoid pickle"),
        ("graph", python2({0: [1], b"a": []}), "ind.tiny.graph is not a dictionary of node lists"),
        ("graph", python2({0: [1.5]}), "is not a dictionary of node lists"),
        ("test.index", b"500000000\n4\n5\n", r"ind.tiny.\* do not fit together"),  # with features for each before it
        ("test.index", b"0_7\n4\n5\n", "ind.tiny.test.index cannot be read: '0_7' is not a number"),
    ],
)
def test_another_file_of_planetoid_is_refused_and_runs_nothing(tmp_path, name, content, message, capsys):
    planetoid(tmp_path / "raw")
    (tmp_path / "raw" / f"ind.tiny.{name}").write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        prepare("graph", tmp_path / "raw", tmp_path / "tiny.h5")
    assert "\n" not in str(error.value) and capsys.readouterr().out == ""


def test_clusters_are_cut_once(tmp_path):
    pytest.importorskip("pymetis")
    inside = np.random.default_rng(0).integers(0, 20, (3, 2, 80)) + 20 * np.arange(3)[:, None, None]
    pairs = np.concatenate([*inside, np.array([[0, 20, 40], [21, 41, 1]])], axis=1)
    given = {"edge_index": pairs, "x": np.ones((60, 2)), "y": np.arange(60) % 2}
    report, data = prepared(tmp_path, given, clusters=3, normalise="none")
    assert report.facts["clusters"] == 3 and report.facts["share of edges between clusters"] < 0.2
    assert [len({*part}) for part in np.split(data.train.graph.clusters, 3)] == [1, 1, 1]
    assert len(open_for_training(Data(source=str(report.target), graph="clusters")).train) == 3


def test_clusters_need_metis_and_a_graph_that_was_cut(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(DataError, match=r"METIS.*pip install 'istmpi\[graph\]'"):
        prepared(tmp_path, arrays(), clusters=2)
    report, _ = prepared(tmp_path, arrays())
    with pytest.raises(ConfigError, match="--clusters N"):
        open_for_training(Data(source=str(report.target), graph="clusters"))
    with pytest.raises(ConfigError, match="data.graph = 'clusters' is for graphs"):
        open_for_training(Data(graph="clusters"))


FAR = np.array([[0, 1], [1, 9]])
CSR = {
    "edge_index": None,
    "adj_indptr": np.array([0, 1, 2, 3, 4, 4, 4]),
    "adj_indices": np.array([1, 2, 3, 0]),
    "adj_shape": np.array([6, 6]),
}
"""The matrix of a ring of four of the nodes, in place of pairs."""


BAD = {
    "an edge to a node that does not exist": ({"edge_index": FAR}, {}, "edge 1 goes from node 1 to node 9"),
    "a negative node": ({"edge_index": -FAR}, {}, "node -1, but"),
    "a node that is trained on and scored": ({"test_mask": Y >= 0}, {}, "node 0 is both a train and a test node"),
    "no edge": ({"edge_index": np.zeros((2, 3), int)}, {}, "no edges"),
    "features with NaN": ({"x": np.where(X == 4, np.nan, X)}, {}, "node 2 has nan as feature 1"),
    "features that float32 merges": ({"x": 1.7e9 + np.arange(6.0)[:, None]}, {}, "too close together for the 24 bits"),
    "a node without a label": ({"y": np.array([0, 1, -1, 1, 0, 1])}, {}, "test node 2 has no label"),
    "labels beyond all integers": ({"y": np.full(6, 1e300)}, {}, "whole numbers"),
    "a mask of neither true nor false": ({"train_mask": np.full(6, np.nan)}, {}, "train_mask must be true or false"),
    "values in words": ({**CSR, "adj_data": np.full(4, "x")}, {}, "are not compressed sparse rows"),
    "more clusters than nodes": ({}, {"clusters": 7}, "--clusters 7"),
    "a normalisation that there is not": ({}, {"normalise": "row"}, "--normalise row"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, case):
    changed, options, said = BAD[case]
    with pytest.raises((DataError, ConfigError), match=said) as error:
        prepared(tmp_path, arrays(**changed), **options)
    assert "\n" not in str(error.value) and not (tmp_path / "graph.h5").exists()


@pytest.mark.parametrize("several", [False, True])
def test_predictions_are_what_was_scored(tmp_path, istmpi_command, answer, several):
    """A line for each node; those of the test nodes have the score that the run's summary says."""
    source, folder = write(tmp_path / "graph.h5", several), tmp_path / "run"
    words = ["--data", source, "--model", "sage", "--hidden", "16,16", "--batch", "1", "--rounds", "2", "--out", folder]
    code, out, err = istmpi_command("train", *words, "--json")
    assert code == 0, err
    score = json.loads(out)["last"]["score"]["score"]
    out = answer("predict", folder / "network.h5", source)
    rows, data = list(csv.DictReader(io.StringIO(out))), open_prepared(source)
    assert [row.pop("node") for row in rows] == [str(node) for node in range(NODES)]
    test = data.test.nodes
    true = data.train.graph.labels[test]
    if several:
        said = np.array([[float(value) > 0.5 for value in rows[node].values()] for node in test])
        assert score == pytest.approx(2 * (said & (true == 1)).sum() / (said.sum() + (true == 1).sum()))
    else:
        assert score == pytest.approx(np.mean([int(rows[node]["class"]) for node in test] == true))


def test_the_command_tells_what_it_found_and_ends_with_2(tmp_path, istmpi_command, refusal):
    raw, edges = make_graph(tmp_path / "raw"), tmp_path / "raw" / "raw" / "edge.csv.gz"
    code, out, _ = istmpi_command("prepare", "graph", raw, tmp_path / "a.h5")
    assert code == 0 and "edges, each in both directions" in out
    for edge in ("0,77", "0,1#5", "0,1_0", "0,١", " "):
        edges.write_bytes(gzip.compress(f"{edge}\n".encode()))
        said = "node 77" if edge == "0,77" else "edge.csv.gz cannot be read: could not convert"
        assert said in refusal("prepare", "graph", raw, tmp_path / "b.h5")


def test_a_damaged_file_is_named(tmp_path):
    path = Path(write(tmp_path / "graph.h5"))
    row = open_prepared(path).train.graph.x[20].tobytes()
    path.write_bytes(path.read_bytes().replace(row, bytes([row[0] ^ 1]) + row[1:], 1))
    with pytest.raises(DataError, match="damaged"):
        open_prepared(path).test.batch(np.arange(1))
