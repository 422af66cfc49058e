"""``istmpi demo``: what a new user sees first."""

import os
import re
import subprocess
import sys
from pathlib import Path

from patience import patient

# Measuring this machine takes seconds.
SHORT = "from istmpi.cluster import timing\ntiming.SECONDS, timing.TURN_SECONDS = 0.01, 0.001\n"
SMALL = ("--ranks", "2", "--seconds", "1")


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
