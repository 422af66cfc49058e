"""Names that a terminal's library would take for its markup: they are shown as they are, by every command."""

import re
from pathlib import Path

import istmpi

LABELS = ("[/red]", "[bold]", ":cat:", "[link=a]b", "back\\")
RUN = "[bold]run"


def test_consoles_read_no_names_as_markup():
    for file in Path(istmpi.__file__).parent.rglob("*.py"):
        text = re.sub(r"\s+", "", file.read_text())
        assert not re.search(r"\bConsole\((?!emoji=False)(?=[^)]*\w=)", text), f"{file} has a console with emojis"
        assert not re.search(r"TextColumn\([^)]*\{(?![^)]*markup=False)", text), f"{file} has a column with markup"


def test_names_in_data_and_runs_are_shown_as_they_are(series, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{n % 7},{n % 5},{LABELS[n % len(LABELS)]}" for n in range(100)]
    Path("[red] a.csv").write_text("\n".join(["[b],[/b],label", *rows]) + "\n")
    data, network, saved = f"{tmp_path}/[red] a.h5", f"{tmp_path}/[net].py:Net", "runs/[a]/network.h5"
    Path("[net].py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n    def __init__(self, features, outputs, hidden=8):\n"
        "        super().__init__(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))\n"
    )
    Path("run.toml").write_text(f'name = "{RUN}"\n[method]\nname = "local-sgd"\n')
    run = ["run.toml", "--data", data, "--model", network]
    compare = ["compare", *run, "--methods", "local-sgd,data-parallel", "--rounds", "1", "--out", "runs/[c]"]
    shown = [
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
    said = series(1, tmp_path, {str(number): command for number, (command, _) in enumerate(shown)}).end(200)
    for result, (command, expected) in zip(said.values(), shown):
        assert result.returncode == 0 and "Traceback" not in result.stderr, result
        assert [words for words in expected if words not in result.stdout] == [], (command, result)
