"""Scores of the full network against the whole one in plain torch: its calibration sample, its data, its moments."""

import numpy as np
import pytest
import torch
from batches import examples_of
from images_oracle import bits, key_of
from small import assert_near, on_root, small_run, trained, whole

from istmpi.config.methods import METHODS
from istmpi.training.loop import Training


def plain(training, sample):
    """The whole network as a function of examples: its weights gathered, its moments those of the sample."""
    weights = {name: torch.from_numpy(values) for name, values in whole(training).items()}
    stages, output_norm = training.architecture.stages, training.run.model.output_norm in (None, True)
    moments = {}

    def forward(x, calibrate=False):
        for stage in stages:
            x = x @ weights[f"{stage}.linear.weight"].T
            if stage == stages[-1] and not output_norm:
                return x / training.communicator.size  # a subnet sums over a P-th of the units, which are all dealt
            if calibrate:
                moments[stage] = x.mean(dim=0), ((x - x.mean(dim=0)) ** 2).mean(dim=0)
            mean, variance = moments[stage]
            x = (x - mean) / torch.sqrt(variance + 1e-5)
            if stage != stages[-1]:
                x = (x * weights[f"{stage}.norm.weight"] + weights[f"{stage}.norm.bias"]).clamp(min=0)
        return x

    forward(sample, calibrate=True)
    return forward


def scored(forward, x, y):
    outputs = forward(torch.from_numpy(x).double())
    losses = outputs.logsumexp(dim=1) - outputs[torch.arange(len(y)), torch.from_numpy(y)]
    return float(losses.mean()), float((outputs.argmax(dim=1).numpy() == y).mean())


def read_all(split):
    return examples_of(split, np.arange(len(split)))


def calibration_sample(training, count):
    """So many rows, or all of them, drawn by hand as the seed says."""
    key = key_of(training.run.train.seed, "calibration", 0)
    drawn = sorted(range(len(training.dataset.train)), key=lambda row: bits(key, row))
    return torch.from_numpy(examples_of(training.dataset.train, np.sort(drawn[:count]))[0]).double()


@pytest.mark.parametrize("case", ["often", "dropout", "fewer labels than ranks"])
def test_the_score_is_that_of_the_whole_network(comm, shared_tmp, case):
    """Of the present weights, however often they were scored before (more layers: mpi/test_full_network.py)."""
    settings = {"model__output_norm": False, "model__dropout": 0.5} if case == "dropout" else {}
    if case == "fewer labels than ranks":
        write(comm, shared_tmp / "two.npz", labels=2)
        settings = {"data__source": str(shared_tmp / "two.npz")}
    training, progress = trained(comm, **settings, evaluate__every=1)
    score = progress[-1].score
    loss, accuracy = scored(plain(training, calibration_sample(training, 1024)), *read_all(training.dataset.test))
    assert score.examples == len(training.dataset.test)
    assert score.loss == pytest.approx(loss, abs=1e-10) and score.score == pytest.approx(accuracy)
    assert len({one.score.loss for one in progress}) == 4


@pytest.mark.ranks(only=[2])
@pytest.mark.parametrize("method", METHODS)
def test_values_that_every_rank_has_are_the_owners_and_an_evaluation_does_not_send_them(comm, method):
    """A method says which weights every rank has after a round: to the last bit those of the store."""
    training, _ = trained(comm, method__name=method)
    training.method.publish()
    lent = training.method.values_on_all_ranks()
    assert len(set(comm.allgather(tuple(sorted(lent))))) == 1
    differ = {"ist", "fedavg", "dynamic-averaging", "codistillation", "joint", "easgd"}
    assert bool(lent) == (method not in differ)
    for name, values in lent.items():
        assert torch.equal(values, training.store.whole(name, comm))
    if not lent:
        return
    before = comm.traffic.bytes
    score = training.evaluate()
    sent = sum(comm.allgather(comm.traffic.bytes - before))
    gathered = training.evaluator.score()
    assert sent < 10_000 and (gathered.loss, gathered.score) == (score.loss, score.score)


