"""The MPI test harness where things go wrong: each case is a small test file of its own, run under mpirun."""

import shutil
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def job(mpirun, tmp_path):
    """``job(ranks, source)`` runs the source of a test file under mpirun with the harness, as bin/test would."""

    def run(ranks, source):
        shutil.copy(ROOT / "tests/mpi/conftest.py", tmp_path)
        (tmp_path / "test_case.py").write_text("import pytest\n\n" + dedent(source))
        env = {"ISTMPI_TEST_RANKS": str(ranks), "ISTMPI_TEST_GRACE": "2"}
        pytest_options = ["--with-mpi", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider"]
        result = mpirun(ranks, "python", "-m", "pytest", *pytest_options, tmp_path, env=env)
        result.output = result.stdout + result.stderr
        return result

    return run


def test_a_job_whose_processes_would_all_simulate_is_refused(mpirun):
    result = mpirun(2, "python", "-m", "pytest", "-p", "no:cacheprovider", ROOT / "tests/mpi/test_laws.py")
    assert result.returncode not in (0, 5)
    assert "give --with-mpi: without it every process would run all tests" in result.stdout + result.stderr


def test_a_failure_on_one_rank_fails_all_and_shows_it(job):
    ways = "assert comm.rank != 1", "raise SystemExit('rank %d leaves' % comm.rank)"
    tests = [
        f"""
        def test_wrong_{number}(comm):
            if comm.rank == 1:
                print("heard of {number} on rank", comm.rank)
                {wrong}

        def test_after_{number}(comm):
            comm.barrier()
        """
        for number, wrong in enumerate(ways)
    ]
    result = job(3, "".join(map(dedent, tests)))
    assert result.returncode != 0
    assert result.output.count("2 failed, 2 passed") == 1, result.output
    details = result.output.split("short test summary")[0]  # which repeats them where CI is set
    assert details.count("[rank 1 of 3") == 2, details
    for number, wrong in enumerate(ways):
        assert f"heard of {number} on rank 1" in details and details.count(f"   {wrong}") == 1
