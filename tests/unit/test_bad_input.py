"""Files and command lines that make no sense are refused in one line, with the name of what is wrong."""

import io
import json
import re
import sys

import numpy as np
import pytest
from curves import curve
from patience import patient
from rich.console import Console

from istmpi.cli.main import main
from istmpi.cli.run_options import changes
from istmpi.config import Run
from istmpi.deploy.prediction import Predictions, lines
from istmpi.errors import ConfigError, DataError
from istmpi.foreign import LINE, one_line, printable
from istmpi.record import RunFolder
from istmpi.report import plots
from istmpi.report.checkpoints import tensors
from istmpi.report.comparison import compare
from istmpi.report.curves import read_curves

DEEP = 100_000


def test_a_run_file_that_is_nested_or_counts_too_far_is_refused(tmp_path):
    for text in ("x = " + "[" * DEEP, "[model]\nhidden = [" + "9" * 6000 + "]", "a" + ".a" * 5000 + " = 1", "\0"):
        path = tmp_path / "run.toml"
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"run\.toml") as refused:
            Run.load(str(path))
        assert "\n" not in str(refused.value)
    path.write_text("#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="it has more than 1 MB"):
        Run.load(str(path))
    for name in ("x" * 5000, "a\x00b", "two\nlines\x1b[31m"):
        with pytest.raises(ConfigError, match="neither a file nor a built-in run"):
            Run.load(name)


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", ".", "", "a\x00b", "two\nlines", "x" * 201])
def test_a_runs_name_does_not_leave_its_folder(name):
    with pytest.raises(ConfigError, match="name = "):
        Run.from_tree({"name": name}, "run.toml")


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("evaluate.top_k=[3, 10]", "there are 10 classes"),
        ("train.widen=true", "train.widen needs train.init"),
        ("data.label_shards=3", "Leave it out, or take label-shards"),
    ],
)
def test_settings_without_an_effect_are_refused(refusal, setting, why):
    assert why in refusal("train", "digits", "--dry-run", "--ranks", 2, "--set", setting)


def test_an_option_is_one_value_and_nothing_else():
    for text in ("4]\n[train]\nrounds = [7", "4\nrounds = 7", "4] # x", "4], more = [7", "[" * DEEP, "9" * 5000):
        with pytest.raises(ConfigError):
            Run().override(changes((), {"hidden": text}))
        with pytest.raises(ConfigError):
            Run().override(changes((f"train.batch={text}",), {}))
    assert changes(("model.hidden=[4, 5]",), {"seed": "7", "hidden": None}) == {"model.hidden": [4, 5], "train.seed": 7}


def leave(folder, metrics, summary):
    made = RunFolder(folder)
    made.make()
    made.write("run.toml", Run().toml())
    (folder / "metrics.jsonl").write_text(metrics + "\n", "latin1")
    (folder / "summary.json").write_text(summary, "latin1")
    return folder


FIGURES = ("round", "seconds", "bytes", "examples", "loss", "score", "test_loss", "test_examples")
LINE_OF_METRICS = dict.fromkeys(FIGURES, 1.0) | {"round": 1}
SUMMARY = {"ranks": 2, "score_name": "accuracy", "seconds": {"$x_ $compute": 1.0}}


@pytest.mark.parametrize("text", ["[" * DEEP, "[]", "null", "9" * 6000, "{", '{"round": "1", "seconds": 1}', "\x80"])
def test_records_with_anything_in_them_are_refused_by_name(tmp_path, text):
    good, whole = json.dumps(LINE_OF_METRICS), json.dumps(SUMMARY)
    damaged = (f"{good}\n{text}", whole, "metrics.jsonl .* line 2"), (good, text, "summary.json")
    for metrics, summary, name in damaged:
        folder = leave(tmp_path / "run", metrics, summary)
        for use in (lambda folder: read_curves([folder]), plots.draw):
            with pytest.raises(DataError, match=name) as refused:
                use(folder)
            assert "\n" not in str(refused.value)


