"""Answers that leave at an early exit: predict --exit-threshold, evaluate --exits."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from exported import open_network
from own_runs import RESNET
from resuming import save
from small import own_run

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.comm import world
from istmpi.deploy.exits import choose_exits, count_flops, measure_entropy
from istmpi.deploy.network import CalibratedNetwork
from istmpi.training.loop import Training


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    training = Training(
        own_run(**RESNET | {"model__exits": [1], "model__dtype": "float32", "train__rounds": 6}), world()
    )
    list(training.rounds())
    file = tmp_path_factory.mktemp("exits") / "network.h5"
    save(training, file, calibrated=True)
    return file


def predicted(answer, path, *options):
    return list(csv.DictReader(io.StringIO(answer("predict", path, "digits", "--outputs", *options))))


def entropy_of(row):
    logits = torch.tensor([float(row[f"output_{name}"]) for name in range(10)], dtype=torch.float64)
    return float(torch.distributions.Categorical(logits=logits).entropy()) / np.log(10)


def test_an_example_leaves_at_the_first_exit_whose_entropy_is_below_the_threshold(path, answer):
    """Nobody leaves early at zero, and all do at one."""
    assert {row["exit"] for row in predicted(answer, path, "--exit-threshold", 0)} == {"2"}
    first, last = predicted(answer, path, "--exit-threshold", 1), predicted(answer, path)
    threshold = np.median([entropy_of(row) for row in first])
    rows = predicted(answer, path, "--exit-threshold", threshold)
    assert {row["exit"] for row in rows} == {"1", "2"} and {row["exit"] for row in first} == {"1"}
    for row, of_last in zip(rows, last):
        if row["exit"] == "1":
            assert entropy_of(row) <= threshold + 1e-6
        else:
            assert row["class"] == of_last["class"] and row["output_3"] == of_last["output_3"]
    assert {int(row["flops"]) for row in rows} == set(count_flops(open_network(path)))


def test_the_flops_of_the_last_exit_are_those_of_the_cost_model_and_of_the_first_its_part(path):
    with open_checkpoint(path) as checkpoint:
        network = CalibratedNetwork(checkpoint)
        architecture = checkpoint.architecture
    first, last = count_flops(network)
    operators = {"first": 0, "all": 0}
    for operator in architecture.operators:
        forward, _ = operator.flops(architecture.lengths)
        operators["all"] += forward
        if operator.module.startswith(("stem", "sections.0", "exits.1")):
            operators["first"] += forward
    assert (first, last) == (operators["first"], operators["all"])


def test_the_table_has_what_predictions_have(path, answer, refusal):
    by_threshold = {row["threshold"]: row for row in json.loads(answer("evaluate", path, "--exits", "--json"))}
    rows = predicted(answer, path, "--exit-threshold", 0.6)
    assert by_threshold[0.6]["accuracy"] == pytest.approx(np.mean([row["class"] == row["true_class"] for row in rows]))
    assert by_threshold[0.6]["flops"] == pytest.approx(np.mean([int(row["flops"]) for row in rows]))
    costs = [row["flops"] for row in by_threshold.values()]
    assert costs == sorted(costs, reverse=True)
    assert "leave at exit 2" in answer("evaluate", path, "--exits")
    for option in (["--by-class"], ["--top-k", 3]):
        assert f"{option[0]} does not go with --exits" in refusal("evaluate", path, "--exits", *option)


def test_entropy_is_normalised_and_the_last_exit_takes_all_that_remain():
    assert measure_entropy(np.zeros((1, 7))) == pytest.approx(1)
    assert measure_entropy(np.array([[1e4, 0.0]])) == pytest.approx(0)
    assert choose_exits(np.array([[[50.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]), 0.5).tolist() == [0, 1]


def test_a_network_with_one_exit_is_refused(checkpoints, refusal):
    told = refusal("predict", checkpoints / "batch.h5", "digits", "--exit-threshold", 0.5)
    assert "is not a classifier with early exits" in told
