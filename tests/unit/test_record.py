"""What a run leaves behind: a clock that loses no time, and a folder that overwrites nothing."""

import contextlib
import json
import os
import re
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from istmpi import environment, lock
from istmpi.cli.commands.runs import command
from istmpi.comm import clock
from istmpi.comm.clock import Clock
from istmpi.errors import ConfigError, DataError, OutputError
from istmpi.foreign import reading
from istmpi.lock import FolderLock
from istmpi.record import RunFolder


@pytest.fixture
def now(monkeypatch):
    """``now[0]`` is the time in seconds."""
    time = [100.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: time[0])
    return time


def test_a_phase_inside_another_is_taken_out_of_it(now):
    clock = Clock()
    now[0] += 50  # outside of any phase
    with clock("compute"):
        now[0] += 1
        with clock("push"):
            now[0] += 2
            with clock("wait"):
                now[0] += 4
        now[0] += 8
    now[0] += 50
    with clock("push"):
        now[0] += 16
    with contextlib.suppress(ValueError), clock("pull"):
        now[0] += 3
        raise ValueError  # it is counted and ended
    now[0] += 5
    with clock("pull"):
        now[0] += 1
    assert clock.seconds == {"compute": 9, "push": 18, "wait": 4, "pull": 4}
    assert clock.since({"compute": 9, "push": 16, "wait": 4}) == {"push": 2, "pull": 4}


def test_a_folder_is_the_first_that_is_free_or_the_one_that_is_wanted(tmp_path, monkeypatch):
    """Nothing is made before the run has been checked, and nothing is ever overwritten."""
    monkeypatch.chdir(tmp_path)
    Path("runs/digits-2/job").mkdir(parents=True)  # istmpi-run records the machine before ranks start
    for path in ("runs/digits", "runs/digits-2", "a/b"):
        folder = RunFolder.choose("a/b" if path == "a/b" else "", "digits")
        assert str(folder.path) == path and not (folder.path / "metrics.jsonl").exists()
        folder.make()
    held = FolderLock(folder.path)
    with pytest.raises(ConfigError, match=f"is used by another run, process {os.getpid()}"):
        RunFolder.choose("a/b", "digits")
    held.release()
    with pytest.raises(ConfigError, match=r"--out a/b: the folder is not empty. .*, or --resume auto to continue it"):
        RunFolder.choose("a/b", "digits")
    Path("runs/notes.txt").touch()
    with pytest.raises(ConfigError, match="the folder is not empty and not a run's folder"):
        RunFolder.choose("runs", "digits", "auto")


@pytest.mark.parametrize("left", ["job/7.json", "metrics.jsonl wandb/x", "run.toml checkpoints/x"])
def test_a_run_resumes_beside_what_a_job_or_another_program_left(tmp_path, left):
    """Also one that lost its metrics."""
    for name in left.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert RunFolder.choose(str(tmp_path), "digits", "auto").path == tmp_path
    assert all((tmp_path / name).exists() for name in left.split())


def test_a_folder_that_cannot_be_made_or_vanished_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for wanted in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(ConfigError, match=f"--out {wanted}: cannot be written .* Give another folder"):
            RunFolder.choose(str(wanted), "digits").make()
    gone = RunFolder(tmp_path / "gone")
    for write in (lambda: gone.append({"round": 1}), lambda: gone.write("summary.json", "{}")):
        with pytest.raises(OutputError, match="cannot be written"):
            write()


