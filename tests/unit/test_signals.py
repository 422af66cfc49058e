"""Signals as wishes to stop: none is lost, at whatever moment it comes."""

import subprocess
import sys

import pytest
from patience import patient

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

every_signal = pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"])


@every_signal
def test_a_signal_to_a_process_that_is_leaving_does_not_change_its_exit_code(name):
    """Python puts the default actions back before its modules go, and long before MPI is done."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_THE_HANDLERS, name], capture_output=True, text=True, timeout=patient(60)
    )
    assert (done.returncode, done.stderr) == (75, "istmpi: stopped and saved.\n")


@every_signal
def test_a_signal_that_comes_as_soon_as_it_has_a_handler_is_told(name):
    done = subprocess.run(
        [sys.executable, "-c", EACH_MOMENT, name], capture_output=True, text=True, timeout=patient(60)
    )
    assert (done.stdout, done.stderr, done.returncode) == (f"{name}\n", "", 0)
