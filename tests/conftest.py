"""What all tests share."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from functools import cache

import pytest
from hypothesis import settings
from patience import patience

# What is proved of networks is remembered for this process, and those that it starts, alone. Matplotlib keeps its own
# folder, which takes seconds to make.
# Processes that share the tests make their folders within that of the one that started them, which removes it.
_STARTED = "PYTEST_XDIST_WORKER" in os.environ
_CACHE = tempfile.mkdtemp(prefix="istmpi-tests-", dir=os.environ["XDG_CACHE_HOME"] if _STARTED else None)
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
_HOME = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
os.environ.setdefault("MPLCONFIGDIR", os.path.join(_HOME, "matplotlib"))
if not _STARTED:
    os.environ["XDG_CACHE_HOME"] = _CACHE

# Programs that tests start find istmpi where its environment is not active, too.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])

# Each process has its own root for `tmp_path`: pytest removes old folders of a shared root, and two ranks that remove
# the same one both fail.
os.environ["PYTEST_DEBUG_TEMPROOT"] = _CACHE

# The same examples on every run, and so on every rank of an MPI test; no time limit, for the cores are shared.
settings.register_profile("istmpi", max_examples=40, derandomize=True, deadline=None, database=None)
settings.load_profile("istmpi")


_begun = {}
SLOWER = 5
"""A test as a whole is only ended where the limits of what it waits for did not end it."""


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout reads the marker
def pytest_runtest_protocol(item, nextitem):
    """A test's time limit is for the machine as it is when the test begins."""
    mark = item.get_closest_marker("timeout")
    if item.path != _begun.get("file"):
        # What is there before a file's tests stays. Without this, half of the time of small runs is Python's search for
        # garbage among PyTorch's objects.
        _begun["file"] = item.path
        gc.collect()
        gc.freeze()
    exporter = sys.modules.get("torch.onnx._internal.exporter._registration")
    if exporter and hasattr(exporter.ONNXRegistry.from_torchlib, "__func__"):
        # PyTorch's own method makes a table of all operators anew for each export, which only reads it.
        exporter.ONNXRegistry.from_torchlib = staticmethod(cache(exporter.ONNXRegistry.from_torchlib))
    seconds = mark.args[0] if mark else float(item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(seconds * max(patience(), SLOWER)), append=False)
    result = yield
    if library := sys.modules.get("mpi4py.MPI"):
        library._set_abort_status(0)  # a command that failed in this process, as a test wanted, does not end the tests
    return result
