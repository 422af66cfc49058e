"""`istmpi train` as its users start it, and what they do with the network: to the end or to its error message."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from following import lines

from istmpi.config import Run

SMALL = ("--hidden", "32,16", "--rounds", "3", "--local-steps", "4", "--batch", "16", "--lr", "0.1")
BAR = re.compile(r"round +[0-9]+/3 [━╸╺ ]+ 0:00:[0-9]+")
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
IN_COLOURS = "import os; os.environ.update(FORCE_COLOR='1', NO_COLOR='')"
WITHOUT_PLOT = "import os\nif rank == 0: os.remove('run/progress.png')"
"""As when it was killed behind the summary."""
PLOT_IN_THE_WAY = "import os\nif rank == 0: os.remove('again/progress.png'); os.mkdir('again/progress.png')"
BAD = {
    "no option --hiddn; did you mean --hidden?": ["--hiddn", "2"],
    "the folder is not empty": ["--out", "used"],
    "hidden1 has 2 units, but the run has 3 ranks": ["--hidden", "2"],
}


@pytest.fixture(scope="module")
def said(series, folder):
    """The outcomes of commands of one job of three ranks."""
    (folder / "used").mkdir()
    (folder / "used" / "precious").write_text("kept")
    return series(
        3,
        folder,
        {
            "predict nothing": ["predict", "nowhere.h5", "digits"],  # before MPI is up, as the next one
            "demo": ["demo"],
            **{text: ["train", "--out", "bad", *words] for text, words in BAD.items()},
            "pictures": "allow_pictures()",
            "train": ["train", *SMALL, "--out", "run", "--evaluate-every", "2"],
            "again": ["train", "run/run.toml", "--out", "again"],
            "without": WITHOUT_PLOT,
            "finished": ["train", "run/run.toml", "--resume", "auto"],
            "in the way": PLOT_IN_THE_WAY,
            "plot": ["train", "run/run.toml", "--out", "again", "--resume", "auto", "--rounds", "4"],
            "diverges": ["train", *SMALL, "--lr", "1e30", "--out", "diverged"],
            "one exit": ["evaluate", "run/network.h5", "--exits"],
            "in colours": IN_COLOURS,
            "coloured": ["train", *SMALL, "--out", "coloured"],
        },
    ).end()


def test_a_run_leaves_its_record_and_its_run_file_repeats_it_bit_for_bit(said, folder):
    out, result = folder / "run", said["train"]
    assert result.returncode == 0, result
    for fact in ("ranks      3 on 1 host", "dealt out  hidden1, hidden2", "accuracy", "examples/s", "progress.png"):
        assert fact in result.stdout
    metrics = lines(out)
    assert [line["round"] for line in metrics] == [1, 2, 3]
    assert ["score" in line for line in metrics] == [False, True, True]
    assert metrics[-1]["test_examples"] == 360 and metrics[-1]["examples"] == 3 * 3 * 4 * 16
    summary = json.loads((out / "summary.json").read_text())
    assert {"deal", "pull", "compute", "push", "evaluate"} <= set(summary["seconds"])
    assert {path.name for path in out.iterdir()} >= {"run.toml", "network.h5", "progress.png"}
    saved = Run.load(str(out / "run.toml"))
    assert saved.model.hidden == (32, 16)
    assert saved.output.folder == str(out), "the folder in which it lies, for a folder may be copied"
    assert said["again"].returncode == 0
    assert [line["loss"] for line in lines(folder / "again")][:3] == [line["loss"] for line in metrics]


def test_what_cannot_be_done_is_told_once(said):
    assert said["predict nothing"].refusal(alone=True) == "istmpi: nowhere.h5 does not exist."
    assert said["one exit"].returncode == 2 and said["one exit"].stderr.count("is not a classifier with early") == 1
    assert said["demo"].refusal() == "istmpi: istmpi demo starts its ranks itself: run it without mpirun."


def test_in_a_pipe_there_is_no_bar_also_where_colours_are_asked_for(said):
    result = said["coloured"]
    assert result.returncode == 0 and "\x1b[1m" in result.stdout
    assert not BAR.search(result.stdout) and HIDE not in result.stdout


def test_a_finished_run_is_left_as_it_is_and_gets_the_plot_that_it_lacks(said, folder):
    assert said["finished"].returncode == 0 and "nothing left to train" in said["finished"].stdout, said["finished"]
    assert (folder / "run" / "progress.png").is_file()


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_told_once_by_one_rank(said, folder, message):
    assert message in said[message].refusal() and not (folder / "bad").exists()
    assert [path.name for path in (folder / "used").iterdir()] == ["precious"], "a used folder is left alone"


def test_a_loss_that_is_not_finite_stops_the_run_with_round_and_rank(said, folder):
    result = said["diverges"]
    assert result.returncode == 3
    assert "rank 0: the loss is no longer finite in round 1, local step 2" in result.stderr
    assert "They are saved in diverged/network.h5." in result.stderr
    with h5py.File(folder / "diverged" / "network.h5") as file:
        assert file.attrs["round"] == 0
        assert np.isfinite(file["model/hidden1.linear.weight"][...]).all()


def test_a_plot_that_cannot_be_written_is_one_line_of_a_run_that_succeeds(said):
    assert said["plot"].returncode == 0 and not said["plot"].errors, said["plot"]
    assert "plots      none: again/progress.png: cannot be written (Is a directory)." in said["plot"].stdout


def test_a_job_on_a_terminal_has_a_bar(start, tmp_path):
    """Where mpirun's own output is a terminal, whatever it gives its ranks."""
    ours, its = pty.openpty()
    train = ["train", "--rounds", "3", "--set", "evaluate.every=3", "--out", tmp_path / "run"]
    job = start(2, "istmpi", *train, output=its)
    os.close(its)
    shown = b""
    with suppress(OSError):  # the end of a terminal on Linux
        while piece := os.read(ours, 4096):
            shown += piece
    text = shown.decode()
    assert job.end().returncode == 0, text
    assert BAR.search(text) and HIDE in text and "accuracy" in text, text


