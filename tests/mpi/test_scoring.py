"""A checkpoint evaluated on any number of ranks: the score that training had."""

import h5py
import numpy as np
import pytest
from batches import examples_of
from damage import reseal
from small import on_root, trained

from istmpi.checkpoint.reader import Tensor
from istmpi.checkpoint.saver import commit
from istmpi.data.sources import open_dataset
from istmpi.deploy.scoring import evaluate
from istmpi.errors import DataError
from istmpi.hdf5 import LOCKING


def saved(comm, folder, calibrated=True, name="network.h5", **settings):
    """The path of a trained network, and the score that it had in training."""
    training, progress = trained(comm, **settings)
    commit(folder / name, *training.state(calibrated), "direct", comm)
    return folder / name, progress[-1].score


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_the_score_is_that_of_training(comm, shared_tmp, norm):
    path, score = saved(comm, shared_tmp, model__norm=norm, model__dropout=0.5)
    result = evaluate(path, comm)
    assert (result.source, result.split, result.score_name) == ("digits", "test", "accuracy")
    assert not result.calibrated
    assert result.score.loss == pytest.approx(score.loss, abs=1e-9)
    assert (result.score.score, result.score.examples) == (score.score, 360)
    again = evaluate(path, comm, "digits", calibrate=True)
    assert again.calibrated == (norm == "batch")
    assert again.score.loss == pytest.approx(score.loss, abs=1e-12)


def test_whatever_is_not_calibrated_is_calibrated_now(comm, shared_tmp):
    path, score = saved(comm, shared_tmp)

    def remove_moments():
        with h5py.File(path, "r+") as file:
            del file["norm"], file["checksums/norm"]
            reseal(file)

    on_root(comm, remove_moments)
    result = evaluate(path, comm)
    assert result.calibrated
    assert result.score.loss == pytest.approx(score.loss, abs=1e-12)


def test_no_rank_reads_the_network(comm, shared_tmp, monkeypatch):
    path, _ = saved(comm, shared_tmp)
    read, read_bytes = {}, Tensor.read_bytes

    def watched(self, first, last, out):
        read[self.name] = range(first, last), self.shape[0]
        read_bytes(self, first, last, out)

    monkeypatch.setattr(Tensor, "read_bytes", watched)
    evaluate(path, comm)
    for rows, length in read.values():
        assert len(rows) <= -(-length // comm.size)
    assert read.keys() >= {"hidden1.linear.weight", "labels.linear.weight"}


def test_other_splits_and_other_data(comm, shared_tmp):
    """Other data are normalised as the training data were, not by their own mean."""
    path, _ = saved(comm, shared_tmp)
    train = evaluate(path, comm, split="train").score
    assert train.examples == 1437
    x, y = examples_of(open_dataset("digits").with_normalisation(None).train, np.arange(1437))
    arrays = {"x_train": x[:100], "y_train": y[:100], "x_test": x, "y_test": y}
    on_root(comm, lambda: np.savez(shared_tmp / "swapped.npz", **arrays))
    other = evaluate(path, comm, str(shared_tmp / "swapped.npz")).score
    assert other.loss == pytest.approx(train.loss, abs=1e-9) and other.score == train.score


def test_each_rank_may_have_its_own_file(comm, shared_tmp):
    path, _ = saved(comm, shared_tmp)
    raw = open_dataset("digits").with_normalisation(None)
    x, y = examples_of(raw.test, np.arange(360))
    mine = slice(comm.rank, None, comm.size)
    train_x, train_y = examples_of(raw.train, np.arange(50))
    np.savez(shared_tmp / f"{comm.rank}.npz", x_train=train_x, y_train=train_y, x_test=x[mine], y_test=y[mine])
    comm.barrier()
    whole, parts = evaluate(path, comm).score, evaluate(path, comm, str(shared_tmp / "{rank}.npz")).score
    assert parts.loss == pytest.approx(whole.loss, abs=1e-9)
    assert (parts.score, parts.examples) == (pytest.approx(whole.score), 360)


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"features": 63}, "has examples of 63 numbers; the network takes 1 x 8 x 8"),
        ({"classes": 9}, "is classification with 9 outputs; the network was trained for classification with 10"),
        ({"regression": True}, "is regression with 1 outputs; the network was trained for classification with 10"),
        ({"first": 1}, "calls class 0 1; the network calls it 0"),
    ],
    ids=["features", "outputs", "task", "classes"],
)
def test_data_that_do_not_fit_are_refused_on_every_rank(comm, shared_tmp, arrays, message):
    path, _ = saved(comm, shared_tmp, train__rounds=1)
    if comm.rank == 0:
        x = np.zeros((40, arrays.get("features", 64)), np.float32)
        y = np.arange(40) % arrays.get("classes", 10) + arrays.get("first", 0)
        y = y / 3 if "regression" in arrays else y
        np.savez(shared_tmp / "other.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    comm.barrier()
    with pytest.raises(DataError, match=message) as refused:
        evaluate(path, comm, str(shared_tmp / "other.npz"))
    assert refused.value.everywhere and "\n" not in str(refused.value)
    with pytest.raises(DataError, match="digits has no split validation; it has train, test"):
        evaluate(path, comm, split="validation")


def test_a_damaged_checkpoint_is_refused_on_every_rank(comm, shared_tmp):
    path, _ = saved(comm, shared_tmp, train__rounds=1)
    if comm.rank == 0:
        with h5py.File(path, locking=LOCKING) as file:
            at = file["model/hidden2.linear.weight"].id.get_offset()
        content = bytearray(path.read_bytes())
        content[at + 3] ^= 1
        path.write_bytes(content)
    comm.barrier()
    message = r"network.h5 is damaged: model/hidden2.linear.weight, rows 0 to .*checksum"
    with pytest.raises(DataError, match=message) as refused:
        evaluate(path, comm)
    assert refused.value.everywhere
    with pytest.raises(DataError, match="nowhere.h5 does not exist"):
        evaluate(shared_tmp / "nowhere.h5", comm)
