"""The harness of the MPI tests under mpirun: every rank runs every test, all agree on how it went, rank 0 tells.

    mpirun -n 3 python -m pytest --with-mpi tests/mpi          or          bin/test mpi 3

* All of them carry pytest-mpi's marker ``mpi``, so that its ``--with-mpi`` and ``--only-mpi`` choose them. It starts no
  ranks and lets each tell its own verdict; the rest is done here.
* The ranks exchange their verdicts after each phase of each test. A failure on any rank fails the test on all,
  and rank 0 shows the failing rank's number, traceback and output.
* A rank that failed while others still wait for it (in a collective, most likely) ends the job after a grace period;
  ranks that wait for each other for ever end it when the test's time limit is up. Both name the test.
* mpirun of one MPI with the library of another gives N worlds of one rank, where most tests would pass: refused.
* A test runs at every rank count, or says ``@pytest.mark.ranks(min=2)`` or ``ranks(only=[2, 4])``.
  ``ranks(also=5)`` adds a count that bin/test does not run otherwise.
"""

import os
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
from mpi4py import MPI
from simulated_ranks import refused

from istmpi.comm import Communicator

HERE = Path()  # the folder of the tests, set by its conftest
WORLD = MPI.COMM_WORLD
HARNESS = WORLD.Dup()  # verdicts cannot be mistaken for a test's messages
GRACE = float(os.environ.get("ISTMPI_TEST_GRACE", 10))  # seconds that a failed rank waits for the others

_stderr = 2  # for the last words of a rank whose output is being captured
_timer = pytest.StashKey[threading.Timer]()
_collection_errors: list[str] = []


# ---- what a test gets


def communicator():
    """A generator of istmpi's communicator over all ranks, one test's own."""
    duplicate = WORLD.Dup()
    yield Communicator(duplicate)
    duplicate.Free()


def from_rank_0(value):
    """Rank 0's value. Collective."""
    return HARNESS.bcast(value)


# ---- the start: the rank count, who prints, which tests run


@pytest.hookimpl(trylast=True)  # after the terminal reporter is there
def pytest_configure(config):
    for name in "ISTMPI_TEST_RANKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE":
        if int(os.environ.get(name, WORLD.size)) != WORLD.size:
            library = MPI.Get_library_version().split(",")[0].split("\n")[0]
            raise pytest.UsageError(
                f"{name} is {os.environ[name]} but MPI_COMM_WORLD has {WORLD.size} rank(s); they must agree. "
                f"Start with -n {os.environ[name]} of the mpirun that belongs to mpi4py's library, {library}."
            )
    if WORLD.rank > 0:
        config.pluginmanager.unregister(name="terminalreporter")
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        global _stderr
        _stderr = os.dup(2)


@pytest.hookimpl(tryfirst=True)  # before pytest-mpi looks for its marker
def pytest_collection_modifyitems(config, items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.mpi)
    drop = [item for item in items if HERE in item.path.parents and refused(item, WORLD.size)]
    if drop:
        config.hook.pytest_deselected(items=drop)
        items[:] = [item for item in items if item not in drop]


def pytest_collectreport(report):
    if report.failed:
        _collection_errors.append(f"{report.nodeid}\n{report.longreprtext}")


def pytest_collection_finish(session):
    """Ranks with different tests would wait for each other for ever: refuse."""
    names = [item.nodeid for item in session.items]
    by_rank = _gather((names, "\n".join(_collection_errors)))
    for rank, (its_names, its_errors) in enumerate(by_rank):
        if (its_names, bool(its_errors)) != (by_rank[0][0], bool(by_rank[0][1])):
            odd = its_errors or by_rank[0][1] or sorted(set(its_names) ^ set(by_rank[0][0])) or "another order"
            message = f"rank {rank} and rank 0 collected different tests: {odd}"
            raise pytest.UsageError(*[message] * (WORLD.rank == 0))


# ---- each test: one verdict


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: after xfail and skip had their say
def pytest_runtest_makereport(item, call):
    report = yield
    text = ""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message.split("\n")[0] if crash else "failed"
        text = "\n".join([reason, report.longreprtext, *(f"-- {name}\n{out}" for name, out in report.sections)])
    place = f"{item.nodeid} ({report.when})"
    failure = f"failed in {place}:\n{text}\nThe other ranks did not come to the end of the test within {GRACE:g} s"
    by_rank = _gather((place, report.outcome, text), failure if report.failed else "")

    places, outcomes, texts = zip(*by_rank, strict=True)
    if len(set(places)) > 1:
        _end_job(f"the ranks run different tests: {places}")
    if "failed" in outcomes or len(set(outcomes)) > 1:
        report.outcome = "failed"
        failed = [
            f"[rank {rank} of {WORLD.size}] {text}" for rank, text in enumerate(texts) if outcomes[rank] == "failed"
        ]
        report.longrepr = "\n".join(failed) or f"the ranks disagree: {outcomes}"
        report.sections = []  # they are in the text, each with its rank
        report.__dict__.pop("wasxfail", None)
    return report


def _gather(value, failure=""):
    """Every rank's value. With a failure to tell, do not wait for ever for ranks that may be waiting for this one."""
    all_here = HARNESS.Ibarrier()
    deadline = time.monotonic() + GRACE
    while not all_here.Test():
        if failure and time.monotonic() > deadline:
            _end_job(failure)
        time.sleep(0.001)  # leave the core to the ranks that still work
    return HARNESS.allgather(value)


# ---- the end of a test that hangs


def pytest_timeout_set_timer(item, settings):
    """Instead of pytest-timeout's own timers: a signal cannot interrupt MPI, and its thread does not name the test."""
    if HERE not in item.path.parents:
        return None
    timer = threading.Timer(settings.timeout, _out_of_time, [item.nodeid, settings.timeout])
    timer.daemon = True
    timer.start()
    item.stash[_timer] = timer
    return True


def pytest_timeout_cancel_timer(item):
    """Not at the first failure, where pytest-timeout cancels: other ranks may still hang in the teardown."""
    return True if HERE in item.path.parents else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    result = yield
    if _timer in item.stash:
        item.stash[_timer].cancel()
    return result


def _out_of_time(name, seconds):
    frames = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
    test = [frame for frame in frames if not {"_pytest", "pluggy"} & set(Path(frame.filename).parts)]
    _end_job(f"{name} still runs after {seconds:g} s, at\n{''.join(traceback.format_list(test))}")


def _end_job(why):
    os.write(_stderr, f"\n==== rank {WORLD.rank} ends the job: {why}\n".encode())
    time.sleep(1)  # the launcher forwards that, and other ranks that hang say where
    threading.Timer(5, os._exit, [1]).start()  # where Abort itself does not come back
    WORLD.Abort(1)
