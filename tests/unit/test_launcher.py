"""The rank and the number of ranks, from a launcher's variables."""

import pytest

from istmpi.cli.run_options import Showing
from istmpi.comm import launcher
from istmpi.comm.loopback import INTERFACES, stay_on_loopback

SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
STEP = {**SCRIPT, "SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for rank, size, _ in launcher.LAUNCHERS.values():
        monkeypatch.delenv(rank, raising=False)
        monkeypatch.delenv(size, raising=False)
    monkeypatch.delenv("SLURM_NTASKS", raising=False)


@pytest.mark.parametrize(
    ("variables", "launched"),
    [
        (SCRIPT, (0, 1)),
        (STEP, (2, 3)),
        ({**SCRIPT, "SLURM_STEP_NUM_TASKS": "1"}, (0, 1)),  # an interactive shell, whose step is the shell
        ({**STEP, "PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"PMI_RANK": "x", "PMI_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
    ],
)
def test_only_a_step_of_slurm_is_a_launcher(monkeypatch, variables, launched):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launcher.read_launcher() == launched


def test_a_job_of_several_tasks_in_which_one_rank_trains_is_told(monkeypatch, capsys):
    for name, value in SCRIPT.items():
        monkeypatch.setenv(name, value)
    Showing().begins("trains")
    assert "trains on 1 rank of this SLURM job's 4 tasks (srun or mpirun starts all)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variables", "together"),
    [
        ({}, True),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, True),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, False),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, False),
        (STEP, False),
        ({"PMIX_RANK": "1"}, False),
    ],
)
def test_only_ranks_that_are_all_on_one_host_stay_on_the_loopback(variables, together):
    environment = dict(variables)
    stay_on_loopback(environment)
    assert environment.get(INTERFACES) == ("lo" if together else None)
    chosen = {**variables, INTERFACES: "eth0"}
    stay_on_loopback(chosen)
    assert chosen[INTERFACES] == "eth0"
