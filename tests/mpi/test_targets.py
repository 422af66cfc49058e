"""Numbers to predict: learnt in units of their deviation, told in their own."""

import numpy as np
import pytest
from batches import examples_of
from exported import open_network
from offset_files import write as write_less_an_offset
from resuming import save
from small import assert_same_bits, checkpoint_state, on_root, small_run, trained, whole

from istmpi.config import Run
from istmpi.data.dense.predict import read_inputs
from istmpi.data.sources import open_dataset
from istmpi.deploy.export import export
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError, DataError
from istmpi.training.loop import Training


def like_diabetes(folder, rank=0, rows=442):
    """As scikit-learn's diabetes: few rows, features around 0 with a deviation of 0.05, targets of 150 and 77."""
    generator = np.random.default_rng(rank)
    x = generator.normal(0, 0.0476, (rows, 10)).astype(np.float32)
    y = 152 + 60 * x[:, 2] / 0.0476 + 30 * x[:, 8] / 0.0476 + generator.normal(0, 40, rows)
    path = folder / f"diabetes-{rank}.npz"
    np.savez(path, x=x, y=y.astype(np.float32))
    return str(path)


def shared(comm, folder):
    path = like_diabetes(folder) if comm.rank == 0 else None
    return comm.broadcast_from_root(path)


def test_the_defaults_learn_targets_far_from_zero(comm, shared_tmp):
    """In every use, errors are in the targets' own units."""
    run = {"data__source": shared(comm, shared_tmp), "train__rounds": 8, "optimizer__lr": 0.01}
    run |= {"train__batch": 64, "method__local_steps": 20, "model__dtype": "float32"}
    training, progress = trained(comm, **run)
    score = progress[-1].score
    data = open_dataset(run["data__source"])
    nothing_learnt = np.abs(data.test.labels() - data.train.labels().mean()).mean()
    assert score.score < 0.85 * nothing_learnt and nothing_learnt > 50
    path = save(training, shared_tmp / "network.h5", calibrated=True)
    assert evaluate(path, comm).score.score == pytest.approx(score.score, rel=1e-6)
    network = open_network(path)
    x, y = examples_of(data.test, np.arange(len(data.test)))
    assert np.abs(network(x) - y).mean() == pytest.approx(score.score, rel=1e-5)
    with pytest.raises(ConfigError, match="data.standardise"):
        Training(small_run(**run, data__standardise=False), comm).resume(path)


def test_the_default_run_learns_what_is_like_diabetes(comm, shared_tmp):
    """Not a round diverges, wide as the layers are and large as the learning rate is for a squared error."""
    source = shared(comm, shared_tmp)
    run = Run.load("digits").override({"data.source": source, "train.rounds": 8, "evaluate.every": 8})
    progress = list(Training(run, comm).rounds())
    data = open_dataset(source)
    nothing_learnt = np.abs(data.test.labels() - data.train.labels().mean()).mean()
    assert max(one.loss for one in progress) < 1.5 and progress[-1].score.score < nothing_learnt


def test_targets_that_are_standardised_beforehand_give_the_same_network(comm, shared_tmp):
    data = open_dataset(shared(comm, shared_tmp))
    arrays = {}
    y = data.train.labels().astype(np.float64)
    mean, std = y.mean(axis=0).astype(np.float32), y.std(axis=0).astype(np.float32)
    for name, split in data.splits.items():
        arrays |= {f"x_{name}": split.x, f"y_{name}": (split.y - mean) / std}
    on_root(comm, lambda: np.savez(shared_tmp / "ready.npz", **arrays))
    mine, progress = trained(comm, data__source=data.source, optimizer__lr=0.01, optimizer__clip=1)
    settings = {"data__source": str(shared_tmp / "ready.npz"), "data__standardise": False, "optimizer__lr": 0.01}
    theirs, expected = trained(comm, **settings, optimizer__clip=1)
    assert_same_bits(whole(mine), whole(theirs))
    assert progress[-1].score.loss == expected[-1].score.loss
    assert progress[-1].score.score == pytest.approx(expected[-1].score.score * float(std[0]), rel=1e-6)
    assert "output/mean" not in {piece.path for piece in checkpoint_state(theirs)[1]}


