"""Data sets of the user's own from the command line: trained, stopped, resumed, scored, exported; and the examples."""

import json
import re
import shlex
from pathlib import Path

import own_data
import pytest
import torch
from own_data import FILE

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = ("--data", f"{FILE}:pairs", "--model", f"{FILE}:Two", "--local-steps", "4", "--batch", "16", "--lr", "0.3")


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_from_training_to_an_exported_network(mpirun, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert mpirun(2, "istmpi", "train", *RUN, "--rounds", "12", "--out", whole).returncode == 0
    result = mpirun(2, "istmpi", "train", *RUN, "--rounds", "6", "--out", out)
    assert result.returncode == 0 and "hits" in result.stdout, result.stderr
    result = mpirun(2, "istmpi", "train", *RUN, "--rounds", "12", "--out", out, "--resume", "auto")
    assert result.returncode == 0, result.stderr
    assert losses(out) == losses(whole)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["score_name"] == "hits" and summary["last"]["score"]["score"] > 0.5
    network, model = out / "network.h5", ("--model", f"{FILE}:Two")
    result = mpirun(3, "istmpi", "evaluate", network, *model, "--data", f"{FILE}:pairs")
    assert result.stdout.startswith(f"hits {summary['last']['score']['score']:.4f}, loss "), result.stderr
    result = mpirun(2, "istmpi", "evaluate", network, *model)
    assert result.returncode == 2
    assert result.errors == [
        f"istmpi: {network} was trained on data from code, which runs only with --data {FILE}:pairs."
    ]
    assert mpirun(1, "istmpi", "export", network, "--to", "torch", *model).returncode == 0
    plain = own_data.Two()
    plain.load_state_dict(torch.load(out / "network.pt", weights_only=True)["state_dict"])
    _, test = own_data.pairs()
    items = [test[index] for index in range(len(test))]
    batch = {key: torch.stack([item[key] for item in items]) for key in items[0]}
    with torch.no_grad():
        score = own_data.Two.score(plain.eval()(batch["left"], batch["right"]), batch)
    assert float(score) == pytest.approx(summary["last"]["score"]["score"], abs=1e-3)
    for command in (["predict", network, "digits"], ["export", network, "--to", "onnx"]):
        result = mpirun(1, "istmpi", *command, *model)
        assert result.returncode == 2 and len(result.errors) == 1, result.stderr
        assert "only the code of its data defines the inputs of its network" in result.errors[0]


def test_an_example_that_cannot_be_read_ends_all_ranks_with_its_number(mpirun, tmp_path):
    result = mpirun(2, "istmpi", "train", "--data", f"{FILE}:late", "--hidden", "16", "--out", tmp_path / "run")
    assert result.returncode == 2, result.stderr
    line = f"{FILE}:late: train example 77 cannot be read: ValueError: this file is damaged."
    assert any(line in error for error in result.errors) and "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["segmentation.py", "two_targets.py"])
def test_an_example_reaches_the_score_in_its_docstring(mpirun, tmp_path, name):
    text = (EXAMPLES / name).read_text()
    command = re.search(r"mpirun -n 2 (istmpi train .*?)\n\n", text, re.DOTALL)[1].replace("\\", "")
    expected = float(re.search(r": (\d\.\d+)", text)[1])
    words = [word.replace("examples/", f"{EXAMPLES}/") for word in shlex.split(command)]
    assert mpirun(2, *words, "--out", tmp_path / "run", timeout=300).returncode == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["last"]["score"]["score"] == pytest.approx(expected, rel=0.1)


def test_the_data_set_of_the_page_trains(mpirun, tmp_path):
    page = (EXAMPLES.parent / "docs" / "data.md").read_text()
    code = re.search(r"```python\n(# mine.py: mpirun -n 4 (.*?)\n.*?)```", page, re.DOTALL)
    (tmp_path / "mine.py").write_text(code[1])
    words = code[2].replace("mine.py", f"{tmp_path}/mine.py").split()
    result = mpirun(2, *words, "--rounds", "3", "--lr", "0.02", "--out", tmp_path / "run")
    assert result.returncode == 0 and "error (lower is better)" in result.stdout, result.stderr
    scores = [json.loads(line)["score"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert scores[-1] < scores[0]
