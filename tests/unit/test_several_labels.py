"""Dense examples with several labels each: recognised, refused, scored and predicted."""

import csv
import json
import re

import numpy as np
import pytest
import torch
from labels_oracle import naive_scores, write

from istmpi.data.decoder import Notes
from istmpi.data.hdf5 import open_prepared
from istmpi.data.labels import read_labels
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.errors import DataError
from istmpi.tasks import DENSE_LABELS, TASKS

HOT = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])
ONE_HOT = np.eye(3, dtype=int)[[2, 0, 1, 2]]
TASK = TASKS[DENSE_LABELS]


@pytest.mark.parametrize("labels, logits", [(2, "any"), (4, "equal"), (5, "few values"), (9, "any")])
def test_loss_and_scores_are_those_of_the_naive_oracle(labels, logits):
    random = np.random.default_rng(labels)
    y = (random.random((40, labels)) < 0.3).astype(np.uint8)
    y[:3], y[3] = 0, 1
    outputs = {"any": 1, "equal": 0, "few values": 1}[logits] * random.normal(size=y.shape)
    outputs = torch.from_numpy(np.round(outputs) if logits == "few values" else outputs)
    targets = torch.from_numpy(y)
    means = [point / 40 for point in TASK.points(outputs, targets)]
    found = TASK.more(labels, *means) | {"P@1": TASK.score_from_means(*means)}
    found["loss"] = float(TASK.loss(outputs, targets))
    assert found == pytest.approx(naive_scores(outputs, y), abs=1e-12)
    assert float(TASK.loss(outputs, targets, "sum")) == pytest.approx(40 * found["loss"])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float32"])
def test_a_matrix_of_0_and_1_is_recognised(dtype):
    for y, task, classes in ((HOT, DENSE_LABELS, None), (ONE_HOT, "classification", ("0", "1", "2"))):
        notes = Notes()
        found = read_labels({"train": y.astype(dtype), "test": y[:2].astype(dtype)}, None, "SRC", notes=notes)
        assert found[:2] == (task, classes)
        (note,) = notes.assumed
        assert note.text.startswith("6 rows of 3 labels, ") and note.option == "--task"
        assert note.text.endswith("treated as several labels per example" if classes is None else "treated as classes")
        right = HOT if classes is None else [2, 0, 1, 2]
        assert (found[2]["train"] == right).all() and found[2]["train"].dtype == ("u1" if classes is None else "i8")


@pytest.mark.parametrize("y", [HOT * 2, np.where(HOT, np.float32(1), np.float32(1e-9))])
def test_other_matrices_are_numbers_to_predict_and_that_is_said(y):
    notes = Notes()
    assert read_labels({"train": y, "test": y}, None, "SRC", notes=notes)[0] == "regression"
    assert notes.assumed[0].text == "8 rows of 3 labels, not all 0 or 1: treated as numbers to predict"


def test_the_option_decides():
    def read(y, task):
        notes = Notes()
        return *read_labels({"train": y, "test": y}, task, "SRC", notes=notes), notes.assumed

    assert read(ONE_HOT, "multi-label")[0] == DENSE_LABELS and not read(ONE_HOT, "multi-label")[3]
    assert read(HOT, "regression")[0] == "regression"
    assert read(ONE_HOT.astype(np.float32), "classification")[2]["test"].tolist() == [2, 0, 1, 2]
    with pytest.raises(DataError, match="3 numbers per example, not a single 1 among zeros.*--task multi-label"):
        read(HOT, "classification")


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.where(np.arange(12).reshape(4, 3) == 7, 2, HOT), "test example 2 has 2 for label 1"),
        (np.where(np.arange(12).reshape(4, 3) == 3, np.nan, HOT), "test example 1 has nan for label 0"),
        (HOT.astype(str), "has '1' for label 0"),
        (HOT[:, :1], "each example has one label"),
    ],
)
def test_what_is_no_0_or_1_is_named(y, words):
    train = {2: HOT, 1: HOT[:, 0]}[y.squeeze().ndim]
    with pytest.raises(DataError, match=words):
        read_labels({"train": train if y.dtype.kind != "U" else y, "test": y}, "multi-label", "SRC")


def test_one_column_is_a_class_an_example_and_no_column_is_refused(tmp_path):
    assert read_labels({"train": HOT[:, :1], "test": HOT[:, :1]}, None, "SRC")[:2] == ("classification", ("0", "1"))
    np.savez(tmp_path / "a.npz", x=np.eye(10), y=np.zeros((10, 0)))
    with pytest.raises(DataError, match=r"y \(10, 0\)"):
        open_dataset(str(tmp_path / "a.npz"))


