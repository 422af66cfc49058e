"""The tests of several ranks: on simulated ranks in one process, or with ``--with-mpi`` under mpirun."""

import os
from pathlib import Path

import pytest
import simulated_ranks
from pytest_mpi import MPIPlugin

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)  # pytest-mpi has registered its plugin then
def pytest_configure(config):
    if config.getoption("--with-mpi") or config.getoption("--only-mpi"):
        import mpirun_ranks  # it starts MPI

        mpirun_ranks.HERE = HERE
        config.pluginmanager.register(mpirun_ranks, "mpirun ranks")
    else:
        started = [int(os.environ.get(name, 1)) for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")]
        if max(started) > 1:
            raise pytest.UsageError("give --with-mpi: without it every process would run all tests on simulated ranks.")
        # It knows the tests by the name of this folder, and would skip them all.
        for plugin in [plugin for plugin in config.pluginmanager.get_plugins() if isinstance(plugin, MPIPlugin)]:
            config.pluginmanager.unregister(plugin)
        config.pluginmanager.register(simulated_ranks.SimulatedRanks(HERE), "simulated ranks")


@pytest.fixture
def comm():
    """istmpi's communicator over all ranks, this test's own."""
    import mpirun_ranks

    yield from mpirun_ranks.communicator()


@pytest.fixture
def shared_tmp(request, tmp_path):
    """One temporary folder of all ranks."""
    if not request.config.pluginmanager.hasplugin("mpirun ranks"):
        return tmp_path
    import mpirun_ranks

    return mpirun_ranks.from_rank_0(tmp_path)
