"""What all tests share."""

from hypothesis import settings

# The same examples on every run, and so on every rank of an MPI test; no time limit, for the cores are shared.
settings.register_profile("istmpi", derandomize=True, deadline=None, database=None)
settings.load_profile("istmpi")