def test_prepared_and_as_it_stands_are_the_same(tmp_path):
    path = write(tmp_path / "a.npz")
    report = prepare("arrays", path, tmp_path / "a.h5")
    raw, data = open_dataset(str(path)), open_prepared(tmp_path / "a.h5")
    for split in ("train", "test"):
        assert (raw.splits[split].labels() == data.splits[split].labels()).all()
        assert raw.splits[split].labels_checksum == data.splits[split].labels_checksum
        assert (np.load(path)[f"y_{split}"] == data.splits[split].labels()).all()
    assert (data.task, data.outputs, data.classes) == (raw.task, raw.outputs, raw.classes) == (DENSE_LABELS, 6, None)
    assert report.class_counts == tuple(np.load(path)["y_train"].sum(axis=0))
    assert "change with istmpi prepare arrays --task" in raw.assumed[0]


def test_labels_that_no_training_example_has_are_told(tmp_path):
    y = np.column_stack([HOT, np.zeros(4, int)])
    np.savez(tmp_path / "a.npz", x_train=np.eye(4), y_train=y, x_test=np.eye(4), y_test=1 - y)
    report = prepare("arrays", tmp_path / "a.npz", tmp_path / "a.h5")
    assert [note.text for note in report.left_out] == ["1 of 4 labels that no training example has: 3"]
    assert report.left_out[0].text in open_dataset(str(tmp_path / "a.npz")).assumed


@pytest.fixture
def trained(tmp_path, istmpi_command):
    path = write(tmp_path / "a.npz")
    settings = "--hidden", 16, "--rounds", 8, "--lr", 0.5, "--set", "model.norm=none", "--progress", "lines"
    code, out, err = istmpi_command("train", "--data", path, "--out", tmp_path / "run", *settings)
    assert code == 0, err
    return path, tmp_path / "run" / "network.h5", out + err


def rows_of(answer):
    code, out, err = answer
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()] if out[0] == "{" else [*csv.DictReader(out.splitlines())]


def test_training_and_evaluation_tell_all_scores(trained, istmpi_command):
    path, network, said = trained
    words = "170 rows of 6 labels, all 0 or 1: treated as several labels per example"
    assert f"{words} (change with istmpi prepare arrays --task)" in said
    for words in (said, istmpi_command("evaluate", network)[1]):
        assert all(name in words for name in ("P@1", "P@3", "P@5", "micro-F1"))
    outputs = [row["outputs"] for row in rows_of(predict(trained, istmpi_command, "--outputs"))]
    score = json.loads(istmpi_command("evaluate", network, "--data", path, "--json")[1])["score"]
    expected = naive_scores(outputs, np.load(path)["y_test"])
    assert {"loss": score["loss"], "P@1": score["score"], **score["more"]} == pytest.approx(expected, rel=1e-5)


def predict(trained, istmpi_command, *words, form="jsonl"):
    return istmpi_command("predict", trained[1], trained[0], "--format", form, *words)


def test_predictions_are_the_labels_that_are_likelier_than_not(trained, istmpi_command):
    rows = rows_of(predict(trained, istmpi_command, "--outputs"))
    for row in rows:
        logits = np.array(row["outputs"])
        order = sorted(np.flatnonzero(logits > 0), key=lambda label: -logits[label])
        assert row["labels"] == order
        assert row["probabilities"] == pytest.approx(1 / (1 + np.exp(-logits[order])), rel=1e-6)
    assert any(not row["labels"] for row in rows) and any(len(row["labels"]) > 1 for row in rows)
    table = rows_of(predict(trained, istmpi_command, form="csv"))
    assert list(table[0]) == ["example", "labels", "probabilities"]
    for name in ("labels", "probabilities"):
        assert [row[name] for row in table] == [";".join(map(str, row[name])) for row in rows]
    for row in rows_of(predict(trained, istmpi_command, "--top", 2, "--outputs")):
        assert row["labels"] == sorted(range(6), key=lambda label: -row["outputs"][label])[:2]


@pytest.mark.parametrize("setting", ["data.placement=by-label", "train.logit_adjustment=1", "model.name=xc"])
def test_what_is_for_classes_or_sparse_rows_is_refused(tmp_path, refusal, setting):
    words = "train", "--data", write(tmp_path / "a.npz"), "--set", setting, "--out", tmp_path / "run"
    assert re.search("for classes|needs classes|sparse rows", refusal(*words))
