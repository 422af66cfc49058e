"""Ranks that were started differently: the job ends soon, in one line, with exit code 2; none waits for ever."""

import re

import pytest
from patience import patient

TRAIN = ["train", "--rounds", "2", "--out", "run"]
KILLED_OR_2 = (2, 9)
"""MPICH's launcher may tell of a rank that it killed instead of the one that ended before."""
AWAY = """
import os, sys
os.chdir(sys.argv.pop(1))
from istmpi.cli.main import main
from istmpi.comm import arrival
arrival.GONE_AFTER = 4
main()
"""


@pytest.fixture
def mixed(mpirun, tmp_path):
    """``mixed(first, others)``: rank 0 runs `istmpi` with some words, two other ranks with others."""

    def run(first, others):
        start = ["python", "-c", AWAY, tmp_path]
        return mpirun(1, *start, *first, ":", "-n", "2", *start, *others)

    return run


@pytest.mark.parametrize(
    "first, said",
    [
        (
            ["evaluate", "network.h5"],
            "istmpi evaluate network.h5 on rank 0; istmpi train --rounds 2 --out run on ranks 1",
        ),
        ([*TRAIN, "--no-such-option"], "--no-such-option on rank 0"),
    ],
    ids=["another command", "an option that there is not"],
)
def test_ranks_with_different_commands_are_refused(mixed, tmp_path, first, said):
    result = mixed(first, TRAIN)
    assert result.returncode == 2, result
    (line,) = result.errors
    assert line.startswith("istmpi: the ranks were started with different commands: ") and said in line
    assert "Traceback" not in result.stderr and not (tmp_path / "run").exists()


def test_a_rank_that_needs_no_mpi_and_leaves_is_missed_and_said_once(mixed):
    result = mixed(["--version"], TRAIN)
    if 'this process did not call "init" before exiting' in result.stderr:
        assert result.returncode != 0 and not result.errors  # Open MPI's launcher, if the others were faster
        return
    assert result.returncode in KILLED_OR_2, result
    (said,) = result.errors
    assert re.match(r"istmpi: rank [12]: 3 ranks were started on \S+, but 1 left\.", said)
    assert "Start the same command on all ranks" in said


def test_ranks_with_different_versions_are_refused(mpirun):
    program = """
import os
import istmpi
istmpi.__version__ += ".post1" * (os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1")
from istmpi.cli.main import main
main()
"""
    result = mpirun(3, "python", "-c", program, *TRAIN)
    assert result.returncode == 2, result
    (said,) = result.errors
    assert "different versions of istmpi: " in said and ".post1 on rank 1" in said


def test_a_rank_that_is_there_but_never_comes_is_waited_for_so_long_and_no_longer(mpirun):
    program = """
import time
from istmpi import comm
from istmpi.comm import arrival
from istmpi.cli.main import main
arrival.LONGEST_WAIT = arrival.GONE_AFTER = 3
main((lambda: time.sleep(600)) if comm.read_launcher()[0] == 1 else comm.world)
"""
    result = mpirun(2, "python", "-c", program)
    assert result.returncode in KILLED_OR_2, result
    (said,) = result.errors
    assert said.startswith("istmpi: rank 0: 2 ranks were started, but some did not arrive within 3 s")


def test_doctor_names_a_rank_that_says_nothing(mpirun, tmp_path):
    """Rank 1 is up and stays silent: the others must not wait for it for ever."""
    program = """
import time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1: time.sleep(600)
from istmpi.cli.main import main
main()
"""
    words = ("doctor", "--patience", f"{patient(2):.0f}", "--folder", tmp_path)
    result = mpirun(3, "python", "-c", program, *words, timeout=50)
    assert result.returncode != 0
    assert "rank 0 receives nothing from rank 1; rank 2 receives nothing from rank 1" in result.stdout, result.stderr
