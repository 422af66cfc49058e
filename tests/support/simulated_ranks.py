"""The harness of the MPI tests in one process: a test's ranks take turns on a simulated MPI library, without mpirun.

    python -m pytest tests/mpi                  or, with all other tests of one process,          bin/test unit

* Each test runs at every number of ranks of `RANKS` that its mark ``ranks`` allows; its name ends with it, as in
  ``test_x[P3]``.
* The test's function is called once for each rank, with that rank's ``comm``. Fixtures that need ``comm`` are set up on
  each rank, too; all others once. ``tmp_path`` is a folder of the rank's own, ``shared_tmp`` one of all.
* The first rank that fails ends the test, and the failure says which rank it was. Ranks that would wait for each other
  for ever are found at once.
* Tests with the mark ``real`` are about an MPI library, threads, signals or output, and run under mpirun alone.
"""

from contextlib import ExitStack
from inspect import isgeneratorfunction, signature

import pytest

from istmpi.comm.simulated import simulate

RANKS = (3,)
COUNT = "simulated_ranks"
OF_A_RANK = ("comm", "tmp_path")
"""Fixtures that have another value on each rank."""


def refused(item, ranks):
    """Why a test does not run at a number of ranks, or an empty string."""
    for mark in item.iter_markers("ranks"):
        unknown = set(mark.kwargs) - {"min", "only", "also"}
        if mark.args or unknown:
            raise pytest.UsageError(f"{item.nodeid}: ranks takes min=, only= and also=, not {mark.args or unknown}")
        least, only = mark.kwargs.get("min", 1), mark.kwargs.get("only", [ranks])
        if ranks < least or ranks not in only:
            return f"ranks({f'min={least}' if ranks < least else f'only={only}'}), this run has {ranks}"
    return ""


class SimulatedRanks:
    """pytest's hooks for the tests of a folder."""

    def __init__(self, folder):
        self._folder = folder

    def pytest_generate_tests(self, metafunc):
        if self._folder in metafunc.definition.path.parents:
            metafunc.fixturenames.append(COUNT)
            metafunc.parametrize(COUNT, [count for count in RANKS if not refused(metafunc.definition, count)], ids="P{}".format)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        inside = [item for item in items if self._folder in item.path.parents]
        real = [item for item in inside if item.get_closest_marker("real")]
        if real:
            config.hook.pytest_deselected(items=real)
            items[:] = [item for item in items if item not in real]
        for item in inside:
            item.fixturenames = [name for name in item.fixturenames if name not in _needing(item, "comm")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        if self._folder not in pyfuncitem.path.parents:
            return None
        ranks = pyfuncitem.callspec.params[COUNT]

        def program(comm):
            with ExitStack() as stack:
                values = _Values(pyfuncitem, comm, stack)
                pyfuncitem.obj(**{name: values[name] for name in pyfuncitem._fixtureinfo.argnames})

        simulate(program, ranks).require()
        return True


def _needing(item, fixture):
    """The fixtures of a test that need another one, with it."""
    needing = {fixture}
    definitions = item._fixtureinfo.name2fixturedefs
    while more := {
        name for name, all in definitions.items() if name not in needing and needing & set(all[-1].argnames)
    }:
        needing |= more
    return needing


class _Values(dict):
    """The values of a test's fixtures on one rank; those that need ``comm`` are made when they are asked for."""

    def __init__(self, item, comm, stack):
        super().__init__(item.funcargs)
        self._item, self._stack = item, stack
        self["comm"] = comm
        if folder := item.funcargs.get("tmp_path"):
            self["tmp_path"] = folder / f"rank{comm.rank}"
            self["tmp_path"].mkdir()

    def __missing__(self, name):
        function = self._item._fixtureinfo.name2fixturedefs[name][-1].func
        value = function(**{argument: self[argument] for argument in signature(function).parameters})
        if isgeneratorfunction(function):
            generator, value = value, next(value)
            self._stack.callback(next, generator, None)
        self[name] = value
        return value
