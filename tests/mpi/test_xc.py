"""Training on sparse rows with very many labels: against a dense oracle, whatever the ranks; the full network."""

import json

import numpy as np
import pytest
import torch
import xc_oracle
from exported import open_network
from own_runs import own_trained
from replay_cases import XC
from resuming import save
from small import assert_near, assert_trains, on_root, own_run, whole
from sparse_rows import FEATURES, LABELS, dense, write

from istmpi.cost.evaluation import evaluation_plan
from istmpi.data.sparse.predict import read_rows
from istmpi.deploy.prediction import write_ranked_lines
from istmpi.evaluation import evaluator
from istmpi.evaluation.full import FullNetwork
from istmpi.multilabel import AT
from istmpi.training.loop import Training

WIDTHS = {"hidden1": 9, "hidden2": 7}


@pytest.fixture
def rows(comm, shared_tmp):
    on_root(comm, lambda: write(shared_tmp / "rows.h5"))
    return str(shared_tmp / "rows.h5")


def settings(rows, **changed):
    return XC | {"data__source": rows, "train__rounds": 3} | changed


MOMENTUM = {"optimizer__momentum": 0.9}
CASES = {
    "plain": {},
    "momentum, in blocks": {**MOMENTUM, "model__label_block": 5},
    "carried, with decay": {**MOMENTUM, "method__optimizer_state": "carry", "optimizer__weight_decay": 0.1},
    "binary": {"train__multi_label_loss": "binary", "model__label_block": 4, "method__redeal": 0.3},
    "normalised": {"model__norm": "batch", **MOMENTUM},
}


@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_the_dense_oracle_does(comm, rows, case):
    training = Training(own_run(**settings(rows, **CASES[case])), comm)
    run, data = training.run, training.dataset.train
    _, weights = assert_trains(training, lambda initial: xc_oracle.train(run, WIDTHS, data, initial, comm.size))
    assert weights.keys() <= xc_oracle.AXES.keys()


@pytest.mark.parametrize("method", ["local-sgd", "data-parallel", "ist", "admm"])
def test_touching_few_rows_changes_no_method(comm, rows, method):
    """With all rows touched, and all logits at once, the same weights but for rounding."""
    found = []
    for few in (True, False):
        run = own_run(**settings(rows, method__name=method, **MOMENTUM, **{"model__label_block": 5 if few else 0}))
        training = Training(run, comm)
        training.method.subnet._sparse &= few
        list(training.rounds())
        found.append(whole(training))
    assert_near(*found, 1e-12)


def naive_scores(training, weights):
    share = 1 / training.communicator.size
    x, y = dense(training.dataset.test, np.arange(len(training.dataset.test)))
    weights = {name: torch.from_numpy(values) for name, values in weights.items() if "/" not in name}
    outputs = xc_oracle.logits(weights, torch.from_numpy(x), dict.fromkeys(WIDTHS, share), False)
    counts, rows = training.dataset.train.count_labels(LABELS), len(training.dataset.train)
    inverse = 1 + (np.log(rows) - 1) * 2.5**0.55 * (counts + 1.5) ** -0.55
    found = {"loss": float(xc_oracle.losses(outputs, torch.from_numpy(y), training.run.train.multi_label_loss).mean())}
    order = outputs.argsort(dim=1, descending=True).numpy()
    for k in AT:
        hit = np.take_along_axis(y, order[:, :k], axis=1)
        best = np.sort(y * inverse, axis=1)[:, ::-1][:, :k].sum()
        found[f"P@{k}"] = hit.sum() / k / len(y)
        found[f"PSP@{k}"] = (hit * inverse[order[:, :k]]).sum() / best
    return found


@pytest.mark.parametrize("loss", ["softmax", "binary"])
@pytest.mark.parametrize("sharded", [True, False])
def test_scores_are_those_of_all_logits_wherever_the_weights_lie(comm, rows, loss, sharded):
    few = {"train__rounds": 4, "train__batch": 8, "evaluate__form": "best"}
    run = own_run(**settings(rows, train__multi_label_loss=loss, **few))
    training = Training(run, comm)
    list(training.rounds())
    chosen = training.evaluate()
    expected = naive_scores(training, whole(training))
    network = training.architecture
    everything = {name for names in network.leaves.values() for name in names} if sharded else ()
    for batch in (7, 1000):
        of = evaluator.Evaluator(
            run.override({"evaluate.batch": batch}), network, training.dataset, training.store, comm
        )
        of.network = FullNetwork(network, training.store, comm, everything, spread=True)
        assert (of.network.labels is not None) == sharded
        score = of.score()
        assert {"loss": score.loss, "P@1": score.score, **score.more} == pytest.approx(expected, abs=1e-9)
        assert score.examples == len(training.dataset.test) and score.more.keys() == chosen.more.keys()


@pytest.mark.ranks(min=2)
def test_no_logits_travel(comm, rows):
    """What an evaluation sends is what was planned: of the last layer some numbers an example, whatever the labels."""
    training = Training(own_run(**settings(rows)), comm)
    network, evaluation = training.architecture, training.evaluator
    scarce = evaluation_plan(network, comm.size, 0, [0, len(training.dataset.test)], spread=True)  # calibrates nothing
    assert {"output.weight", "bag.weight"} <= scarce.sharded
    spread = FullNetwork(network, training.store, comm, scarce.sharded, spread=True)
    for plan, of in ((evaluation.plan, evaluation.network), (scarce, spread)):
        evaluation.network = of
        evaluation.score()
        before = comm.traffic.bytes
        evaluation.score()
        assert sum(comm.allgather(comm.traffic.bytes - before)) == plan.sent


def test_it_predicts_what_it_ranks_first(comm, rows, shared_tmp):
    training, _ = own_trained(comm, **settings(rows))
    save(training, shared_tmp / "network.h5", calibrated=True)
    network = open_network(shared_tmp / "network.h5")
    lines = "".join(write_ranked_lines(network, read_rows(rows, FEATURES), LABELS, 3, "jsonl")).splitlines()
    split = training.dataset.test
    weights = {name: torch.from_numpy(values) for name, values in whole(training).items() if "/" not in name}
    x, _ = dense(split, np.arange(len(split)))
    outputs = xc_oracle.logits(weights, torch.from_numpy(x), dict.fromkeys(WIDTHS, 1 / comm.size), False)
    odds, order = outputs.softmax(dim=1).sort(dim=1, descending=True)
    for number, line in enumerate(map(json.loads, lines)):
        assert (line["row"], line["labels"]) == (number, order[number, :3].tolist())
        assert line["scores"] == pytest.approx(odds[number, :3].tolist(), abs=1e-9)
    assert len(lines) == len(split)