def test_metrics_read_back_as_they_were_written(tmp_path):
    folder = RunFolder.choose(str(tmp_path / "run"), "digits")
    folder.make()
    assert folder.metrics() == []
    lines = [{"round": 1, "loss": 0.1 + 0.2}, {"round": 2, "loss": 1e-300, "score": 1.0}]
    for line in lines:
        folder.append(line)
    assert RunFolder(folder.path).metrics() == lines
    assert len((folder.path / "metrics.jsonl").read_text().splitlines()) == 2
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"rou')  # of a run that was killed: half a line does not count
    assert RunFolder(folder.path).metrics() == lines
    again = RunFolder.choose(str(folder.path), "digits", "auto")
    again.keep_metrics(1)
    assert again.metrics() == lines[:1], "a resumed run forgets the rounds that it runs again"
    (folder.path / "metrics.jsonl").write_text('{"round": 1}\n{"rou\n')
    for unreadable in (folder, RunFolder(tmp_path)):
        with pytest.raises(DataError, match=r"metrics.jsonl does not hold the metrics of a run"):
            unreadable.metrics()


def test_a_short_file_asks_for_little_memory_and_a_lack_of_it_blames_no_file(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(50 * ('{"round": 1}' + 80 * " " + "\n"))
    tracemalloc.start()
    RunFolder(tmp_path).metrics()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    with pytest.raises(DataError) as refused, reading("runs/a does not hold metrics", "Repair it."):
        bytearray(2**62)
    assert str(refused.value) == "runs/a: too little memory to read it (out of memory). Give the job more memory."


def test_a_run_goes_on_in_the_folder_that_its_checkpoint_lies_in(tmp_path, monkeypatch):
    run = tmp_path / "runs" / "one"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "round-00000001.h5").touch()
    (run / "metrics.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    for resume in (run, run / "checkpoints", run / "checkpoints" / "round-00000001.h5"):
        assert RunFolder.choose("", "digits", str(resume)).path == run
    assert RunFolder.choose("runs/one", "digits", "auto").path.resolve() == run
    assert RunFolder.choose("", "one", "auto").path.resolve() == run
    assert RunFolder.choose("new", "digits", str(run)).path.name == "new"
    with pytest.raises(DataError, match="--resume nowhere does not exist"):
        RunFolder.choose("", "digits", "nowhere")
    assert not (tmp_path / "runs" / "digits").exists()


@pytest.mark.parametrize(
    "name, make, kind",
    [
        ("lock.json", os.mkfifo, "a pipe"),
        ("run.toml", lambda path: path.symlink_to("/dev/zero"), "a device"),
        ("network.h5", lambda path: path.symlink_to("nowhere"), "a link to nothing"),
        ("checkpoints/round-00000001.h5", os.mkdir, "a folder"),
    ],
)
def test_what_is_no_file_in_a_run_s_folder_is_named_before_anybody_opens_it(tmp_path, name, make, kind):
    (tmp_path / "checkpoints").mkdir()
    make(tmp_path / name)
    for resume in ("", "auto"):
        with pytest.raises(ConfigError, match=f"{name} is {kind}; it must be a file. Remove it."):
            RunFolder.choose(str(tmp_path), "digits", resume)
        (tmp_path / "metrics.jsonl").touch()


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
    assert RunFolder.choose("", "done").path == runs / "done-2"
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
@pytest.mark.parametrize("held, removed", [("both", "both/ist-1"), ("both/ist-0", "both")])
def test_rm_refuses_a_run_in_use_here_or_on_another_host(runs, facts, held, removed):
    (runs / held / lock.FILE).write_text(json.dumps(lock._this_process() | facts))
    with pytest.raises(ConfigError, match="is in use by process .* Stop the run first: touch "):
        call("rm", removed, "--yes")
    assert "in use" in call("du")


def test_the_table_has_every_variable(monkeypatch):
    files = [path for top in ("istmpi", "bin", "jobs") for path in (ROOT / top).rglob("*") if path.is_file()]
    files += [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    text = "".join(path.read_text(errors="replace") for path in files if path.suffix not in (".pyc", ".png"))
    named = {name for name in re.findall(r"(?<!_)ISTMPI_[A-Z0-9_]+", text) if not name.startswith("ISTMPI_TEST_")}
    assert named == set(environment.VARIABLES)
    monkeypatch.setenv("ISTMPI_RUNS", "")
    assert environment.read("ISTMPI_RUNS") == "runs"
