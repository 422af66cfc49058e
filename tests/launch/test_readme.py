"""The README, followed by a new user: its commands in order in one folder."""

import os
import re
import shlex
import subprocess
from pathlib import Path

from patience import patient

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
WORDS = 700


def blocks(language):
    """The blocks of code in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_its_commands_run_in_order_in_one_folder(mpirun, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ranks = re.compile(r"mpirun -n (\d+) ")
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 8
    for line in commands:
        words = shlex.split(line, comments=True)
        if found := ranks.match(line):
            done = mpirun(int(found[1]), *words[3:], timeout=100)
        else:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(words, capture_output=True, text=True, timeout=patient(100), env=environment)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    left = {path.name for path in tmp_path.iterdir()}
    assert {"runs", "digits.html", "answers.jsonl"} <= left
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    assert runs == {"digits", "compare-digits", "convnet", "targets"}


def test_it_is_short():
    assert len(README.split()) < WORDS
