"""`istmpi train` as its users start it: under mpirun, to the end or to its error message."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from following import lines

from istmpi.config import Run

SMALL = ("--hidden", "32,16", "--rounds", "3", "--local-steps", "4", "--batch", "16", "--lr", "0.1")


@pytest.fixture
def data(tmp_path):
    """Three classes that a small network can tell apart, as an .npz."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 300)
    x = (generator.normal(size=(300, 12)) + 2 * np.eye(3, 12)[y]).astype(np.float32)
    np.savez(tmp_path / "data.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    return tmp_path / "data.npz"


def test_a_run_leaves_its_record_and_its_run_file_repeats_it_bit_for_bit(mpirun, tmp_path):
    out = tmp_path / "run"
    result = mpirun(3, "istmpi", "train", *SMALL, "--out", out, "--evaluate-every", "2")
    assert result.returncode == 0, result.stderr
    for fact in (
        "ranks      3 on 1 host",
        "dealt out  hidden1, hidden2",
        "accuracy",
        "examples/s",
        "sent",
        "progress.png",
    ):
        assert fact in result.stdout
    metrics = lines(out)
    assert [line["round"] for line in metrics] == [1, 2, 3]
    assert ["score" in line for line in metrics] == [False, True, True]
    assert metrics[-1]["test_examples"] == 360
    assert metrics[-1]["examples"] == 3 * 3 * 4 * 16
    summary = json.loads((out / "summary.json").read_text())
    assert {"deal", "pull", "compute", "push", "evaluate"} <= set(summary["seconds"])
    assert {path.name for path in out.iterdir()} >= {"run.toml", "network.h5", "progress.png"}
    saved = Run.load(str(out / "run.toml"))
    assert saved.model.hidden == (32, 16) and saved.output.folder == str(out)
    assert mpirun(3, "istmpi", "train", out / "run.toml", "--out", tmp_path / "again").returncode == 0
    assert [line["loss"] for line in lines(tmp_path / "again")] == [line["loss"] for line in metrics]


def on_a_terminal(*command, interrupt_at=None):
    """The exit code of a command on one rank and what its terminal got; Ctrl-C once it has shown a certain text."""
    ours, theirs = pty.openpty()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "TERM": "xterm", "PATH": path}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            shown += part
            if interrupt_at and interrupt_at.encode() in shown:
                process.send_signal(signal.SIGINT)
                interrupt_at = None
    os.close(ours)
    return process.returncode, shown.decode()


def test_on_a_terminal_a_run_shows_its_progress_and_its_outcome(tmp_path):
    code, text = on_a_terminal("istmpi", "train", "--rounds", "2", "--hidden", "24", "--out", tmp_path / "run")
    assert code == 0, text
    assert "2/2" in text and "accuracy" in text and "started without mpirun" in text


@pytest.mark.parametrize(
    "command, interrupt_at, code",
    [
        (["train", "--rounds", "100000"], "/100000", 75),
        (["train", "--lr", "1e30"], None, 3),
        (["compare", "--methods", "ist", "--rounds", "100000"], "/100000", 75),
    ],
)
def test_however_a_run_ends_the_terminal_has_its_cursor_back_before_the_error(tmp_path, command, interrupt_at, code):
    command = ("istmpi", *command, "--hidden", "24", "--out", tmp_path / "run")
    found, text = on_a_terminal(*command, interrupt_at=interrupt_at)
    assert found == code, text
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert hide in text and text.rindex(hide) < text.rindex(show) < text.index("istmpi: "), text


def test_a_file_for_each_rank(mpirun, tmp_path, data):
    for rank in range(2):
        with np.load(data) as whole:
            parts = {name: whole[name][rank::2] for name in whole.files}
        np.savez(tmp_path / f"site-{rank}.npz", **parts)
    out = tmp_path / "run"
    words = ["--rounds", "10", "--data", tmp_path / "site-{rank}.npz", "--out", out]
    result = mpirun(2, "istmpi", "train", *SMALL, *words)
    assert result.returncode == 0, result.stderr
    assert "placement local" in result.stdout
    score = json.loads((out / "summary.json").read_text())["last"]["score"]
    assert score["examples"] == 100 and score["score"] > 0.8


BAD = {
    "the folder is not empty": ["--out", "used"],
    "hidden1 has 2 units, but the run has 3 ranks": ["--hidden", "2"],
    "nowhere.h5 does not exist": ["--data", "nowhere.h5"],
    "site-0.npz does not exist": ["--data", "site-{rank}.npz"],
}


def test_bad_input_is_told_once_by_one_rank(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "precious").write_text("kept")
    said = refused(3, *(["train", "--out", tmp_path / "run", *options] for options in BAD.values()))
    assert all(message in line for message, line in zip(BAD, said, strict=True)), said
    assert not (tmp_path / "run").exists()
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["precious"], "a used folder is left alone"


@pytest.mark.parametrize(
    "options, message",
    [(["--hidden", "1"], "hidden1 has 1 units"), (["--hiddn", "2"], "no option --hiddn; did you mean --hidden?")],
)
def test_bad_input_ends_a_job(mpirun, tmp_path, options, message):
    result = mpirun(2, "istmpi", "train", *options, "--out", tmp_path / "run")
    assert result.returncode == 2
    assert result.errors == [line for line in result.stderr.splitlines() if message in line]
    assert result.stderr.count(message) == 1, result.stderr
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_the_run_with_round_and_rank(mpirun, tmp_path):
    result = mpirun(2, "istmpi", "train", *SMALL, "--lr", "1e30", "--out", tmp_path / "run")
    assert result.returncode == 3
    assert "rank 0: the loss is no longer finite in round 1, local step 2" in result.stderr
    assert f"They are saved in {tmp_path / 'run' / 'network.h5'}." in result.stderr
    with h5py.File(tmp_path / "run" / "network.h5") as file:
        assert file.attrs["round"] == 0
        assert np.isfinite(file["model/hidden1.linear.weight"][...]).all()


def test_a_plot_that_cannot_be_written_is_one_line_and_exit_code_74(mpirun, tmp_path):
    out = tmp_path / "run"
    program = ("istmpi", "train", *SMALL, "--out", out, "--resume", "auto")
    assert mpirun(2, *program).returncode == 0
    (out / "progress.png").unlink()
    (out / "progress.png").mkdir()
    result = mpirun(2, *program, "--rounds", "4")
    assert result.returncode == 74, result.stderr
    assert result.errors == [f"istmpi: rank 0: {out}/progress.png: cannot be written (Is a directory)."]
