"""Wishes to stop, of which none is lost; the end of a job's time, and the rank, from the environment."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from patience import patient

from istmpi.cli.run_options import Showing
from istmpi.comm import launcher, stopping, world
from istmpi.comm.loopback import INTERFACES, stay_on_loopback
from istmpi.comm.stopping import StopSign, end_of_job
from istmpi.errors import ConfigError

EACH_MOMENT = """
import os, signal, sys
from istmpi.signals import SIGNALS, Receiver

sent = getattr(signal, sys.argv[1])
set_handler = signal.signal

def set_and_send(number, handler):
    set_handler(number, handler)
    if number == sent:
        os.kill(os.getpid(), number)

signal.signal = set_and_send
received = Receiver()
told, telling = os.pipe()
received.listen(lambda name: os.write(telling, name.encode()))
print(os.read(told, 100).decode())
"""


AFTER_THE_HANDLERS = """
import os, signal, sys
from istmpi.cli.main import main
from istmpi.errors import StoppedError

class Leaving:
    def __del__(self, kill=os.kill, process=os.getpid(), number=getattr(signal, sys.argv[1])):
        kill(process, number)

def program():
    raise StoppedError("stopped and saved.")

leaving = Leaving()
main(program)
"""


def outcome(program, name):
    """What a process of its own ends with that runs this program for a signal: exit code, output and errors."""
    done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, text=True, timeout=patient(60))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_to_a_process_that_is_leaving_does_not_change_its_exit_code(name):
    """Python puts the default actions back before its modules go, and long before MPI is done."""
    assert outcome(AFTER_THE_HANDLERS, name) == (75, "", "istmpi: stopped and saved.\n")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_that_comes_as_soon_as_it_has_a_handler_is_told(name):
    assert outcome(EACH_MOMENT, name) == (0, f"{name}\n", "")


# ---- when a job's time is up, as the scheduler's environment says


def test_the_end_of_a_jobs_time_is_the_environments_and_is_refused_if_it_is_no_time(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1700000000")
    assert end_of_job() == 1.7e9
    for end in ("soon", "inf", ""):
        monkeypatch.setenv("SLURM_JOB_END_TIME", end)
        with pytest.raises(ConfigError, match=f"SLURM_JOB_END_TIME = '{end}' must be the Unix time"):
            end_of_job()


@pytest.mark.parametrize("step", [-7200.0, 7200.0])
def test_a_wish_to_stop_is_seen_when_it_comes_although_the_clock_was_set(monkeypatch, tmp_path, step):
    clock = SimpleNamespace(time=lambda: 1.7e9, monotonic=lambda: 50.0)
    monkeypatch.setattr(stopping, "time", clock)
    by_file, by_deadline = StopSign(world(), tmp_path / "STOP"), StopSign(world(), deadline=1.7e9 + 60)
    assert not by_file.asked() and not by_deadline.asked()
    clock.time, clock.monotonic = (lambda: 1.7e9 + step), (lambda: 60.0)
    (tmp_path / "STOP").touch()
    assert by_file.asked() and not by_deadline.asked()
    clock.monotonic = lambda: 115.0
    assert by_deadline.asked()


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
    assert "trains on 1 process of this SLURM job's 4 tasks (srun or mpirun starts all)" in capsys.readouterr().out


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
