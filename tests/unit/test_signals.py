"""Signals as wishes to stop: none is lost, at whatever moment it comes."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_that_comes_as_soon_as_it_has_a_handler_is_told(name):
    done = subprocess.run([sys.executable, "-c", EACH_MOMENT, name], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (f"{name}\n", "", 0)
