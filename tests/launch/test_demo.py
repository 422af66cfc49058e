"""``istmpi demo``: what a new user sees first, without a network and with an emulated one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

from istmpi import emulated

SMALL = ("--ranks", "2", "--seconds", "1")


def demo(folder, *words):
    command = [sys.executable, "-m", "istmpi", "demo", *SMALL, "--out", "demo", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=patient(300),
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("how", ["reckoned", "emulated"])
def test_three_methods_are_compared(tmp_path, how):
    if how == "emulated" and (reason := emulated.obstacle()):
        pytest.skip(f"no emulated network: {reason}")
    done = demo(tmp_path, *(["--reckon"] if how == "reckoned" else []))
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    assert first.startswith("2 ranks, a network of 50 Mbit/s each") and (how == "emulated") == (how in first)
    for words in ("Training time to a score", "ist", "local-sgd", "data-parallel"):
        assert words in done.stdout
    assert "<svg" in (tmp_path / "demo" / "report.html").read_text()


def test_under_mpirun_it_is_refused(mpirun):
    done = mpirun(2, "istmpi", "demo")
    assert done.returncode == 2
    assert done.errors == ["istmpi: istmpi demo starts its ranks itself: call it without mpirun."]