def test_ranks_with_examples_of_their_own_agree_on_the_units(comm, shared_tmp):
    path = like_diabetes(shared_tmp, comm.rank, rows=50 + 20 * comm.rank)
    training = Training(small_run(data__source=path.replace(f"-{comm.rank}.", "-{rank}.")), comm)
    everything = np.concatenate(comm.allgather(open_dataset(path).train.labels())).astype(np.float64)
    mean, std = training.dataset.targets
    np.testing.assert_allclose(mean, everything.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(std, everything.std(axis=0), rtol=1e-6)
    assert comm.allgather((mean.tolist(), std.tolist())) == [(mean.tolist(), std.tolist())] * comm.size


# ---- networks trained on values less an offset, as an earlier istmpi prepared them, take and give those of the data


N = 200
STEPS = np.random.default_rng(0).permutation(N)
TIMES = np.stack([1.7e9 + STEPS, np.cos(STEPS)], 1)
LATE = (STEPS > N / 2) + 0


def prepared(comm, folder, name, x, y):
    on_root(comm, lambda: write_less_an_offset(folder / f"{name}.h5", x, y))
    return str(folder / f"{name}.h5")


def network_of(comm, folder, source, **settings):
    run = {"data__source": source, "train__rounds": 8, "train__batch": 16, "optimizer__lr": 0.05}
    training, progress = trained(comm, **run, method__name="local-sgd", model__dtype="float32", **settings)
    save(training, folder / "network.h5", calibrated=True)
    return folder / "network.h5", progress[-1].score


def test_the_answers_for_examples_as_they_are_in_the_data(comm, shared_tmp):
    source = prepared(comm, shared_tmp, "data", TIMES, LATE)
    path, score = network_of(comm, shared_tmp, source)
    assert score.score > 0.9 and evaluate(path, comm).score.score == pytest.approx(score.score)
    other = prepared(comm, shared_tmp, "other", TIMES[: N // 2], LATE[: N // 2])
    network = open_network(path)
    right = network(TIMES).argmax(1) == LATE
    assert right.mean() > 0.9
    scores = [evaluate(path, comm, source, split=split).score for split in ("train", "test")]
    assert sum(part.score * part.examples for part in scores) == pytest.approx(right.sum())
    scores = [evaluate(path, comm, other, split=split).score for split in ("train", "test")]
    assert sum(part.score * part.examples for part in scores) == pytest.approx(right[: N // 2].sum())
    np.savetxt(shared_tmp / f"{comm.rank}.csv", TIMES, delimiter=",", fmt="%.17g")
    ((_, x, _),) = read_inputs(str(shared_tmp / f"{comm.rank}.csv"), "arrays", (2,))
    np.testing.assert_array_equal(network(x), network(TIMES))
    wide = prepared(comm, shared_tmp, "wide", TIMES - [1.7e9, 0], LATE)
    with pytest.raises(DataError, match="rounded to float32; in training an offset was subtracted"):
        evaluate(path, comm, wide)
    with pytest.raises(ConfigError, match="too close together for an export's float32"):
        export(path, "npz")


@pytest.mark.parametrize("standardise", [True, False])
def test_predicted_numbers_are_those_of_the_data(comm, shared_tmp, standardise):
    x = np.random.default_rng(0).normal(size=(N, 2))
    y = 1.7e9 + 20 * x[:, 0]
    source = prepared(comm, shared_tmp, "data", x, y)
    path, score = network_of(comm, shared_tmp, source, data__standardise=standardise)
    assert evaluate(path, comm).score.score == pytest.approx(score.score, rel=1e-5)
    other = prepared(comm, shared_tmp, "other", x[:150], y[:150])
    network = open_network(path)
    errors = np.abs(network(x)[:, 0] - y)
    assert network(x).dtype == np.float64 and errors.mean() < 50
    scores = [evaluate(path, comm, other, split=split).score for split in ("train", "test")]
    assert sum(part.score * part.examples for part in scores) == pytest.approx(errors[:150].sum(), rel=1e-4)