WAYS = [
    (["train", "--rounds", "2"], 0),
    (["train", "--rounds", "100000"], 75),
    (["train", "--lr", "1e30"], 3),
    (["compare", "--methods", "ist", "--rounds", "100000"], 75),
]


def test_however_a_run_ends_the_terminal_has_its_cursor_back_before_the_error(tmp_path, monkeypatch):
    """One process runs all of it; Ctrl-C ends what would not end by itself once it shows its rounds."""
    monkeypatch.chdir(tmp_path)
    ours, theirs = pty.openpty()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = [[*words, "--hidden", "24", "--out", f"run-{number}"] for number, (words, _) in enumerate(WAYS)]
    (tmp_path / "commands").write_text(json.dumps(commands))
    program = [sys.executable, Path(__file__).parents[1] / "support" / "in_turn.py", tmp_path, "here"]
    environment = {**os.environ, "TERM": "xterm", "PATH": path}
    with subprocess.Popen(program, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        shown, interrupted = [""], 0
        while True:
            try:
                shown[-1] += os.read(ours, 4096).decode(errors="replace")
            except OSError:  # Linux says so when the other end is closed
                break
            while ended := re.search(r"exit code \d+\s", shown[-1]):
                shown[-1:] = shown[-1][: ended.end()], shown[-1][ended.end() :]
            if "/100000" in shown[-1] and interrupted < len(shown):
                process.send_signal(signal.SIGINT)
                interrupted = len(shown)
    os.close(ours)
    assert process.returncode == 0 and len(shown) == len(WAYS) + 1, shown
    for (words, code), text in zip(WAYS, shown):
        assert f"exit code {code}" in text, (words, text)
        error = text.index("exit code" if code == 0 else "istmpi: ")
        assert HIDE in text and text.rindex(HIDE) < text.rindex(SHOW) < error, (words, text)
    assert "2/2" in shown[0] and "accuracy" in shown[0] and "started without mpirun" in shown[0]
