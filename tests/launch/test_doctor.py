"""`istmpi doctor` under mpirun where a rank does not answer."""

from patience import patient


def test_a_rank_that_says_nothing_is_named(mpirun, tmp_path):
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
