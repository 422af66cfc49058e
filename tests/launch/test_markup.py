"""Names that a terminal, or its library, would obey: they are shown as they are, by every command."""

LABELS = ("[/red]", "[bold]", ":cat:", "[link=a]b", "back\\")
RUN = "[bold]run"
ODD = "[/m]\x1b[31m"
SEEN = r"[/m]\x1b[31m"


def test_every_command_shows_names_as_they_are(series, tmp_path):
    """Commands are given as (words of the command, words that it prints)."""
    commands = commands_on_a_table(tmp_path) + commands_on_own_code(tmp_path)
    said = series(1, tmp_path, {str(number): words for number, (words, _) in enumerate(commands)}).end(300)
    for result, (words, expected) in zip(said.values(), commands, strict=True):
        assert result.returncode == 0 and "Traceback" not in result.stderr, (words, result)
        assert "\x1b" not in result.stdout + result.stderr, (words, result)
        assert [text for text in expected if text not in result.stdout] == [], (words, result)


def commands_on_a_table(folder):
    """Labels, columns, a run, files and folders have names that rich would read as markup."""
    rows = [f"{n % 7},{n % 5},{LABELS[n % len(LABELS)]}" for n in range(100)]
    (folder / "[red] a.csv").write_text("\n".join(["[b],[/b],label", *rows]) + "\n")
    data, network, saved = f"{folder}/[red] a.h5", f"{folder}/[net].py:Net", "runs/[a]/network.h5"
    (folder / "[net].py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n    def __init__(self, features, outputs, hidden=8):\n"
        "        super().__init__(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))\n"
    )
    (folder / "run.toml").write_text(f'name = "{RUN}"\n[method]\nname = "local-sgd"\n')
    run = ["run.toml", "--data", data, "--model", network]
    compare = ["compare", *run, "--methods", "local-sgd,data-parallel", "--rounds", "1", "--out", "runs/[c]"]
    return [
        ("allow_pictures()", []),
        (["prepare", "csv", "[red] a.csv", data], [*LABELS, "[red] a.h5"]),
        (["train", *run, "--rounds", "2", "--out", "runs/[a]"], ["runs/[a]", RUN, "[red] a.h5", "[net].py:Net"]),
        (["train", *run, "--dry-run"], [RUN]),
        (["checkpoint", "ls", "runs/[a]"], ["network.h5"]),
        (["checkpoint", "show", saved], [RUN, *LABELS]),
        (["checkpoint", "verify", saved], ["network.h5: valid"]),
        (["evaluate", saved, "--model", network, "--calibrate"], ["[red] a.h5"]),
        (["report", "runs/[a]", "--json"], ["[red] a"]),
        (["report", "runs/[a]"], ["accuracy"]),
        (["model", network, "--data", data, "--json"], ["[net].py:Net"]),
        (compare, []),
    ]


SPLITS = f"""
import torch
from torch import nn
from torch.utils.data import TensorDataset

score_name = "acc {ODD}"


def splits():
    examples = TensorDataset(torch.arange(240.0).view(60, 4), torch.arange(60) % 3)
    return {{"train": examples, "test": examples}}


def score(outputs, batch):
    return (outputs.argmax(1) == batch[1]).float().mean()


class Net(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.first, self.last = nn.Linear(4, hidden), nn.Linear(hidden, 3)

    def forward(self, x):
        return self.last(self.first(x).relu())
"""


BRIEFLY = "from istmpi.cluster import alone, timing\nalone.REPEATS, timing.SECONDS, timing.TURN_SECONDS = 1, 0.01, 0.01"


def commands_on_own_code(folder):
    """A score, a folder, a file, a class and a cluster have a tag that closes nothing, and ESC, in their names."""
    (folder / "own.py").write_text(SPLITS)
    place, seen = f"runs/{ODD.replace('/', '')}", f"runs/{SEEN.replace('/', '')}"
    run = ["--data", "own.py:splits", "--model", "own.py:Net", "--rounds", "2"]
    score, saved = f"acc {SEEN}", f"{place}/network.h5"
    return [
        (["train", *run, "--out", "runs/a"], [score]),
        (["simulate", *run, "--ranks", "2", "--out", "runs/b"], [score]),
        (f"import os; os.rename('runs/a', {place!r})", []),
        (["report", place], [score]),
        (["runs", "du"], [seen]),
        (["checkpoint", "verify", saved], [seen]),
        (["evaluate", saved, *run[:4]], [score]),
        (BRIEFLY, []),
        (["measure", *run[:4], "--out", f"{place}.json"], [f"{seen}.json"]),
        (["costmodel", *run[:4], "--cluster", f"{place}.json", "--advise"], []),
        (["model", "own.py:Net", "--data", run[1]], []),
        (["doctor", "--folder", place], [seen]),
        (["runs"], []),
    ]
