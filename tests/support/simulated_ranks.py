"""The harness of the MPI tests in one process: a test's ranks take turns on a simulated MPI library, without mpirun.

    python -m pytest tests/mpi                  or, with all other tests of one process,          bin/test unit

* Each test runs at the number of ranks of `RANKS` and those of its mark ``ranks``, of which a mark of one of its
  parameters may leave some out; its name ends with the number, as in ``test_x[P3]``.
* The test's function is called once for each rank, with that rank's ``comm``. Fixtures that need ``comm`` are set up on
  each rank, too; all others once. ``tmp_path`` is a folder of the rank's own, ``shared_tmp`` one of all.
* A function that a rank's ``monkeypatch`` puts in the place of another is called on that rank alone.
* The first rank that fails ends the test, and the failure says which rank it was. Ranks that would wait for each other
  for ever are found at once.
* Tests with the mark ``real`` are about an MPI library, threads, signals or output, and run under mpirun alone.
"""

import os
from contextlib import ExitStack, contextmanager
from inspect import isgeneratorfunction, signature

import pytest

from istmpi.comm.mpi import stand_in
from istmpi.simulated import simulate

RANKS = tuple(map(int, os.environ.get("ISTMPI_SIMULATED_RANKS", "3").split(",")))
"""Uneven parts; a test for which one rank is a case of its own says ``also=1``."""
COUNT = "simulated_ranks"


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
            marks = [mark.kwargs for mark in metafunc.definition.iter_markers("ranks")]
            named = {count for mark in marks for count in (*mark.get("only", ()), mark.get("also", RANKS[0]))}
            counts = [count for count in sorted(named | {*RANKS}) if not refused(metafunc.definition, count)]
            metafunc.parametrize(COUNT, counts, ids="P{}".format)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        inside = [item for item in items if self._folder in item.path.parents]
        left = [one for one in inside if one.get_closest_marker("real") or refused(one, one.callspec.params[COUNT])]
        if left:
            config.hook.pytest_deselected(items=left)
            left = {*map(id, left)}
            items[:] = [item for item in items if id(item) not in left]
        for item in inside:
            item.fixturenames = [name for name in item.fixturenames if name not in _needing(item, "comm")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        if self._folder not in pyfuncitem.path.parents:
            return None
        ranks, patched = pyfuncitem.callspec.params[COUNT], {}

        def program(comm):
            with ExitStack() as stack:
                values = _Values(pyfuncitem, comm, stack, patched)
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


def rank_here():
    """The rank that this thread is; None where it is none."""
    library = stand_in()
    return None if library is None else library.COMM_WORLD.rank


class _Values(dict):
    """The values of a test's fixtures on one rank; those that need ``comm`` are made when they are asked for."""

    def __init__(self, item, comm, stack, patched):
        super().__init__(item.funcargs)
        self._item, self._stack = item, stack
        self["comm"] = comm
        self._folder = self.pop("tmp_path", None)
        if patch := item.funcargs.get("monkeypatch"):
            self["monkeypatch"] = _Patch(patch, comm.rank, patched)

    def __missing__(self, name):
        if name == "tmp_path":
            self[name] = self._folder / f"rank{self['comm'].rank}"
            self[name].mkdir()
            return self[name]
        function = self._item._fixtureinfo.name2fixturedefs[name][-1].func
        value = function(**{argument: self[argument] for argument in signature(function).parameters})
        if isgeneratorfunction(function):
            generator, value = value, next(value)
            self._stack.callback(next, generator, None)
        self[name] = value
        return value


class _Patch:
    """pytest's ``monkeypatch`` for one rank: what takes a function's place does so on this rank alone."""

    def __init__(self, patch, rank, patched):
        """``patched``: the functions of all ranks by the place that they take."""
        self._patch, self._rank, self._patched = patch, rank, patched
        self._places = []

    def __getattr__(self, name):
        return getattr(self._patch, name)

    def setattr(self, target, *rest, **options):
        if isinstance(target, str) or not callable(getattr(rest[1], "__func__", rest[1])) or isinstance(rest[1], type):
            self._patch.setattr(target, *rest, **options)
            return
        name, value = rest
        place = id(target), name
        if place not in self._patched:
            self._patched[place] = {}
            static = isinstance(value, staticmethod)
            function = _of_this_rank(self._patched[place], getattr(target, name))
            self._patch.setattr(target, name, staticmethod(function) if static else function)
        self._patched[place][self._rank] = getattr(value, "__func__", value)
        self._places.append(place)

    @contextmanager
    def context(self):
        """Another one, whose functions go when the block ends; ranks end it in any order."""
        inner = _Patch(self._patch, self._rank, self._patched)
        try:
            yield inner
        finally:
            for place in inner._places:
                self._patched[place].pop(self._rank, None)


def _of_this_rank(functions, original):
    """A function that calls that of this rank, or the original: where it has none, and for its own call of it."""
    calling = set()

    def call(*arguments, **options):
        rank = rank_here()
        if rank in calling or rank not in functions:
            return original(*arguments, **options)
        calling.add(rank)
        try:
            return functions[rank](*arguments, **options)
        finally:
            calling.discard(rank)

    return call
