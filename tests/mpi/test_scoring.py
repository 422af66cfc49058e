"""A saved network has the score of training: on any number of ranks, and from its predictions."""

import h5py
import labels_oracle
import numpy as np
import pytest
import torch
from batches import examples_of
from damage import flip, reseal
from own_runs import BOTH, CONVOLUTIONAL, DEEP, FILE, RESNET
from replay_cases import TEXT, TRANSFORMER
from replaying import run_of
from resuming import save
from small import on_root, own_run, trained

from istmpi.checkpoint.reader import Tensor, open_checkpoint
from istmpi.data.sources import open_dataset
from istmpi.deploy.network import CalibratedNetwork
from istmpi.deploy.scoring import evaluate
from istmpi.errors import ConfigError, DataError
from istmpi.evaluation.fitting import fit_temperature
from istmpi.evaluation.sample import draw_calibration_rows
from istmpi.simulated import simulate
from istmpi.training.loop import Training
from tests.networks import dense_nets

LABELS, NUMBERS = {"data__source": "labels.npz"}, {"data__source": "numbers.npz", "optimizer__lr": 0.01}
EXPERTS = {"model__name": "moe", "model__layers": 1, "model__heads": [3], "model__experts": [5], "model__hidden": 6}
EXPERTS |= {"data__source": TEXT, "data__length": 12, "train__batch": 4, "train__rounds": 1}
BLOCKS = {"evaluate__form": "blocks", "method__redeal": 0.0, "train__rounds": 3}
CASES = {
    "batch normalisation": {},
    "layer normalisation": {"model__norm": "layer", "model__dropout": 0.5},
    "channels and blocks": BOTH,
    "several labels": LABELS | {"method__name": "fedavg", "optimizer__lr": 0.5},
    "several labels, a user's network": LABELS | {"model__name": f"{FILE}:Rows"},
    "several labels, exits": LABELS | RESNET | {"model__exits": [1]},
    "numbers, exits": NUMBERS | {"model__name": f"{dense_nets.__file__}:TwoExits", "train__exit_weights": [0.5, 1.0]},
    "text": TRANSFORMER | {"train__rounds": 1},
    "experts": EXPERTS,
    "side by side": BLOCKS,
    "side by side, no normalisation": BLOCKS | {"model__norm": "none", "model__bias": True, "method__redeal": 1.0},
    "side by side, shares": BLOCKS | {"method__shares": [1.0, 2.0, 1.5]},
    "side by side, blocks": BLOCKS | DEEP,
}


def write_numbers(path):
    random = np.random.default_rng(3)
    x = random.uniform(size=(300, 6)).astype(np.float32)
    y = x @ random.normal(size=(6, 2))
    np.savez(path, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])


def scores_of(score, name):
    scores = {"loss": score.loss, name: score.score, "bits per byte": score.bits_per_byte or 0.0}
    return scores | dict(score.by_output or {}) | (score.more or {})


def predicted_scores(network, training):
    test = open_dataset(training.run.data.source).with_normalisation(None).test
    x, y = examples_of(test, np.arange(len(test)))
    outputs = network(x)
    if training.score_name == "P@1":
        return labels_oracle.naive_scores(outputs, y)
    if training.score_name == "accuracy":
        return {"accuracy": (outputs.argmax(1) == y).mean()}
    return {training.score_name: np.abs(outputs - y).mean()}


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("case", CASES)
def test_its_scores_are_those_of_training(comm, shared_tmp, monkeypatch, case):
    """All scores of every exit, in the form of the network that training scored."""
    monkeypatch.chdir(shared_tmp)
    on_root(comm, lambda: labels_oracle.write("labels.npz", shape=(1, 8, 8)))
    on_root(comm, lambda: write_numbers("numbers.npz"))
    run = comm.broadcast_from_root(run_of(CASES[case], comm.size, shared_tmp) if comm.rank == 0 else None)
    training = Training(run, comm)
    score = [*training.rounds()][-1].score
    path = save(training, shared_tmp / "network.h5", calibrated=True)
    own = run.model.name if ":" in run.model.name else None
    expected = scores_of(score, training.score_name)
    results = [evaluate(path, comm, model=own)]
    others = (1, 2, 5) if case == "batch normalisation" else (2,)
    for ranks in others if comm.rank == 0 else ():
        results += simulate(lambda some: evaluate(path, some, model=own), ranks).require()
    for result in results:
        assert (result.score.form, result.score.examples) == (score.form, score.examples)
        assert scores_of(result.score, result.score_name) == pytest.approx(
            expected, rel=1e-6 if score.form == "blocks" else 1e-9
        )
    if case not in ("text", "experts"):
        with open_checkpoint(path) as checkpoint:
            found = predicted_scores(CalibratedNetwork(checkpoint, model=own), training)
        if score.by_output:
            found.pop("loss", None)  # that of training is a sum over exits
            assert score.by_output.keys() == {"exit1", "exit2"} and score.by_output["exit2"] == score.score
        assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-6)
    assert Training(run, comm).resume(path) == []


def test_code_is_named_where_it_is_not_known(comm, shared_tmp):
    for settings, given, message in (
        (RESNET, "istmpi.models.resnet:ResNet", "is built in; leave --model out"),
        (CONVOLUTIONAL, None, "without its code. Give the code: --model"),
        (CONVOLUTIONAL, f"{FILE}:Joined", "has the weights of .*:Convolutional. "),
    ):
        save(Training(own_run(**settings), comm), shared_tmp / "network.h5")
        with pytest.raises((ConfigError, DataError), match=message):
            evaluate(shared_tmp / "network.h5", comm, model=given)
        comm.barrier()


