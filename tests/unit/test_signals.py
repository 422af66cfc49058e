"""Wishes to stop: no signal is lost, at whatever moment it comes, nor the end of a job's time."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from patience import patient

from istmpi.comm import stopping, world
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
