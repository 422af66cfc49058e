"""Tests that start mpirun themselves: what cannot be seen from inside a job, such as how a job ends."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
ENVIRONMENT = {
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",  # Open MPI gives ranks a terminal even where there is none
    # Open MPI, 4 and 5, refuses root and more ranks than cores unless told.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def pytest_configure(config):
    if "PMI_SIZE" in os.environ or "OMPI_COMM_WORLD_SIZE" in os.environ:
        raise pytest.UsageError("tests/launch starts mpirun itself and cannot run under it; run: bin/test launch")


@pytest.fixture
def mpirun():
    """``mpirun(ranks, *command, env={}, timeout=60)`` runs a command on that many ranks to its end: a CompletedProcess.

    ``python`` and ``istmpi`` are this environment's. ``stdout`` and ``stderr`` are text. A job that is still there
    after ``timeout`` seconds is ended and fails the test with what it had printed.
    """
    launcher = os.environ.get("MPIRUN") or shutil.which("mpirun", path=ENVIRONMENT["PATH"])
    assert launcher, "no mpirun: run bin/test, which sets one up"

    def run(ranks, *command, env=None, timeout=60):
        # By its full path: Open MPI's mpirun puts its own folder first in the ranks' PATH.
        program = shutil.which(command[0], path=ENVIRONMENT["PATH"])
        assert program, f"no program {command[0]}"
        # The environment is spelt out: MPI_Init in this process would add a singleton's variables behind Python's back.
        job = subprocess.Popen(
            [launcher, "-n", str(ranks), program, *map(str, command[1:])],
            env={**os.environ, **ENVIRONMENT, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            job.terminate()  # the launcher takes its ranks along
            try:
                stdout, stderr = job.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                stdout, stderr = job.communicate()
            pytest.fail(f"{' '.join(map(str, command))} still ran after {timeout} s\n{stdout}\n{stderr}")
        return subprocess.CompletedProcess(job.args, job.returncode, stdout, stderr)

    return run
