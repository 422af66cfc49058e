"""The README, followed by a new user: its commands in order in one folder."""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def first_run():
    """The words of the run that bin/quickstart leaves in the folder, before README's other commands."""
    (words,) = re.findall(r'istmpi" (train.*) "\$@"$', (ROOT / "bin" / "quickstart").read_text(), re.MULTILINE)
    return words.split()


def test_its_commands_run_in_order_in_one_folder(series, tmp_path):
    """They work in the folder that its own first command has left, and print what README shows."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands, said = 0, {}
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        lines = {line: shlex.split(line, comments=True) for line in block.splitlines()}
        (ranks,) = {int(words[2]) for words in lines.values() if words[0] == "mpirun"}
        steps = {
            line: (["alone"] if words[0] == "istmpi" else []) + words[words.index("istmpi") + 1 :]
            for line, words in lines.items()
        }
        commands += len(steps)
        if not said:
            steps = {"pictures": "allow_pictures()", "bin/quickstart": first_run(), **steps}
        said |= series(ranks, tmp_path, steps).end(200)
    assert commands == 7 and not any(done.returncode for done in said.values()), said
    assert {"runs", "digits.html", "answers.jsonl"} <= {path.name for path in tmp_path.iterdir()}
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    assert runs == {"digits", "first", "compare-digits", "convnet"}
    shown = re.search(r"^The first command ends with\n\n```\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[1]
    trained = next(done.stdout for line, done in said.items() if "--out runs/first" in line)
    rounds, sent, network = shown.splitlines()
    # Pickled objects, which count beside the rounds, may have other sizes elsewhere.
    assert sent.partition(";")[0] in trained and network in trained
    figures = r"round 15/15 .*  loss ([\d.]+)  test loss ([\d.]+)  accuracy ([\d.]+)"
    shown_figures, trained_figures = (
        [float(figure) for figure in re.search(figures, text).groups()] for text in (rounds, trained)
    )
    assert shown_figures == pytest.approx(trained_figures, abs=0.02), "another processor rounds in another way"