def test_where_every_rank_has_its_own_file_the_weights_travel(comm, shared_tmp):
    """Files of different sizes, calibrated on all training examples: the score of all files laid end to end."""
    path = shared_tmp / f"data-{comm.rank}.npz"
    arrays = random_data(seed=comm.rank, rows=30 + 11 * comm.rank, labels=3)
    np.savez(path, **arrays)
    comm.barrier()
    settings = {"data__source": str(shared_tmp / "data-{rank}.npz"), "evaluate__calibration_examples": 10000}
    training, progress = trained(comm, evaluate__batch=16, **settings)
    per_rank = comm.allgather(arrays)
    together = {name: np.concatenate([one[name] for one in per_rank]) for name in arrays}
    forward = plain(training, torch.from_numpy(together["x_train"]).double())
    loss, accuracy = scored(forward, together["x_test"], together["y_test"])
    score = progress[-1].score
    assert (score.examples, score.loss) == (len(together["y_test"]), pytest.approx(loss, abs=1e-10))
    assert score.score == pytest.approx(accuracy) and comm.allgather(score) == [score] * comm.size


SUMMED = {
    "batch normalisation": {},
    "bias, no normalisation": {"model__norm": "none", "model__bias": True, "model__output_norm": False},
    "one hidden layer": {"model__hidden": [1000]},
    "a tenth, in float32": {"method__redeal": 0.1, "model__dtype": "float32"},
    "never redealt": {"method__redeal": 0.0},
    "never redealt, in float32": {"method__redeal": 0.0, "model__dtype": "float32"},
}


@pytest.mark.ranks(min=2)
@pytest.mark.parametrize("case", SUMMED)
def test_units_that_ranks_add_up_score_as_the_network_of_rank_0_alone(comm, monkeypatch, case):
    """Score, moments and temperature, of an evaluation and of a save without one; the weights send fewer bytes."""
    settings = {"model__hidden": [300, 300], "evaluate__examples": 60, "evaluate__calibration_examples": 40}
    settings |= {"evaluate__every": 2} | SUMMED[case]
    runs = []
    for plan in ("summed", "on_one"):
        if plan == "on_one":
            monkeypatch.setattr("istmpi.cost.evaluation.prefer_summed_units", lambda alone, *_: alone)
        training = Training(small_run(**settings), comm)
        assert getattr(training.evaluator.plan, plan)
        rounds = training.rounds()
        next(rounds)
        states = [training.collect_state(calibrated=True)]
        scores = [progress.score for progress in rounds if progress.score]
        runs.append((scores, [*states, training.collect_state(calibrated=True)]))
    (scores, states), (expected_scores, expected_states) = runs
    tolerance = 1e-4 if "float32" in case else 1e-10
    assert len(scores) == len(expected_scores) == 2
    for score, expected in zip(scores, expected_scores, strict=True):
        assert score.loss == pytest.approx(expected.loss, rel=tolerance) and score.score == expected.score
        assert score.form == expected.form and score.further == expected.further
    if comm.rank:
        return
    for (header, pieces, _), (expected, expected_pieces, _) in zip(states, expected_states, strict=True):
        assert header.temperature == pytest.approx(expected.temperature, rel=tolerance)
        moments, expected_moments = (
            {piece.path: piece.values for piece in found if piece.path.startswith("norm/")}
            for found in (pieces, expected_pieces)
        )
        assert moments.keys() == expected_moments.keys() and bool(moments) == (case != "bias, no normalisation")
        assert_near(moments, expected_moments, tolerance)


def random_data(seed, rows, labels):
    random = np.random.default_rng(seed)
    x = random.normal(size=(2 * rows, 6)).astype(np.float32)
    y = np.concatenate([np.arange(labels), random.integers(0, labels, 2 * rows - labels)])
    order = np.concatenate([np.arange(rows), rows + np.arange(rows)])
    x, y = x[order], y[order]
    y_test = np.concatenate([y[:3], y[rows + 3 :]])  # every class in both splits
    return {"x_train": x[:rows], "y_train": y[:rows], "x_test": x[rows:], "y_test": y_test}


def write(comm, path, labels):
    on_root(comm, lambda: np.savez(path, **random_data(0, 50, labels)))


def test_a_rank_gets_on_with_each_batch_that_it_evaluates(comm, monkeypatch):
    """Or one that is slow in a long evaluation would be taken for stuck."""
    training, _ = trained(comm, evaluate__batch=3, train__rounds=1)
    moments = []
    monkeypatch.setattr(comm.whereabouts, "heartbeat", lambda: moments.append(1))
    assert training.evaluate().examples // 3 <= sum(comm.allgather(len(moments)))
