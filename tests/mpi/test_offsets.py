"""Networks trained on values less an offset, as an earlier istmpi prepared them, take and give those of the data."""

import numpy as np
import pytest
from offset_files import write
from small import on_root, trained

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.checkpoint.saver import commit
from istmpi.data.dense.predict import read_inputs
from istmpi.deploy.export import export
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError, DataError

pytestmark = pytest.mark.ranks(only=[1, 3])

N = 200
STEPS = np.random.default_rng(0).permutation(N)
TIMES = np.stack([1.7e9 + STEPS, np.cos(STEPS)], 1)
LATE = (STEPS > N / 2) + 0


def prepared(comm, folder, name, x, y):
    on_root(comm, lambda: write(folder / f"{name}.h5", x, y))
    return str(folder / f"{name}.h5")


def network_of(comm, folder, source, **settings):
    """A network that was trained for some rounds, in a file."""
    run = {"data__source": source, "train__rounds": 8, "train__batch": 16, "optimizer__lr": 0.05}
    training, progress = trained(comm, **run, method__name="local-sgd", model__dtype="float32", **settings)
    commit(folder / "network.h5", *training.state(calibrated=True), "direct", comm)
    return folder / "network.h5", progress[-1].score


def test_the_answers_for_examples_as_they_are_in_the_data(comm, shared_tmp):
    source = prepared(comm, shared_tmp, "data", TIMES, LATE)
    path, score = network_of(comm, shared_tmp, source)
    assert score.score > 0.9
    assert evaluate(path, comm).score.score == pytest.approx(score.score)
    other = prepared(comm, shared_tmp, "other", TIMES[: N // 2], LATE[: N // 2])
    with open_checkpoint(path) as checkpoint:
        network = CalibratedNetwork(checkpoint)
    right = network(TIMES).argmax(1) == LATE
    assert right.mean() > 0.9
    scores = [evaluate(path, comm, source, split=split).score for split in ("train", "test")]
    assert sum(part.score * part.examples for part in scores) == pytest.approx(right.sum())
    scores = [evaluate(path, comm, other, split=split).score for split in ("train", "test")]
    assert sum(part.score * part.examples for part in scores) == pytest.approx(right[: N // 2].sum())
    np.savetxt(shared_tmp / f"{comm.rank}.csv", TIMES, delimiter=",", fmt="%.17g")
    ((_, x, _),) = read_inputs(str(shared_tmp / f"{comm.rank}.csv"), "arrays", (2,))
    np.testing.assert_array_equal(network(x), network(TIMES))
    with pytest.raises(ConfigError, match="too close together for an export's float32"):
        export(path, "npz")


def test_data_that_were_rounded_do_not_fit(comm, shared_tmp):
    path, _ = network_of(comm, shared_tmp, prepared(comm, shared_tmp, "data", TIMES, LATE))
    rounded = prepared(comm, shared_tmp, "rounded", TIMES * [1e-9, 1], LATE)
    wide = prepared(comm, shared_tmp, "wide", TIMES - [1.7e9, 0], LATE)
    with pytest.raises(DataError, match="rounded to float32; in training an offset was subtracted"):
        evaluate(path, comm, wide)
    assert evaluate(path, comm, rounded).score.examples


@pytest.mark.parametrize("standardise", [True, False])
def test_predicted_numbers_are_those_of_the_data(comm, shared_tmp, standardise):
    x = np.random.default_rng(0).normal(size=(N, 2))
    y = 1.7e9 + 20 * x[:, 0]
    source = prepared(comm, shared_tmp, "data", x, y)
    path, score = network_of(comm, shared_tmp, source, data__standardise=standardise)
    assert evaluate(path, comm).score.score == pytest.approx(score.score, rel=1e-5)
    other = prepared(comm, shared_tmp, "other", x[:150], y[:150])
    with open_checkpoint(path) as checkpoint:
        network = CalibratedNetwork(checkpoint)
    errors = np.abs(network(x)[:, 0] - y)
    assert network(x).dtype == np.float64 and errors.mean() < 50
    scores = [evaluate(path, comm, other, split=split).score for split in ("train", "test")]
    assert sum(part.score * part.examples for part in scores) == pytest.approx(errors[:150].sum(), rel=1e-4)
