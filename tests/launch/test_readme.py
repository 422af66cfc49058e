"""The README, followed by a new user: its commands in order in one folder."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
WORDS = 700


def blocks(language):
    """The blocks of code in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_its_commands_run_in_order_in_one_folder(series, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = 0
    for block in blocks("sh"):
        lines = {line: shlex.split(line, comments=True) for line in block.splitlines()}
        (ranks,) = {int(words[2]) for words in lines.values() if words[0] == "mpirun"}
        steps = {
            line: (["alone"] if words[0] == "istmpi" else []) + words[words.index("istmpi") + 1 :]
            for line, words in lines.items()
        }
        said = series(ranks, tmp_path, steps).end(200)
        assert not any(done.returncode for done in said.values()), said
        commands += len(steps)
    assert commands == 8
    left = {path.name for path in tmp_path.iterdir()}
    assert {"runs", "digits.html", "answers.jsonl"} <= left
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    assert runs == {"digits", "compare-digits", "convnet", "targets"}


def test_it_is_short():
    assert len(README.split()) < WORDS
