"""Ranks that were started differently: the job ends soon, in one line, with exit code 2; none waits for ever."""

import pytest

TRAIN = ["train", "--rounds", "2", "--out", "run"]
AWAY = (
    "import os, sys; os.chdir(sys.argv.pop(1)); from istmpi.cli.main import main; from istmpi.comm import arrival\n"
    "arrival.GONE_AFTER = 6\nmain()"
)


@pytest.fixture
def mixed(mpirun, tmp_path):
    """``mixed(first, others)``: rank 0 runs `istmpi` with some words, two other ranks with others."""

    def run(first, others):
        start = ["python", "-c", AWAY, tmp_path]
        return mpirun(1, *start, *first, ":", "-n", "2", *start, *others)

    return run


@pytest.mark.parametrize(
    "first, others, on_others",
    [
        ([*TRAIN, "--resume", "auto"], TRAIN, "istmpi train --rounds 2 --out run on ranks 1, 2"),
        (["evaluate", "network.h5"], TRAIN, "istmpi evaluate network.h5 on rank 0; istmpi train"),
        ([*TRAIN, "--no-such-option"], TRAIN, "--no-such-option on rank 0"),
    ],
    ids=["an option", "another command", "an option that there is not"],
)
def test_ranks_with_different_commands_are_refused(mixed, tmp_path, first, others, on_others):
    result = mixed(first, others)
    assert result.returncode == 2, result
    (said,) = result.errors
    assert said.startswith("istmpi: the ranks were started with different commands: ") and on_others in said
    assert "Traceback" not in result.stderr and not (tmp_path / "run").exists()


def test_the_same_command_with_another_run_file_is_refused(mpirun, tmp_path):
    for rank in "01":
        (tmp_path / rank).mkdir()
        (tmp_path / rank / "run.toml").write_text(f"[optimizer]\nlr = 0.{rank}1\n")
    program = (
        "import os, sys; rank = os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']\n"
        "os.chdir(os.path.join(sys.argv.pop(1), rank)); from istmpi.cli.main import main; main()"
    )
    result = mpirun(2, "python", "-c", program, tmp_path, "train", "./run.toml")
    assert result.returncode == 2, result
    (said,) = result.errors
    assert "rank 1: the ranks have different settings (optimizer.lr: 0.01 or 0.11; rank 0's first)" in said


@pytest.mark.parametrize("alone", [["--version"], [*TRAIN, "--dry-run"]], ids=["--version", "--dry-run"])
def test_a_rank_that_needs_no_mpi_and_leaves_is_missed(mixed, alone):
    result = mixed(alone, TRAIN)
    if 'this process did not call "init" before exiting' in result.stderr:
        assert result.returncode != 0 and not result.errors  # Open MPI's launcher, if the others were faster
        return
    assert result.returncode == 2, result
    (said,) = result.errors
    assert said.startswith("istmpi: rank 1: 3 ranks were started on ") and "and 1 left again" in said
    assert "Start the same command on all ranks" in said


def test_ranks_with_different_versions_are_refused(mpirun):
    program = (
        "import istmpi, os; istmpi.__version__ += '.post1' * (os.environ.get('PMI_RANK', "
        "os.environ.get('OMPI_COMM_WORLD_RANK')) == '1')\nfrom istmpi.cli.main import main; main()"
    )
    result = mpirun(3, "python", "-c", program, *TRAIN)
    assert result.returncode == 2, result
    (said,) = result.errors
    assert "different versions of istmpi: " in said and ".post1 on rank 1" in said


def test_a_rank_that_is_there_but_never_comes_is_waited_for_so_long_and_no_longer(mpirun):
    program = (
        "import sys, time\nfrom istmpi import comm\nfrom istmpi.comm import arrival\nfrom istmpi.cli.main import main\n"
        "arrival.LONGEST_WAIT = 4\n"
        "main((lambda: time.sleep(600)) if comm.launched()[0] == 1 else comm.world)"
    )
    result = mpirun(2, "python", "-c", program)
    assert result.returncode in (2, 9), result  # MPICH's launcher may tell of the rank that it killed instead
    (said,) = result.errors
    assert said.startswith("istmpi: rank 0: 2 ranks were started, and not all of them came within 4 s")
