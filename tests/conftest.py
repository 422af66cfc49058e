"""What all tests share."""

import pytest
from hypothesis import settings
from patience import patience

# The same examples on every run, and so on every rank of an MPI test; no time limit, for the cores are shared.
settings.register_profile("istmpi", derandomize=True, deadline=None, database=None)
settings.load_profile("istmpi")


SLOWER = 5
"""A test as a whole is only ended where the limits of what it waits for did not end it."""


def pytest_collection_modifyitems(config, items):
    for item in items:
        mark = item.get_closest_marker("timeout")
        seconds = mark.args[0] if mark else float(config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(seconds * max(patience(), SLOWER)), append=False)
