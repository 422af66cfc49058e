"""The validation split that a run asks for: of every kind of data, without an example in common with what is learnt."""

import numpy as np
import pytest
import torch
from batches import examples_of
from graphs import NODES
from graphs import write as write_graph
from sparse_rows import LABELS
from sparse_rows import write as write_rows

from istmpi.config import Data
from istmpi.data.graph.split import batch_nodes
from istmpi.data.holdout import split_indices
from istmpi.data.sources import open_dataset, open_for_training
from istmpi.data.text.split import TextSplit
from istmpi.errors import ConfigError
from istmpi.training.best import Best


@pytest.mark.parametrize("fraction", [0.01, 0.5])
def test_examples_are_divided_by_seed_each_class_alike(fraction):
    labels = np.repeat([0, 1, 2], [500, 30, 170])
    train, validation = split_indices(700, fraction, 3, labels)
    assert sorted([*train, *validation]) == list(range(700))
    assert len(validation) == round(700 * fraction)
    assert (np.diff(train) > 0).all() and (np.diff(validation) > 0).all()
    for label, count in enumerate((500, 30, 170)):
        assert abs((labels[validation] == label).sum() - count * fraction) <= 1
    assert validation.tolist() == split_indices(700, fraction, 3, labels)[1].tolist()
    assert validation.tolist() != split_indices(700, fraction, 4, labels)[1].tolist()
    for none in (0.001, 0.999):
        with pytest.raises(ConfigError, match=r"data.validation = 0.\d+ of 100 training examples is \d+; both parts"):
            split_indices(100, none, 0)


def test_images_are_divided_and_keep_what_is_done_with_them():
    whole = open_for_training(Data(flip=True), seed=2)
    data = open_for_training(Data(flip=True, validation=0.2), seed=2)
    assert (len(data.train), len(data.splits["validation"]), len(data.test)) == (1150, 287, 360)

    def rows_of(split):
        x, y = examples_of(split, np.arange(len(split)))
        return [tuple(row) for row in np.column_stack([x.reshape(len(split), -1), y]).tolist()]

    assert sorted(rows_of(data.train) + rows_of(data.splits["validation"])) == sorted(rows_of(whole.train))
    assert data.train.resize(4).reshape((16,)).batch(np.arange(3)).inputs[0].shape == (3, 16)
    flipped, plain = (data.train.batch(np.arange(50), key).inputs[0] for key in (7, None))
    assert not torch.equal(flipped, plain)
    assert data.train.features_checksum != whole.train.features_checksum


def test_sparse_rows_are_divided(tmp_path):
    write_rows(tmp_path / "rows.h5", train=40)
    split = open_dataset(str(tmp_path / "rows.h5")).train
    train, validation = split.hold_out(0.25, 1)
    assert (len(train), len(validation)) == (30, 10)
    assert (train.count_labels(LABELS) + validation.count_labels(LABELS) == split.count_labels(LABELS)).all()
    rest, more = train.hold_out(0.5, 1)
    mine = rest.batch(np.arange(15))
    theirs = split.batch(rest.chosen)
    assert all(torch.equal(one, other) for one, other in zip(mine.inputs, theirs.inputs))
    assert torch.equal(mine.targets.columns, theirs.targets.columns)
    assert not {*rest.chosen} & {*more.chosen} and {*rest.chosen, *more.chosen} == {*train.chosen}
    assert rest.labels_checksum != more.labels_checksum != train.labels_checksum
    assert sum(part.density * len(part) for part in (train, validation)) == pytest.approx(split.density * 40)


def test_of_text_the_end_is_held_out_and_no_window_of_training_reaches_it():
    tokens = np.arange(103, dtype=np.uint8)
    told = []
    split = TextSplit(tokens, 5, lambda starts, length: told.append((starts.tolist(), length)))
    train, validation = split.hold_out(0.2, 9)
    assert [*train.tokens, *validation.tokens] == tokens.tolist()
    assert (len(train), len(validation)) == (16, 4)
    drawn = [train.batch(np.arange(16), key) for key in range(50)]
    assert max(int(batch.targets.max()) for batch in drawn) == 81
    told.clear()
    assert validation.batch(np.array([1])).inputs[0].tolist() == [[87, 88, 89, 90, 91]]
    assert told == [([87], 6)]
    with pytest.raises(ConfigError, match="data.validation = 0.04 of 103 tokens leaves 19 windows of 5 for training"):
        split.hold_out(0.04, 9)


def test_nodes_of_a_graph_are_divided_and_its_edges_are_not(tmp_path):
    data = open_dataset(write_graph(tmp_path / "graph.h5"))
    parts = batch_nodes(data, "neighbours", (2,)).with_validation(0.3, 5)
    train, validation = parts.train, parts.splits["validation"]
    assert sorted([*train.nodes, *validation.nodes]) == data.train.nodes.tolist()
    assert (train.how, validation.how) == ("neighbours", "full")
    assert train.graph is validation.graph
    batch = validation.batch(np.arange(1))
    assert batch.examples == len(validation.nodes) and len(batch.targets) == NODES


def test_own_validation_examples_are_taken_and_not_made_twice(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    arrays = {f"{name}_{split}": of for split in ("train", "test", "validation") for name, of in (("x", x), ("y", x))}
    np.savez(tmp_path / "own.npz", **arrays)
    data = open_dataset(str(tmp_path / "own.npz"))
    assert data.with_validation(0, 1) is data
    with pytest.raises(ConfigError, match="has a validation split. Leave data.validation out"):
        data.with_validation(0.1, 1)


def test_the_first_of_equal_scores_is_the_best_and_patience_counts_evaluations():
    best = Best(True, 3)
    seen = []
    for round, score in enumerate([0.1, 0.5, 0.5, float("nan"), 0.6, 0.2, 0.6, 0.3], 1):
        assert not best.exhausted
        best.take(round, score)
        seen.append((best.round, best.without_better))
    assert seen == [(1, 0), (2, 0), (2, 1), (2, 2), (5, 0), (5, 1), (5, 2), (5, 3)]
    assert best.exhausted and best.score == 0.6
    again = Best(True, 3)
    again.take_metrics([{"round": 1}, {"round": 5, "validation_score": 0.6}], 5)
    again.take_metrics([{"round": 6, "validation_score": 0.9}], 5)
    assert (again.round, again.score) == (5, 0.6)
    least = Best(False, 0)  # of errors; without patience nothing is exhausted
    for round, score in enumerate([3.0, 2.0, 4.0, 4.0, 4.0]):
        least.take(round, score)
    assert (least.round, least.exhausted) == (1, False)
