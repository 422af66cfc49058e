"""`istmpi runs du` and `rm`, and the table of environment variables."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from istmpi import environment, lock
from istmpi.cli.commands.runs import command
from istmpi.errors import ConfigError, DataError
from istmpi.record import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of runs, named by ISTMPI_RUNS: a finished run, an unfinished one, and a comparison of two."""
    monkeypatch.setenv("ISTMPI_RUNS", str(tmp_path / "scratch"))
    monkeypatch.chdir(tmp_path)
    names = ("done/metrics.jsonl", "done/summary.json", "done/checkpoints/round-00000001.h5", "begun/metrics.jsonl")
    compared = ("both/comparison.json", "both/ist-0/metrics.jsonl", "both/ist-1/metrics.jsonl")
    for name in (*names, *compared, "notes/todo.txt"):
        file = tmp_path / "scratch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("text\n")
    return tmp_path / "scratch"


def call(*words):
    return CliRunner().invoke(command, words, standalone_mode=False, catch_exceptions=False).stdout


def test_du_counts_what_is_allotted(runs, monkeypatch):
    assert RunFolder.of("", "done").path == runs / "done-2"
    facts = {Path(run["folder"]).name: run for run in json.loads(call("du", "--json"))}
    assert {name: (run["state"], run["files"]) for name, run in facts.items()} == {
        "begun": ("unfinished", 2), "both": ("comparison", 6), "done": ("finished", 5),
    }  # fmt: skip
    assert facts["done"]["bytes"] >= 3 * 512 and "3 runs" in call("du")
    monkeypatch.setenv("ISTMPI_RUNS", "nowhere")
    with pytest.raises(DataError, match="nowhere is not a folder. Train"):
        call("du")


def test_rm_removes_what_it_is_told_to_and_nothing_beside(runs):
    call("rm", "done", str(runs / "both" / "ist-0"), str(runs / "both"), "--yes")
    assert sorted(path.name for path in runs.iterdir()) == ["begun", "notes"]


REFUSALS = {
    "nowhere": "there is no such folder, here or in",
    "notes": "is not a run: it lacks all of metrics.jsonl",
    **dict.fromkeys((".", "..", "../elsewhere", "link"), "is a link or not inside"),
    "begun": "asks before it removes, and no terminal is here to answer. Give --yes.",
}


@pytest.mark.parametrize("name, message", REFUSALS.items())
def test_rm_refuses_before_anything_is_removed(runs, name, message):
    (runs / "link").symlink_to(runs / "done")
    (runs.parent / "elsewhere").mkdir()
    (runs.parent / "elsewhere" / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=re.escape(message)):
        call("rm", "done", name, *["--yes"] * (name != "begun"))
    assert (runs / "done" / "summary.json").is_file()


@pytest.mark.parametrize("facts", [{}, {"host": "another", "system": "its own"}])
@pytest.mark.parametrize("held, removed", [("both", "both/ist-1"), ("both/ist-0", "both"), ("both", "both")])
def test_rm_refuses_a_run_in_use_here_or_on_another_host(runs, facts, held, removed):
    (runs / held / lock.FILE).write_text(json.dumps(lock._this_process() | facts))
    with pytest.raises(ConfigError, match="is in use by process .* Stop the run first: touch "):
        call("rm", removed, "--yes")
    assert "in use" in call("du")


def test_the_table_has_every_variable(monkeypatch):
    files = [path for top in ("istmpi", "bin", "jobs") for path in (ROOT / top).rglob("*") if path.is_file()]
    files += [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    text = "".join(path.read_text(errors="replace") for path in files if path.suffix not in (".pyc", ".png"))
    named = {name for name in re.findall(r"ISTMPI_[A-Z0-9_]+", text) if not name.startswith("ISTMPI_TEST_")}
    assert named == set(environment.VARIABLES)
    monkeypatch.setenv("ISTMPI_RUNS", "")
    assert environment.read("ISTMPI_RUNS") == "runs"