def saved(comm, folder, **settings):
    """The path of a trained network, and the score that it had in training."""
    training, progress = trained(comm, **settings)
    save(training, folder / "network.h5", calibrated=True)
    return folder / "network.h5", progress[-1].score


def test_whatever_is_not_calibrated_is_calibrated_now(comm, shared_tmp):
    path, score = saved(comm, shared_tmp)

    def remove_moments():
        with h5py.File(path, "r+") as file:
            del file["norm"], file["checksums/norm"]
            reseal(file)

    assert not evaluate(path, comm).calibrated_now
    again = evaluate(path, comm, "digits", calibrate=True)
    on_root(comm, remove_moments)
    for result in (again, evaluate(path, comm)):
        assert result.calibrated_now
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
    """Other data, also of each rank, are normalised as the training data were, not by their own mean."""
    path, score = saved(comm, shared_tmp)
    train = evaluate(path, comm, split="train").score
    assert train.examples == 1437
    raw = open_dataset("digits").with_normalisation(None)
    x, y = examples_of(raw.train, np.arange(1437))
    mine, labels = examples_of(raw.test, np.arange(comm.rank, 360, comm.size))
    few = {"x_train": x[:100], "y_train": y[:100]}
    on_root(comm, lambda: np.savez(shared_tmp / "swapped.npz", **few, x_test=x, y_test=y))
    np.savez(shared_tmp / f"{comm.rank}.npz", **few, x_test=mine, y_test=labels)
    comm.barrier()
    for name, expected in (("swapped.npz", train), ("{rank}.npz", score)):
        other = evaluate(path, comm, str(shared_tmp / name)).score
        assert other.loss == pytest.approx(expected.loss, abs=1e-9)
        assert (other.score, other.examples) == (pytest.approx(expected.score), expected.examples)


OTHER = {
    "features": ((40, 63), np.arange(40) % 10, "has examples of 63 numbers; the network takes 1 x 8 x 8"),
    "classes": ((40, 64), np.arange(40) % 9, "is classification with 9 outputs; the network was trained for class"),
    "task": ((40, 64), np.arange(40) % 10 / 3, "is regression with 1 outputs; the network was trained for classif"),
    "names": ((40, 64), np.arange(40) % 10 + 1, "calls class 0 1; the network calls it 0"),
}


def test_data_that_do_not_fit_are_refused_on_every_rank(comm, shared_tmp):
    path, _ = saved(comm, shared_tmp, train__rounds=1)
    for name, (shape, y, _) in OTHER.items() if comm.rank == 0 else ():
        x = np.zeros(shape, np.float32)
        np.savez(shared_tmp / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    comm.barrier()
    for name, (_, _, message) in OTHER.items():
        with pytest.raises(DataError, match=message) as refused:
            evaluate(path, comm, str(shared_tmp / f"{name}.npz"))
        assert refused.value.everywhere and "\n" not in str(refused.value)
    with pytest.raises(DataError, match="digits has no split validation; it has train, test"):
        evaluate(path, comm, split="validation")


def test_a_damaged_checkpoint_is_refused_on_every_rank(comm, shared_tmp):
    path, _ = saved(comm, shared_tmp, train__rounds=1)
    on_root(comm, lambda: flip(path, "model/hidden2.linear.weight", 3))
    message = r"network.h5 is damaged: model/hidden2.linear.weight, rows 0 to .*checksum"
    with pytest.raises(DataError, match=message) as refused:
        evaluate(path, comm)
    assert refused.value.everywhere
    with pytest.raises(DataError, match="nowhere.h5 does not exist"):
        evaluate(shared_tmp / "nowhere.h5", comm)


@pytest.mark.ranks(only=[3])
@pytest.mark.parametrize("settings", [{"evaluate__batch": 100}, {"data__validation": 0.2}])
def test_a_temperature_is_fitted_stored_and_applied(comm, shared_tmp, settings):
    """Probabilities are as often right as they say; scores are those of training."""
    longer = {"train__rounds": 12, "model__hidden": [40], "train__batch": 32, "model__dtype": "float32"}
    training, progress = trained(comm, **longer, **settings)
    path = save(training, shared_tmp / "network.h5", calibrated=True)
    with open_checkpoint(path) as checkpoint:
        temperature, run = checkpoint.header.temperature, checkpoint.header.run
        network = CalibratedNetwork(checkpoint)
    assert comm.allgather(temperature) == [temperature] * comm.size and temperature != 1
    # In one process, from the outputs of the network that predicts.
    split = training.dataset.splits["validation" if run.data.validation else "train"]
    rows = np.arange(len(split)) if run.data.validation else draw_calibration_rows(run.train.seed, len(split), 1024)
    data = open_dataset("digits")
    x, y = examples_of(split, rows)
    logits = network(x.reshape(len(x), -1) * data.std + data.mean) * temperature
    alone = fit_temperature(torch.from_numpy(logits).double(), torch.from_numpy(y), lambda own: own)
    assert temperature == pytest.approx(alone, rel=1e-4)
    raw = data.test.with_normalisation(None)
    x, y = examples_of(raw, np.arange(len(raw)))
    odds = torch.softmax(torch.from_numpy(network(x.reshape(len(x), -1))), dim=1).numpy()
    accuracy = (odds.argmax(axis=1) == y).mean()
    assert accuracy == pytest.approx(progress[-1].score.score)
    assert abs(odds.max(axis=1).mean() - accuracy) < 0.06
    again = evaluate(path, comm).score  # losses are of the logits that were trained, whatever the temperature
    assert (again.score, again.loss) == (progress[-1].score.score, pytest.approx(progress[-1].score.loss, rel=1e-5))
