"""What a new user sees first: ``istmpi demo``, and the notebook of examples/ as a plain program, without Jupyter."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from patience import patient

# Measuring this machine takes seconds.
SHORT = "from istmpi.cluster import timing\ntiming.SECONDS, timing.TURN_SECONDS = 0.01, 0.001\n"
SMALL = ("--ranks", "2", "--seconds", "1")
EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_three_methods_are_trained_and_their_time_over_slow_links_is_predicted(tmp_path):
    command = [sys.executable, "-m", "istmpi", "demo", *SMALL, "--out", "demo", "--rate", "1Mbit,100Mbit"]
    (tmp_path / "sitecustomize.py").write_text(SHORT)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    settings = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": patient(300)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 ranks on this machine. ")
    for words in ("Training time to a score", "Predicted training time to an acc", "These seconds are predicted."):
        assert words in done.stdout
    slow, faster = (
        [float(cell.replace(",", "")) for cell in re.findall(r"([\d.,]+) s\b", line)]
        for line in re.findall(r"^ *(?:1|100) Mbit/s .*$", done.stdout, re.M)
    )
    ist, local_sgd, data_parallel = slow
    assert len(faster) == 3 and all(time < longer for time, longer in zip(faster, slow))
    assert data_parallel > local_sgd and ist > 0
    assert "<svg" in (tmp_path / "demo" / "report.html").read_text()


def test_the_cells_run_in_order(tmp_path):
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in CODE))
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "error", script]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=patient(60))
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"accuracy (\S+) after 120 local steps", done.stdout).group(1)) > 0.9
    assert "each rank trains 6.2% of these weights, all together 25%" in done.stdout
    wrong, all_digits = map(int, re.search(r"(\d+) of (\d+) digits", done.stdout).groups())
    assert wrong < 0.1 * all_digits and all_digits == 1797


def test_it_is_kept_without_outputs():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE)


def test_its_links_lead_somewhere():
    text = "".join("".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all((EXAMPLES / link).exists() for link in links)
