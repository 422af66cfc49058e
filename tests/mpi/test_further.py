"""Further scores are those of their definitions on all examples, on any number of ranks."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import small_run

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm.ledger import EVALUATION
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate
from istmpi.evaluation.further import ClassTotals, NumberTotals, find_area
from istmpi.evaluation.planned_bytes import plan_evaluations
from istmpi.training.loop import Training
from istmpi.training.run import run_training


@pytest.fixture
def table(comm, shared_tmp):
    """``table(classes)`` writes examples of so many classes, or of two numbers to predict if there are none."""

    def make(classes):
        path = shared_tmp / f"of-{classes}.npz"
        draw = np.random.default_rng(classes)
        x = draw.normal(size=(500, 12)).astype(np.float32)
        noise = draw.normal(size=(500, max(classes, 2)))
        scores = x @ draw.normal(size=(12, max(classes, 2))) + noise
        y = scores.argmax(1) if classes else (scores * (1, 100) + (5, 1000)).astype(np.float32)
        if classes:
            y[:classes] = range(classes)  # each is learnt
        if comm.rank == 0:
            np.savez(path, x_train=x[:380], y_train=y[:380], x_test=x[380:], y_test=y[380:])
        comm.barrier()
        return path, x[380:], y[380:]

    return make


def trained(comm, path, folder, **settings):
    run = small_run(data__source=str(path), output__folder=str(folder), train__rounds=6, evaluate__batch=7, **settings)
    return run_training(run, comm)


def outputs_of(path, x):
    with open_checkpoint(path) as checkpoint:
        return CalibratedNetwork(checkpoint)(x)


def confusion_of(labels, predicted, classes):
    counted = np.zeros((classes, classes), int)
    for label, taken in zip(labels, predicted):
        counted[label, taken] += 1
    return counted


@pytest.mark.parametrize("classes", [2, 7, 30])
def test_scores_of_classes_are_counted_over_all_examples(table, comm, shared_tmp, classes):
    path, x, y = table(classes)
    folder = shared_tmp / f"run-{classes}"
    summary = trained(comm, path, folder, evaluate__top_k=[k for k in (2, 4) if k < classes])
    score = evaluate(folder / "network.h5", comm).score
    outputs = outputs_of(folder / "network.h5", x)
    counted = confusion_of(y, outputs.argmax(1), classes)
    assert np.array_equal(score.further.confusion, counted)
    present = counted.sum(1) > 0
    recall = np.diag(counted)[present] / counted.sum(1)[present]
    f1 = [2 * counted[k, k] / max(counted[k].sum() + counted[:, k].sum(), 1) for k in range(classes)]
    met = counted.sum(1) + counted.sum(0) > 0
    assert score.further.f1 == pytest.approx(f1)
    figures = {"balanced accuracy": recall.mean(), "macro-F1": np.array(f1)[met].mean()}
    for k in (2, 4):
        if k < classes:
            first = np.argsort(-outputs, axis=1, kind="stable")[:, :k]
            figures[f"top-{k} accuracy"] = np.mean([label in row for label, row in zip(y, first)])
    if classes == 2:
        margins = outputs[:, 1] - outputs[:, 0]
        pairs = margins[y == 1][:, None] - margins[y == 0][None]
        figures["AUC"] = ((pairs > 0) + (pairs == 0) / 2).mean()
    assert dict(score.further.figures) == pytest.approx(figures)
    if comm.rank == 0:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert lines[-1]["macro_f1"] == summary.last.score.further.figures["macro-F1"]
        record = json.loads((folder / "summary.json").read_text())
        assert record["last"]["score"]["further"]["confusion"] == counted.tolist()


def test_their_bytes_are_planned(table, comm):
    """Also those of the last evaluation, whose confusion and outputs of all examples are details."""
    for classes in (2, 7):
        training = Training(small_run(data__source=str(table(classes)[0]), train__rounds=4, evaluate__every=2), comm)
        before = comm.ledger.sent[EVALUATION].bytes
        list(training.rounds())
        planned = plan_evaluations(training.evaluator.planned)
        assert planned.sent == sum(comm.allgather(comm.ledger.sent[EVALUATION].bytes - before))


def test_scores_of_numbers_are_in_the_units_of_the_data(table, comm, shared_tmp):
    path, x, y = table(0)
    folder = shared_tmp / "numbers"
    for settings in ({}, {"data__standardise": False, "optimizer__lr": 1e-6}):
        trained(comm, path, folder, **settings)
        score = evaluate(folder / "network.h5", comm).score
        errors = outputs_of(folder / "network.h5", x) - y
        spread = ((y - y.mean(0)) ** 2).sum(0)
        assert score.score == pytest.approx(np.abs(errors).mean(), rel=1e-5)
        assert score.further.figures["RMSE"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
        assert score.further.figures["R2"] == pytest.approx((1 - (errors**2).sum(0) / spread).mean(), rel=1e-5)
        folder = shared_tmp / "plain"


@pytest.mark.ranks(only=[1])
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30), st.integers(1, 29))
def test_the_area_is_the_share_of_pairs_in_order_however_examples_are_divided(rows, cut):
    ones, zeros = ([margin for margin, label in rows if label is kind] for kind in (True, False))
    area = find_area(np.array(rows, dtype=float))
    if not ones or not zeros:
        assert area is None
        return
    assert area == pytest.approx(np.mean([(one > zero) + (one == zero) / 2 for one in ones for zero in zeros]))
    whole, parts = (ClassTotals(2, None, (), lambda kept: kept, details=True) for _ in range(2))
    outputs = torch.tensor([[0.0, margin] for margin, _ in rows])
    labels = torch.tensor([int(label) for _, label in rows])
    sums = whole.add_up(outputs, labels)
    divided = sum(parts.add_up(outputs[part], labels[part]) for part in (slice(None, cut), slice(cut, None)))
    assert whole.score(sums, len(rows)) == parts.score(divided, len(rows))


@pytest.mark.ranks(only=[1])
def test_a_constant_target_is_explained_only_by_itself():
    for error, wanted in ((0.0, 1.0), (0.5, 0.0)):
        totals = NumberTotals(1, None)
        sums = totals.add_up(torch.full((4, 1), 3.0 + error), torch.full((4, 1), 3.0))
        assert totals.score(sums, 4).figures == {"RMSE": error, "R2": wanted}
