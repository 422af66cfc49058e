"""Networks with several exits: the weighted loss, where examples leave, and what is said of it."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from istmpi.deploy.prediction import Predicted, lines
from istmpi.errors import ConfigError
from istmpi.exits import (
    ExitPoint,
    entropies,
    exit_taken,
    joined,
    nearly_free,
    normalised_entropy,
    require_fitting,
    weighted_loss,
)
from istmpi.report.exit_plots import figure
from istmpi.tasks import Classification, Regression


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_loss_is_the_weighted_sum():
    targets, outputs = torch.tensor([0, 2, 1]), [random(3, 4, seed=seed) for seed in range(3)]
    each = [float(functional.cross_entropy(one, targets)) for one in outputs]
    assert float(weighted_loss(Classification.loss, outputs, targets, ())) == pytest.approx(sum(each))
    found = weighted_loss(Classification.loss, tuple(outputs), targets, (0.5, 0.0, 2.0))
    assert float(found) == pytest.approx(0.5 * each[0] + 2 * each[2])
    numbers = random(3, 4, seed=9)
    found = weighted_loss(Regression.loss, outputs[:2], numbers, (1.0, 3.0), reduction="sum")
    each = [float(((one - numbers) ** 2).sum() / 4) for one in outputs]
    assert float(found) == pytest.approx(each[0] + 3 * each[1])


def test_one_output_is_what_it_was():
    outputs, targets = random(5, 3), torch.tensor([0, 2, 1, 1, 0])
    assert joined(outputs) is outputs
    found = weighted_loss(Classification.loss, outputs, targets, ())
    assert torch.equal(found, functional.cross_entropy(outputs, targets))


@pytest.mark.parametrize(
    "weights, exits, said",
    [
        ((1.0, 2.0), 1, "has 1 output, the last one's included. Leave it out"),
        ((1.0, 1.0), 3, "has 3 outputs, the last one's included. Give 3 numbers"),
        ((0.0, 0.0), 2, "leaves nothing to train for"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, exits, said):
    require_fitting((2.0, 1.0, 0.0)[:exits], exits, "net")
    require_fitting((), exits, "net")
    with pytest.raises(ConfigError, match=said) as refused:
        require_fitting(weights, exits, "net")
    assert "\n" not in str(refused.value)


def naive_entropy(logits):
    """Of one example, as a formula; of what is no number nothing is known."""
    if any(map(math.isnan, logits)):
        return 1.0
    odds = np.exp(np.array(logits, np.float64) - max(logits))
    odds /= odds.sum()
    return -sum(p * math.log(p) for p in odds if p > 0) / math.log(len(odds))


def test_the_entropy_is_that_of_the_formula():
    outputs = torch.cat([3 * random(20, 5), torch.zeros(1, 5), torch.tensor([[0.0, 900, 0, 0, -math.inf]])])
    found = normalised_entropy(outputs)
    np.testing.assert_allclose(found, [naive_entropy(row) for row in outputs.tolist()], atol=1e-9)
    assert found[-2] == pytest.approx(1) and found[-1] == 0
    assert normalised_entropy(torch.zeros(2, 1)).tolist() == [0, 0], "of a single class all is known"


@given(st.integers(1, 4), st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]), st.integers(0, 5))
def test_an_example_leaves_at_the_first_exit_that_is_sure(early, threshold, seed):
    outputs = [2 * random(7, 4, seed=10 * seed + number) for number in range(early + 1)]
    outputs[0][0] = torch.nan
    outputs[0][1] = torch.tensor([1000.0, 0, 0, 0])  # no doubt at all: not below 0, either
    found = exit_taken(entropies(outputs), threshold).tolist()
    for example, taken in enumerate(found):
        sure = [naive_entropy(of[example].tolist()) < threshold or threshold == 1 for of in outputs[:-1]]
        assert taken == (sure.index(True) if any(sure) else early)
    if threshold in (0, 1):
        assert set(found) == {early if threshold == 0 else 0}


def test_the_threshold_that_costs_least():
    points = [(0.0, 0.90, 0.0), (0.1, 0.91, 0.2), (0.2, 0.896, 0.5), (0.3, 0.895, 0.6), (0.4, 0.8, 0.9)]
    curve = [ExitPoint(at, right, (early, 1 - early), ()) for at, right, early in points]
    assert nearly_free(curve).threshold == 0.2
    assert nearly_free(curve[:1]).threshold == 0
    drawn = figure(curve, [0.7, 0.9], "of $these$")
    x, y = drawn.axes[0].get_lines()[0].get_data()
    np.testing.assert_allclose([*zip(x, y)], [(early, right) for _, right, early in points])


def test_a_line_says_at_which_exit():
    predicted = Predicted(["a", "b"], np.array([[0, 2], [1, 0]], np.float32), np.array([1, 3]))
    text = "".join(lines([predicted], ["yes", "no"], 2, False, "csv"))
    assert text.splitlines()[0] == "example,class,probability,exit"
    assert [line.split(",")[0::3] for line in text.splitlines()[1:]] == [["a", "1"], ["b", "3"]]
    both = "".join(lines([predicted], ["yes", "no"], 2, True, "jsonl")).splitlines()
    assert [json.loads(line)["exit"] for line in both] == [1, 3]
    assert json.loads(both[0])["outputs"] == {"yes": 0, "no": 2}


def test_the_plan_refuses_weights_that_do_not_fit(istmpi_command):
    network = ["--model", "resnet", "--set", "model.blocks=[1,1]", "--set", "model.channels=[4,6]"]
    network += ["--set", "model.inner=[5,7]", "--set", "model.exits=[1]", "--set"]
    code, _, err = istmpi_command("train", "--dry-run", *network, "train.exit_weights=[1, 2, 3]")
    assert (code, err.count("\n")) == (2, 1) and "resnet has 2 outputs" in err
    assert istmpi_command("train", "--dry-run", *network, "train.exit_weights=[1, 2]")[0] == 0
