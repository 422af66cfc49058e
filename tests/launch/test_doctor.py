"""`istmpi doctor` under mpirun where ranks or hosts do not answer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

ROOT = Path(__file__).parents[2]


def test_a_rank_that_says_nothing_is_named(mpirun, tmp_path):
    """Rank 1 is up and stays silent: the others must not wait for it for ever."""
    program = (
        f"import os, sys, time; sys.path.insert(0, {str(ROOT)!r})\n"
        "from mpi4py import MPI\n"
        "if MPI.COMM_WORLD.rank == 1: time.sleep(600)\n"
        "from istmpi.cli.main import main\n"
        f"sys.argv[1:] = ['doctor', '--patience', '{patient(2):.0f}', '--folder', {str(tmp_path)!r}]\n"
        "main()"
    )
    result = mpirun(3, "python", "-c", program, timeout=50)
    assert result.returncode != 0
    assert "rank 0 receives nothing from rank 1; rank 2 receives nothing from rank 1" in result.stdout, result.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"), reason="needs root, iproute2 and MPICH"
)
def test_two_hosts_that_do_not_hear_each_other_are_named(tmp_path):
    """On the emulated cluster, whose cable between two hosts is cut: MPI itself hangs before it is up."""
    cluster = [sys.executable, ROOT / "benchmarks/cluster"]
    hydra = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    if "HYDRA" not in hydra.upper():
        pytest.skip("benchmarks/cluster needs MPICH's mpirun")
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from istmpi.cli.main import main; main()"
    doctor = [sys.executable, "-c", program, "doctor", "--patience", f"{patient(4):.0f}", "--folder", tmp_path]
    try:
        subprocess.run([*cluster, "up", "--name", "deaf", "--hosts", "3"], check=True)
        for host, other in ((1, "10.0.1.3"), (2, "10.0.1.2")):
            cut = ["neigh", "replace", other, "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"]
            subprocess.run(["ip", "-n", f"istmpi-deaf-{host}", *cut], check=True)
        result = subprocess.run(
            [*cluster, "run", "--name", "deaf", "--", *map(str, doctor)],
            capture_output=True,
            text=True,
            timeout=patient(90),
        )
    finally:
        subprocess.run([*cluster, "down", "--name", "deaf"], check=True)
    assert result.returncode != 0
    blamed = (
        ("rank 1 on istmpi-deaf-1", "no answer from 10.0.1.3"),
        ("rank 2 on istmpi-deaf-2", "no answer from 10.0.1.2"),
    )
    lines = result.stderr.splitlines()
    assert any(rank in line and waits in line for rank, waits in blamed for line in lines), result.stderr
