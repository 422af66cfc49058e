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
PAGE = re.search(
    r"(?s)```python\n(# mine.py: mpirun -n 4 istmpi (.*?)\n.*?)```", (EXAMPLES / "../docs/data.md").read_text()
)
MODEL = ("--model", f"{FILE}:Two")
RUN = ("train", "--data", f"{FILE}:pairs", *MODEL, "--local-steps", "4", "--batch", "16", "--lr", "0.3")
SHOWN = ("segmentation.py", "two_targets.py")


def command_of(example):
    """The command in an example's docstring, and the score that it says."""
    text = (EXAMPLES / example).read_text()
    command = re.search(r"mpirun -n 2 istmpi (train .*?)\n\n", text, re.DOTALL)[1].replace("\\", "")
    words = [word.replace("examples/", f"{EXAMPLES}/") for word in shlex.split(command)]
    return words, float(re.search(r" is (\d\.\d+)", text)[1])


@pytest.fixture(scope="module")
def said(series, folder):
    """The outcomes of commands of one job."""
    (folder / "mine.py").write_text(PAGE[1])
    network = "run/network.h5"
    return series(
        2,
        folder,
        {
            "whole": [*RUN, "--rounds", "12", "--out", "whole"],
            "half": [*RUN, "--rounds", "6", "--out", "run"],
            "rest": [*RUN, "--rounds", "12", "--out", "run", "--resume", "auto"],
            "evaluate": ["evaluate", network, *MODEL, "--data", f"{FILE}:pairs"],
            "evaluate without": ["evaluate", network, *MODEL],
            "export": ["export", network, "--to", "torch", *MODEL],
            "predict": ["predict", network, "digits", *MODEL],
            "onnx": ["export", network, "--to", "onnx", *MODEL],
            "page": [*PAGE[2].split(), "--rounds", "3", "--lr", "0.02", "--evaluate-every", "1", "--out", "page"],
            **{name: [*command_of(name)[0], "--out", name] for name in SHOWN},
        },
    ).end(300)


def metrics(folder, name):
    return [json.loads(line)[name] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def last_score(folder):
    return json.loads((folder / "summary.json").read_text())["last"]["score"]["score"]


def test_from_training_to_an_exported_network(said, folder):
    out = folder / "run"
    assert [said[name].returncode for name in ("whole", "half", "rest")] == [0, 0, 0] and "hits" in said["half"].stdout
    assert metrics(out, "loss") == metrics(folder / "whole", "loss")
    score = last_score(out)
    assert json.loads((out / "summary.json").read_text())["score_name"] == "hits" and score > 0.5
    assert said["evaluate"].stdout.startswith(f"hits {score:.4f}, loss "), said["evaluate"]
    only = f"istmpi: run/network.h5 was trained on data from code, which runs only with --data {FILE}:pairs."
    assert said["evaluate without"].refusal() == only and said["export"].returncode == 0
    plain = own_data.Two()
    plain.load_state_dict(torch.load(out / "network.pt", weights_only=True)["state_dict"])
    _, test = own_data.pairs()
    items = [test[index] for index in range(len(test))]
    batch = {key: torch.stack([item[key] for item in items]) for key in items[0]}
    with torch.no_grad():
        outputs = plain.eval()(batch["left"], batch["right"])
    assert float(own_data.Two.score(outputs, batch)) == pytest.approx(score, abs=1e-3)
    for name in ("predict", "onnx"):
        assert "only the code of its data defines the inputs of its network" in said[name].refusal(alone=True)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_reaches_the_score_in_its_docstring(said, folder, name):
    assert said[name].returncode == 0, said[name]
    assert last_score(folder / name) == pytest.approx(command_of(name)[1], rel=0.1)


def test_the_data_set_of_the_page_trains(said, folder):
    assert said["page"].returncode == 0 and "error (lower is better)" in said["page"].stdout, said["page"]
    scores = metrics(folder / "page", "score")
    assert scores[-1] < scores[0]
