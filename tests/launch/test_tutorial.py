"""The tutorial, step by step as a newcomer takes it: its files are written, its commands run in one folder."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from patience import patient

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def step_of(line):
    """A command of the page as a step of a job: the words of istmpi, or the code that runs a program."""
    words = shlex.split(line.removesuffix("&"))
    if words[0] == "python":
        return f"import runpy, sys; sys.path.insert(0, ''); runpy.run_path({words[1]!r}, run_name='__main__')"
    return words[words.index("istmpi") + 1 :]


@pytest.mark.timeout(600)
def test_every_file_and_every_command_of_the_tutorial(series, tmp_path):
    """Commands of one process share one, and so do jobs of two; the evaluation has another number of ranks, one."""
    page = []
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "bash":
            page += text.splitlines()
        else:
            (tmp_path / re.match(r"# (\S+)\n", text)[1]).write_text(text)
    numbered = re.findall(r"^mpirun -n (\d) istmpi (\w+)", "\n".join(page), re.MULTILINE)
    assert numbered == [("4", "train"), ("2", "train"), ("3", "evaluate"), ("4", "compare")]
    images, prepare, model, train, until, touch, wait, remove, *others = page
    again, evaluate, predict, head, export, use, compare = others
    assert (train[-1], wait, head) == ("&", "wait", "head -5 crosses.csv")
    steps = {line: step_of(line) for line in page if "istmpi" in line or "python" in line}
    steps[compare] += ["--rounds", 2, "--evaluate-every", 1]

    def run(ranks, *lines):
        return series(ranks, tmp_path, {line: steps[line] for line in lines})

    said = run(1, images, prepare, model).end()
    stopped = run(4, train)
    subprocess.run(["bash", "-c", f"{until}\n{touch}"], cwd=tmp_path, check=True, timeout=patient(60))
    assert stopped.end()[train].returncode == 75 and "stopped" in stopped.outcome(train).stderr
    subprocess.run(shlex.split(remove), cwd=tmp_path, check=True)
    said |= run(2, again, compare).end(200) | run(1, evaluate, predict, export, use).end()
    assert not any(done.returncode for done in said.values()), said
    assert "900" in said[prepare].stdout and "180" in said[prepare].stdout
    for width in ("channels1", "channels2", "hidden"):
        assert re.search(rf"^{width} +\d+ +yes", said[model].stdout, re.MULTILINE)
    summary = json.loads((tmp_path / "runs/shapes/summary.json").read_text())
    assert summary["last"]["round"] == 40 and summary["last"]["score"]["score"] > 0.8
    scored = f"{summary['last']['score']['score']:.4f}"
    assert scored in said[again].stdout and scored in said[evaluate].stdout
    assert (tmp_path / "crosses.csv").read_text().startswith("example,class,probability\n0000.png,")
    assert re.fullmatch(r"this is a (circle|cross|square), with a probability of [\d.]+%\n", said[use].stdout)
    assert "local-sgd" in said[compare].stdout
