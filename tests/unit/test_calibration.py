"""What the full network is calibrated on: as many examples as a run can afford, of which each rank passes its share."""

from pathlib import Path

import numpy as np
import pytest
import torch
from own_runs import CONVOLUTIONAL, FILE
from small import own_run

from istmpi.config import Run
from istmpi.cost.calibration import SAMPLED, calibration_examples, forward_flops, rounds_flops
from istmpi.evaluation.fitting import COLDEST, HOTTEST, fit_temperature
from istmpi.inspection.examine import inspect
from istmpi.network.architecture import Architecture
from istmpi.network.arguments import user_network
from istmpi.simulated import simulate
from istmpi.training.loop import Training


@pytest.fixture(scope="module")
def convolutional():
    """A network of some 40 MFLOP an example, with a batch normalisation."""
    own = user_network(f"{FILE}:Convolutional", (3, 32, 32), 10, {"channels": (64, 64), "hidden": 64})
    return Architecture(own.name, inspect(own), "float32", own)


def run_of(**settings):
    small = {"train.batch": 16, "method.local_steps": 5, "train.rounds": 10}
    return Run().override(small | {key.replace("__", "."): value for key, value in settings.items()})


NORMS = Path(__file__).parents[1] / "networks/norm_nets.py"
TRACKED = {"model__name": f"{NORMS}:InstanceTracked", "model__scale": "none", "train__batch": 64}


def calibrated(comm, examples, network=CONVOLUTIONAL):
    """The moments of a network before training, on a sample of so many, and how many of it this rank passed."""
    training = Training(own_run(**network, evaluate__calibration_examples=examples), comm)
    passed = []
    full, evaluator = training.evaluator.network, training.evaluator
    calibrate = full.calibrate
    full.calibrate = lambda *inputs: (passed.append(len(inputs[0])), calibrate(*inputs))
    moved = []
    comm.whereabouts.heartbeat = lambda: moved.append(1)
    evaluator.calibrate()
    assert len(moved) >= len(list(full.module.modules())), "a rank gets on with every layer"
    return {name: [of.clone() for of in pair] for name, pair in full.moments.items()}, passed[0]


@pytest.mark.parametrize("ranks, network, examples", [(5, CONVOLUTIONAL, 2), (2, CONVOLUTIONAL, 59), (5, TRACKED, 59)])
def test_at_any_number_of_ranks_the_moments_are_those_of_one_batch(monkeypatch, ranks, network, examples):
    """To rounding, and the same bits on all ranks; who has too few examples for all ranks passes them everywhere."""
    monkeypatch.setattr("istmpi.cost.evaluation.FLOPS_OF_ONE", 0)
    ((expected, alone),) = simulate(lambda comm: calibrated(comm, examples, network), 1).require()
    assert alone == examples
    outcomes = simulate(lambda comm: calibrated(comm, examples, network), ranks).require()
    assert sum(passed for _, passed in outcomes) == (examples if examples >= ranks else ranks * examples)
    for moments, _ in outcomes:
        assert moments.keys() == expected.keys() and moments
        for name, pair in expected.items():
            for first, mine, alone in zip(outcomes[0][0][name], moments[name], pair, strict=True):
                assert torch.equal(mine, first)
                torch.testing.assert_close(mine, alone, rtol=1e-12, atol=1e-12)


def test_a_network_without_batch_normalisation_passes_nothing():
    def program(comm):
        training = Training(own_run(model__name=f"{FILE}:Rows"), comm)
        training.evaluator.network.load_weights()
        training.evaluator.network.module.register_forward_pre_hook(lambda *_: pytest.fail("a pass for nothing"))
        training.evaluator.calibrate()
        return training.evaluator.network.moments

    assert simulate(program, 2).require() == [{}, {}]


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("method", ["ist", "local-sgd"])
def test_an_evaluation_takes_a_tenth_of_the_run_as_far_as_its_sample_decides(convolutional, ranks, method):
    counts = {}
    for steps in (1, 20, 200, 20000):
        run = run_of(method__name=method, method__local_steps=steps)
        counts[steps] = count = calibration_examples(run, convolutional, ranks, 50_000, scored=100)
        evaluation = (count + 100) * forward_flops(convolutional, ranks)
        share = float(evaluation / (evaluation + rounds_flops(run, convolutional, ranks, 50_000)))
        at_least = max(64, 16 * ranks)
        assert at_least <= count <= SAMPLED
        if at_least < count < SAMPLED:
            free = 2**28 / forward_flops(convolutional, ranks)
            assert share == pytest.approx(0.1, abs=0.01) or count == int(free)
        elif count == SAMPLED:
            assert share <= 0.1
        else:
            assert share >= 0.1
        rounds = rounds_flops(run, convolutional, ranks)
        assert rounds == rounds_flops(run.override({"evaluate.every": 1}), convolutional, ranks)
    assert [*counts.values()] == sorted(counts.values()) and counts[20000] == SAMPLED == 1024
    seldom = run_of(method__name=method, method__local_steps=20000, evaluate__every=10)
    assert rounds_flops(seldom, convolutional, ranks) == 10 * rounds
    assert calibration_examples(run_of(evaluate__calibration_examples=3000), convolutional, ranks) == 3000


# ---- the temperature of a classifier: where a search over a grid finds it


def drawn(seed, hotter, count=400, classes=5):
    """Logits that say how probable the labels are once they are divided by a number."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 2, (count, classes))
    odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([generator.choice(classes, p=row) for row in odds])
    return torch.from_numpy(logits * hotter), torch.from_numpy(labels)


def naive(logits, labels):
    smoothing, (count, classes) = 1 / (len(labels) + 2), logits.shape
    totals = {}
    for temperature in np.exp(np.linspace(np.log(COLDEST), np.log(HOTTEST), 801)):
        scaled = logits.numpy() / temperature
        logs = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        total = -(1 - smoothing) * logs[range(count), labels.numpy()].sum() - smoothing / classes * logs.sum()
        totals[total] = temperature
    return totals[min(totals)]


@pytest.mark.parametrize("hotter", [0.2, 4])
def test_it_is_what_a_grid_finds(hotter):
    logits, labels = drawn(0, hotter)
    found = fit_temperature(logits, labels, lambda own: own)
    assert found == pytest.approx(naive(logits, labels), rel=1e-2)
    assert found == pytest.approx(hotter, rel=0.2)


def test_it_stays_within_bounds_where_all_are_right_and_where_nothing_is_known():
    right = torch.eye(4, dtype=torch.float64).repeat(50, 1)
    sure = fit_temperature(right, right.argmax(dim=1), lambda own: own)
    assert COLDEST < sure < 0.5  # one of two more would be wrong: not surer than that
    odds = torch.softmax(right / sure, dim=1).max(dim=1).values.mean()
    assert float(odds) == pytest.approx(1 - 1 / 202 * 3 / 4, rel=1e-6)
    assert fit_temperature(right * np.nan, right.argmax(dim=1), lambda own: own) == 1
    assert fit_temperature(drawn(2, 1)[0], drawn(3, 1)[1], lambda own: own) == pytest.approx(HOTTEST, rel=1e-6)
