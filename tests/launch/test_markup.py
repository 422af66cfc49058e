"""Names that a terminal's library would take for its markup: they are shown as they are, by every command."""

import re
from pathlib import Path

import pytest

import istmpi

LABELS = ("[/red]", "[bold]", ":cat:", "[link=a]b", "back\\")
RUN = "[bold]run"


def test_consoles_read_no_names_as_markup():
    for file in Path(istmpi.__file__).parent.rglob("*.py"):
        text = re.sub(r"\s+", "", file.read_text())
        assert not re.search(r"\bConsole\((?!emoji=False)(?=[^)]*\w=)", text), f"{file} has a console with emojis"
        assert not re.search(r"TextColumn\([^)]*\{(?![^)]*markup=False)", text), f"{file} has a column with markup"


@pytest.fixture
def shown(mpirun, tmp_path, monkeypatch):
    """``shown(*words)``: what a command prints, which must succeed on one rank."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        result = mpirun(1, "istmpi", *words, timeout=120)
        assert result.returncode == 0 and "Traceback" not in result.stderr, result
        return result.stdout

    return run


def test_names_in_data_and_runs_are_shown_as_they_are(shown, tmp_path):
    rows = [f"{n % 7},{n % 5},{LABELS[n % len(LABELS)]}" for n in range(100)]
    Path("[red] a.csv").write_text("\n".join(["[b],[/b],label", *rows]) + "\n")
    data, model = tmp_path / "[red] a.h5", ("--model", f"{tmp_path}/[net].py:Net")
    Path("[net].py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n    def __init__(self, features, outputs, hidden=8):\n"
        "        super().__init__(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))\n"
    )
    Path("run.toml").write_text(f'name = "{RUN}"\n[method]\nname = "local-sgd"\n')
    out = shown("prepare", "csv", "[red] a.csv", data)
    assert all(label in out for label in LABELS) and "[red] a.h5" in out
    out = shown("train", "run.toml", "--data", data, *model, "--rounds", "2", "--out", "runs/[a]")
    assert "runs/[a]" in out and RUN in out and "[red] a.h5" in out and "[net].py:Net" in out
    out = shown("train", "run.toml", "--data", data, *model, "--dry-run")
    assert RUN in out
    assert "network.h5" in shown("checkpoint", "ls", "runs/[a]")
    out = shown("checkpoint", "show", "runs/[a]/network.h5")
    assert RUN in out and all(label in out for label in LABELS)
    assert "network.h5: valid" in shown("checkpoint", "verify", "runs/[a]/network.h5")
    assert "[red] a.h5" in shown("evaluate", "runs/[a]/network.h5", *model, "--calibrate")
    assert "[red] a" in shown("report", "runs/[a]", "--json") and "accuracy" in shown("report", "runs/[a]")
    assert "[net].py:Net" in shown("model", f"{tmp_path}/[net].py:Net", "--data", data, "--json")
    words = ("--methods", "local-sgd,data-parallel", "--rounds", "1", "--out", "runs/[c]")
    shown("compare", "run.toml", "--data", data, *model, *words)
