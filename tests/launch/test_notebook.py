"""The notebook of examples/, whose cells run one after another as a plain program; Jupyter itself is not needed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from patience import patient

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = json.loads((EXAMPLES / "quickstart.ipynb").read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


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