def test_any_float32_is_no_damage_and_dollars_in_names_are_no_mathematics(tmp_path):
    line = LINE_OF_METRICS | {"score": 3e38, "loss": -3e38, "test_loss": 3e38}
    evil = r"$\frac{$ and $"
    folder = leave(tmp_path / "run", json.dumps(line), json.dumps(SUMMARY | {"score_name": evil}))
    (read,) = read_curves([folder])
    assert [point.score for point in read.points] == [3e38]
    assert compare([read]).targets and plots.draw(folder).is_file()
    assert plots.pictures(compare([curve(evil, [0.1, 0.2], phases={evil: 1.0}), curve("_", [0.1])]))


@pytest.mark.parametrize("words", [("slurm", "digits", "--modules"), ("ec2", "digits", "--instances", "1", "--key")])
def test_a_script_has_no_signs_that_nobody_sees(refusal, words):
    for value in ("\x1b[31m", "\x9b", "\udcff"):
        assert "cannot be printed" in refusal("job", *words, value)


def test_classes_that_another_program_stored_reach_the_terminal_escaped():
    evil = ["a\x1b[31m", "two\nlines", "\x9b31m"]
    outputs = np.zeros((3, 3), np.float32) + np.eye(3, dtype=np.float32)
    for form in ("csv", "jsonl"):
        text = "".join(lines([Predictions(range(3), outputs, None)], evil, 3, True, form))
        assert text.count("\n") == 3 + (form == "csv") and not re.search(r"[\x1b\x9b]", text)
    table = Console(file=io.StringIO())
    table.print(tensors("x", [{"name": name, "axes": name, "shape": [1], "dtype": "", "bytes": 1} for name in evil]))
    assert not re.search(r"[\x1b\x9b]", table.file.getvalue())


def test_messages_are_one_line():
    assert printable("a\x1b\n\udcff\u202e\x85é\U0001f9ea") == r"a\x1b\n\udcff\u202e\x85é" + "\U0001f9ea"
    assert len(one_line("x" * 50_000 + ". The cure.")) < LINE and one_line("x" * 50_000 + "cure").endswith("cure")


@pytest.mark.parametrize(
    "error, code",
    [
        (MemoryError(), 2),
        (RecursionError("maximum recursion depth exceeded"), 2),
        (OverflowError("int too large"), 2),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"), 2),
        (OSError(36, "File name too long", "x" * 5000), 2),
        (ConfigError("two\nlines and \x1b[31m"), 2),
        (KeyError("an error of istmpi itself"), 1),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_any_kind_is_one_line_unless_it_is_our_own(capfd, monkeypatch, error, code):
    def program():
        raise error

    monkeypatch.setattr(sys, "argv", ["istmpi", "runs"])
    with pytest.raises(SystemExit) as ended:
        main(program)
    err = capfd.readouterr().err
    assert ended.value.code == code and ("Traceback" in err) == (code == 1)
    if code == 2:
        assert err.startswith("istmpi: ") and err.count("\n") == 1 and "\x1b" not in err and len(err) < 1100
        assert ("a rank needs more memory than it gets" in err) == (type(error) in (MemoryError, RuntimeError))


def test_no_code_of_others_ends_a_command_as_if_its_work_were_done(forked, tmp_path):
    for other in ("EOFError", "SystemExit", "SystemExit(512)", "click.exceptions.Exit", "KeyboardInterrupt"):
        (tmp_path / "net.py").write_text(f"import click, signal\nsignal.signal(signal.SIGINT, print)\nraise {other}\n")
        done = forked("model", tmp_path / "net.py:Net")
        assert done.returncode in (1, 2) and done.stdout == "", (other, done)
        assert done.stderr.startswith("istmpi: ") and "net.py" in done.stderr and done.stderr.count("\n") == 1, other


def test_a_sample_of_the_campaign_finds_nothing(forked, tmp_path):
    program = "import sys; from benchmarks.campaigns import bad_input; sys.exit(bad_input.main(sys.argv[1:]))"
    words = ["--cases", 12, "--seed", 3, "--results", tmp_path, "--seconds", patient(40)]
    done = forked(*words, program=program)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "campaign-bad-input.json").read_text())["rows"]
    assert rows[-1]["cases"] == 12 and len(rows) > 6, "many readers have their turn"
