"""Tests that start mpirun themselves: what cannot be seen from inside a job, such as how a job ends."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from patience import Limit, patient

BIN = Path(sys.executable).parent
ENVIRONMENT = {
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "NO_COLOR": "1",  # Open MPI gives ranks a terminal even where there is none
    # Open MPI, 4 and 5, refuses root and more ranks than cores unless told.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

IN_TURN = Path(__file__).parents[1] / "support" / "in_turn.py"


def pytest_configure(config):
    if "PMI_SIZE" in os.environ or "OMPI_COMM_WORLD_SIZE" in os.environ:
        raise pytest.UsageError("tests/launch starts mpirun itself and cannot run under it; run: bin/test launch")


def pytest_collection_modifyitems(items):
    """Files with long tests come first, and those with many short ones fill the end of the stage."""
    tests = Counter(item.path for item in items)
    long = {item.path for item in items if item.get_closest_marker("timeout")}  # they have limits of their own
    items.sort(key=lambda item: (item.path not in long, tests[item.path], str(item.path)))


class Outcome(subprocess.CompletedProcess):
    """How a job ended."""

    @property
    def errors(self):
        """The lines that istmpi said on stderr; launchers add words of their own."""
        return [line for line in self.stderr.splitlines() if line.startswith("istmpi: ")]


class Job:
    """A running job: `ranks` are the process numbers of its ranks, `end` waits for it."""

    def __init__(self, ranks, *command, env=None, output=subprocess.PIPE, cwd=None):
        launcher = shlex.split(os.environ.get("MPIRUN", "")) or [shutil.which("mpirun", path=ENVIRONMENT["PATH"])]
        assert all(launcher), "no mpirun: run bin/test, which sets one up"
        # By its full path: Open MPI's mpirun puts its own folder first in the ranks' PATH.
        program = shutil.which(command[0], path=ENVIRONMENT["PATH"])
        assert program, f"no program {command[0]}"
        self._command, self._ranks = " ".join(map(str, command)), ranks
        # The environment is spelt out: MPI_Init in this process would add a singleton's variables behind Python's back.
        self.process = subprocess.Popen(
            [*launcher, "-n", str(ranks), program, *map(str, command[1:])],
            env={**os.environ, **ENVIRONMENT, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )

    @property
    def ranks(self):
        """The processes below the launcher that are ranks, in the order of their numbers, as soon as all have begun."""
        limit = Limit(20)
        while len(found := self._find_ranks()) < self._ranks:
            assert self.process.poll() is None, self.end()
            assert limit.left, f"{self._ranks} ranks were started, and {len(found)} found"
            time.sleep(0.01)
        return found

    def _find_ranks(self):
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                rank = re.search(r"\0(?:PMI|OMPI_COMM_WORLD)_RANK=(\d+)\0", "\0" + (folder / "environ").read_text())
                session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
                ancestors = _ancestors(int(folder.name))
            except (OSError, ValueError):
                continue  # gone, or another user's
            if rank and (session == self.process.pid or self.process.pid in ancestors):
                found[int(rank[1])] = int(folder.name)
        return [found[rank] for rank in sorted(found)]

    def wait_until(self, condition, seconds=60):
        """Until a condition holds, while the job runs."""
        limit = Limit(seconds)
        while not condition():
            assert limit.left and self.process.poll() is None, self.end()
            time.sleep(0.01)

    def end(self, timeout=60):
        """The finished job's Outcome; one that is still there after ``timeout`` seconds fails the test."""
        limit = Limit(timeout)
        while True:
            try:
                stdout, stderr = self.process.communicate(timeout=limit.left)
                break
            except subprocess.TimeoutExpired:
                if not limit.left:
                    stdout, stderr = self.kill()
                    pytest.fail(f"{self._command} still ran after {timeout} s\n{stdout}\n{stderr}")
        return Outcome(self.process.args, self.process.returncode, stdout, stderr)

    def kill(self):
        """End it, whatever it does; returns what it had printed."""
        self.process.terminate()  # the launcher takes its ranks along
        try:
            return self.process.communicate(timeout=patient(10))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.communicate()


