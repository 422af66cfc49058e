"""`istmpi predict` and the network behind it, against the network written out in NumPy; answers at an early exit."""

import csv
import io
import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from batches import examples_of
from exported import open_network
from own_runs import RESNET
from plain_mlp import plain
from resuming import save
from small import own_run, small_run

from istmpi.checkpoint.reader import open_checkpoint
from istmpi.cli.main import _command
from istmpi.comm import world
from istmpi.data import KINDS
from istmpi.data.decoder import Block
from istmpi.data.dense.split import build_material
from istmpi.data.kind import Kind
from istmpi.data.prepare import prepare
from istmpi.data.sources import open_dataset
from istmpi.deploy.exits import choose_exits, count_flops, measure_entropy
from istmpi.deploy.network import CalibratedNetwork
from istmpi.errors import DataError
from istmpi.training.loop import Training
from istmpi.training.run import run_training

NAMES = ["batch", "layer", "none", "dealt", "leaky", "double", "regression"]


def inputs(folder, name):
    """The source of a network's data, and the raw features of its test split."""
    source = str(folder / "numbers.npz") if name == "regression" else "digits"
    test = open_dataset(source).test.with_normalisation(None)
    return source, examples_of(test, np.arange(len(test)))[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_are_those_of_the_formula(checkpoints, answer, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    source, x = inputs(checkpoints, name)
    expected = plain(checkpoints / f"{name}.h5", x)
    rows = list(csv.DictReader(io.StringIO(answer("predict", checkpoints / f"{name}.h5", source, "--outputs"))))
    outputs = np.array([[float(value) for key, value in row.items() if key.startswith("output_")] for row in rows])
    tolerance = 1e-12 if name == "double" else 1e-5
    np.testing.assert_allclose(outputs, expected, rtol=tolerance, atol=tolerance)
    assert [row["example"] for row in rows] == [str(number) for number in range(len(x))]
    if name != "regression":
        odds = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
        assert [row["class"] for row in rows] == [str(best) for best in expected.argmax(axis=1)]
        np.testing.assert_allclose([float(row["probability"]) for row in rows], odds.max(axis=1), atol=1e-5)


def test_examples_of_another_shape_are_refused(checkpoints):
    network = open_network(checkpoints / "batch.h5")
    with pytest.raises(DataError, match=r"do not fit this network; give \[examples, 64\]"):
        network(np.zeros((3, 63), dtype=np.float32))


def test_json_lines(checkpoints, istmpi_command):
    words = "--format", "jsonl"
    _, out, _ = istmpi_command("predict", checkpoints / "batch.h5", "digits", *words, "--outputs")
    first = json.loads(out.splitlines()[0])
    assert first.keys() == {"example", "class", "probability", "true_class", "outputs"} and first["example"] == 0
    assert first["outputs"].keys() == set("0123456789")
    _, out, _ = istmpi_command("predict", checkpoints / "regression.h5", (checkpoints / "numbers.npz"), *words)
    assert [len(json.loads(line)["outputs"]) for line in out.splitlines()] == [2] * 20


def test_an_option_that_the_input_does_not_use_is_refused(checkpoints, refusal, tmp_path):
    np.savetxt(tmp_path / "x.csv", np.ones((2, 64)), delimiter=",")
    for source, *option in (("digits", "--header", "no"), (tmp_path / "x.csv", "--resize")):
        said = refusal("predict", checkpoints / "batch.h5", source, *option)
        assert said == f"istmpi: {option[0]} does not go with {source}. Leave it out.\n"


def test_a_pipe_to_predict_is_not_waited_for(checkpoints, refusal, tmp_path):
    path = tmp_path / "x.npz"
    os.mkfifo(path)
    said = refusal("predict", checkpoints / "batch.h5", path)
    assert said == f"istmpi: {path} is a pipe. Give a file or a folder to predict.\n"


def test_without_calibration_there_is_no_prediction_and_data_for_it_must_fit(checkpoints, refusal):
    said = refusal("predict", checkpoints / "uncalibrated.h5", "digits")
    assert "saved without calibration" in said and "--calibrate-on DATA" in said
    with (
        open_checkpoint(checkpoints / "uncalibrated.h5") as checkpoint,
        pytest.raises(DataError, match="has examples of 6 numbers; the network takes 1 x 8 x 8"),
    ):
        CalibratedNetwork(checkpoint, str(checkpoints / "numbers.npz"))


def test_a_file_appears_complete_or_not_at_all(checkpoints, istmpi_command, refusal, tmp_path, monkeypatch):
    monkeypatch.setattr("istmpi.data.dense.split.BLOCK", 64 * 100)
    out = tmp_path / "out.csv"
    words = "predict", checkpoints / "batch.h5", "digits", "--out", out
    assert istmpi_command(*words) == (0, "", "")
    assert len(out.read_text().splitlines()) == 361
    assert re.search("exists.*--force", refusal(*words))
    assert istmpi_command(*words, "--force")[0] == 0
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join([",".join(["1"] * 64)] * 300 + ["x" * 3]))  # the last row is found out late
    assert "line 301" in refusal("predict", checkpoints / "batch.h5", bad, "--out", tmp_path / "new.csv")
    code, _, err = istmpi_command("predict", checkpoints / "batch.h5", "digits", "--out", tmp_path / "no" / "new.csv")
    assert code == 74 and "cannot be written" in err
    assert istmpi_command("measure", "digits", "--out", tmp_path / "no" / "cluster.json")[0] == 74
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.csv", "out.csv"]


def test_a_kind_of_data_is_what_it_declares(tmp_path, istmpi_command, answer, monkeypatch):
    """A kind that no file of istmpi names is in the help, prepared, advised for its files and predicted."""

    def rows_of(text, key):
        rows = np.array([json.loads(line)[key] for line in text.splitlines()], np.float32)
        return rows[:, :-1], rows[:, -1].astype(int)

    def read(archive, decoder, *, key):
        decoder.notes.reading["key"] = key
        rows = rows_of(dict(archive.read(archive.names))["in.made"], key)
        splits = {"train": rows, "test": rows}
        return build_material("made", "classification", splits, ("0", "1"), np.dtype(np.float32), 2)

    def examples(path, request):
        x, y = rows_of(path.read_text(), request.reading["key"])
        yield Block(None, x, [*map(str, y)])

    key = "key", "KEY", "key of the numbers."
    made = Kind("made", "lines", read, (key,), (".made",), ("FILE.made", "more lines"), examples)
    monkeypatch.setitem(KINDS, "made", made)
    monkeypatch.setattr("istmpi.cli.main._command", _command.__wrapped__)
    for name in ("prepare", "predict"):
        monkeypatch.delitem(sys.modules, f"istmpi.cli.commands.{name}", raising=False)
    help = istmpi_command("prepare", "--help")[1]
    assert "\n    made     lines\n" in help and "made: key of the numbers." in help and "text: key of the text" in help
    assert "\n    FILE.made                  more lines\n" in istmpi_command("predict", "--help")[1]
    path, target = tmp_path / "in.made", tmp_path / "data.h5"
    path.write_text("".join(json.dumps({"it": [number, -number, number % 2]}) + "\n" for number in range(20)))
    with pytest.raises(DataError, match="prepare it first: istmpi prepare made"):
        open_dataset(str(path))
    assert istmpi_command("prepare", "made", path, target, "--key", "it")[0] == 0
    assert open_dataset(str(target)).kind == "made"
    run_training(small_run(data__source=str(target), output__folder=str(tmp_path / "run"), train__rounds=1), world())
    out = answer("predict", tmp_path / "run/network.h5", path)
    assert [row["true_class"] for row in csv.DictReader(io.StringIO(out))] == ["0", "1"] * 10


def test_numbers_to_predict_have_the_name_of_their_column(tmp_path, answer):
    """From the table's header into the prepared file, the network's file and its answers."""
    table = tmp_path / "houses.csv"
    table.write_text("rooms,price\n" + "".join(f"{n % 5},{n % 5 * 100.5}\n" for n in range(40)))
    prepare("csv", table, tmp_path / "houses.h5")
    assert open_dataset(str(tmp_path / "houses.h5")).output_names == ("price",)
    run = small_run(data__source=str(tmp_path / "houses.h5"), output__folder=str(tmp_path / "run"), train__rounds=1)
    run_training(run, world())
    words = ["predict", tmp_path / "run/network.h5", tmp_path / "houses.h5", "--format"]
    for form, expected in (("csv", "example,price"), ("jsonl", '{"example": 0, "outputs": {"price": ')):
        assert answer(*words, form).startswith(expected)


# ---- answers that leave at an early exit: predict --exit-threshold, evaluate --exits


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