def _ancestors(process):
    found = []
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(process)
    return found


@pytest.fixture(scope="session")
def environment():
    """What is set where istmpi is started: this environment's programs first."""
    return ENVIRONMENT


def starting():
    """``start(ranks, *command, env={}, output=PIPE)`` is a Job: a command of this environment on so many ranks."""
    jobs = []

    def run(*arguments, **settings):
        jobs.append(Job(*arguments, **settings))
        return jobs[-1]

    yield run
    for job in jobs:
        if job.process.poll() is None:
            job.kill()


start = pytest.fixture(starting)
start_once = pytest.fixture(starting, scope="module")
"""The same for a job of all tests of a file."""


@pytest.fixture
def mpirun(start):
    """``mpirun(ranks, *command, env={}, timeout=60)`` runs a command on that many ranks to its end."""

    def run(ranks, *command, env=None, timeout=60):
        return start(ranks, *command, env=env).end(timeout)

    return run


class Said(Outcome):
    """How a command of a Series ended: ``codes`` of all ranks, and what they said, in their order."""

    def __init__(self, name, codes, stdout, stderr):
        super().__init__(name, max(codes), stdout, stderr)
        self.codes = codes

    def refusal(self, alone=False):
        """The only line that all ranks together said of bad input; ``alone``: only the first does anything."""
        assert self.codes == [2] + [0 if alone else 2] * (len(self.codes) - 1), self
        (line,) = self.stderr.splitlines()
        assert line.startswith("istmpi: "), self
        return line


class Series:
    """A job that runs several commands in turn, for most of what a job takes is its start; `end` waits for it."""

    def __init__(self, notes, ranks, folder, commands, env, under):
        self._notes, self._ranks, self._names = notes, ranks, list(commands)
        steps = [step if isinstance(step, str) else list(map(str, step)) for step in commands.values()]
        (notes / "commands").write_text(json.dumps(steps))
        self.job = Job(ranks, *under, "python", IN_TURN, notes, env=env, cwd=folder)

    def end(self, timeout=120):
        """How each command ended, by its name."""
        ended = self.job.end(timeout)
        outcomes = {name: self.outcome(name, ended) for name in self._names}
        assert ended.returncode == 0, ended
        return outcomes

    def outcome(self, name, job=None, ended=True):
        """How a command ended, or what its ranks had said when they were ended."""
        number = self._names.index(name)
        codes, *said = ([self._read(number, rank, kind) for rank in range(self._ranks)] for kind in KINDS)
        said = list(map("".join, said))
        assert all(codes) or not ended, f"{name} did not end on all ranks: {codes}\n{said}\n{job}"
        return Said(name, [int(code or -1) for code in codes], *said)

    def wait(self, name, timeout=60):
        """Until a command has ended on all ranks."""
        number = self._names.index(name)
        self.job.wait_until(lambda: all(self._read(number, rank, "code") for rank in range(self._ranks)), timeout)

    def _read(self, number, rank, kind):
        path = self._notes / f"{number}-{rank}-{kind}"
        return path.read_text() if path.exists() else ""


KINDS = ("code", "stdout", "stderr")


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory):
    """A folder of all tests of a file."""
    return tmp_path_factory.mktemp(request.path.stem)


@pytest.fixture(scope="session")
def series(tmp_path_factory):
    """``series(ranks, folder, {name: command}, env={}, under=())`` starts a Series of commands in a folder: a job. A
    command is istmpi's words, or Python code: see `in_turn`. ``under``: the command that starts each rank."""
    begun = []

    def begin(*arguments, env=None, under=()):
        begun.append(Series(tmp_path_factory.mktemp("series"), *arguments, env, under))
        return begun[-1]

    yield begin
    for each in begun:
        if each.job.process.poll() is None:
            each.job.kill()
