"""The start of a job: launched processes meet through MPI, and check that their commands agree."""

import hashlib
import shlex
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from istmpi import __version__
from istmpi.comm import mpi
from istmpi.comm.arrival import expect_ranks, watch_launcher
from istmpi.comm.backoff import Backoff
from istmpi.comm.communicator import Communicator
from istmpi.comm.launcher import read_launcher
from istmpi.comm.leaving import end_with_this_script
from istmpi.errors import IstmpiError, LaunchError

_command: list[str] | None = None
"""The arguments of the console script; None in a user's own program."""
_agreed = False
_SHOWN = 4
"""Values, and ranks of each value, that an error names."""


def announce(words: Sequence[str]) -> None:
    """Note the console script's arguments, and watch this rank's launcher.

    `world` compares the arguments of all ranks.
    """
    global _command
    _command = list(words)
    watch_launcher()


def world() -> Communicator:
    """Return a new communicator of all ranks of this job. Collective.

    Raises LaunchError if the ranks do not form one job, or run different commands or versions. If
    ranks do not come, the process ends with exit code 2. In a user's own program, a failure on one
    rank ends all ranks from now on.
    """
    global _agreed
    with expect_ranks():
        everyone = mpi.start().COMM_WORLD
        announced = read_launcher()[1]
        # A library of another kind than the launcher makes each process a job of its own.
        if everyone.Get_size() == 1 and announced > 1:
            raise LaunchError(
                f"{announced} ranks were started, but {mpi.library()} sees only one: "
                f"{mpi.NOT_TOGETHER}"
            )
        # Other libraries of a program may use COMM_WORLD, too.
        handle, creation = everyone.Idup()
        if not _agreed:
            # On its way the digest meets the messages that create the communicator.
            _agree(everyone)
            _agreed = True
        _wait_for(creation)
    communicator = Communicator(handle)
    if _command is None:
        end_with_this_script(communicator)
    return communicator


def _wait_for(request: Any) -> None:
    backoff = Backoff()
    # A rank that does something else never comes: `expect_ranks` must be able to report it.
    while not request.Test():
        backoff.wait_unless(False)


def _agree(everyone: Any) -> None:
    """Raise LaunchError on all ranks if their versions or commands differ. Collective."""
    started_as = __version__, _command
    # A digest has the same length everywhere, so that one message of a fixed size is enough.
    digest = np.frombuffer(hashlib.sha256(repr(started_as).encode()).digest(), dtype=np.uint8)
    digests = np.empty((everyone.Get_size(), digest.size), dtype=np.uint8)
    request = everyone.Iallgather(digest, digests)
    _wait_for(request)
    if (digests == digests[0]).all():
        return
    versions, commands = zip(*everyone.allgather(started_as))
    if len(set(versions)) > 1:
        error = LaunchError(
            f"the ranks have different versions of istmpi: {_list_by_rank(versions)}. Install the "
            "same version on all hosts."
        )
    else:
        lines = _list_by_rank(map(_command_line, commands))
        error = LaunchError(
            f"the ranks were started with different commands: {lines}. Start the same command on "
            "all ranks."
        )
    error.everywhere = True
    raise error


def _command_line(words: Sequence[str] | None) -> str:
    if words is None:
        return "a program"
    return shlex.join(["istmpi", *words])


def _list_by_rank(values: Iterable[str]) -> str:
    """Return ``A on ranks 0, 2, 3; B on rank 1``.

    There are at most four values, each with up to four ranks.
    """
    by_value: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        by_value.setdefault(value, []).append(rank)
    shown = []
    for value, ranks in by_value.items():
        noun = "rank" if len(ranks) == 1 else "ranks"
        shown.append(f"{value} on {noun} {_join_first(map(str, ranks), ', ')}")
    return _join_first(shown, "; ")


def _join_first(texts: Iterable[str], separator: str) -> str:
    """Join up to `_SHOWN` texts, and dots for all others."""
    shown = list(texts)
    if len(shown) > _SHOWN:
        shown[_SHOWN:] = ["..."]
    return separator.join(shown)


def handshake(seconds: float) -> list[tuple[int, int]]:
    """Let every rank greet every other.

    Rank 0 gets the pairs (listener, speaker) whose greeting did not come in time. A handshake makes
    no collective calls, which one such pair would hang. With such a pair, the other ranks do not
    return: they abort the job unless rank 0 ends it first.
    """
    MPI = mpi.start()
    everyone = MPI.COMM_WORLD
    rank = everyone.Get_rank()
    peers = [peer for peer in range(everyone.Get_size()) if peer != rank]
    greeting, report, verdict = range(3)
    sent = [everyone.isend(None, peer, greeting) for peer in peers]
    _, missing = _receive(everyone, peers, greeting, seconds)
    silent = [(rank, peer) for peer in missing]
    if rank == 0:
        reports, missing = _receive(everyone, peers, report, seconds)
        silent += [pair for pairs in reports.values() for pair in pairs]
        silent += [(0, peer) for peer in missing if (0, peer) not in silent]
        sent += [everyone.isend(bool(silent), peer, verdict) for peer in peers]
    else:
        sent.append(everyone.isend(silent, 0, report))
        answer, _ = _receive(everyone, [0], verdict, 3 * seconds)
        if answer.get(0, True):
            # Rank 0 needs this time to print its report and end the job.
            time.sleep(seconds)
            everyone.Abort(1)
    if not silent:
        MPI.Request.waitall(sent)
    return sorted(silent)


def _receive(
    everyone: Any, peers: list[int], tag: int, seconds: float
) -> tuple[dict[int, Any], list[int]]:
    """Return the values that came in time, by peer, and the peers of which none came."""
    waiting = {peer: everyone.irecv(source=peer, tag=tag) for peer in peers}
    values = {}
    deadline = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline:
        for peer, request in list(waiting.items()):
            done, value = request.test()
            if done:
                values[peer] = value
                del waiting[peer]
        time.sleep(0.001)  # leave the core to ranks that share it
    return values, list(waiting)


def find_rank() -> int:
    """Return this process's rank.

    It is MPI's, or the launcher's if MPI sees a single rank or is not up.
    """
    MPI = mpi.if_up()
    if MPI and MPI.COMM_WORLD.Get_size() > 1:
        return MPI.COMM_WORLD.Get_rank()
    rank, _ = read_launcher()
    return rank


def agree_on_error(error: IstmpiError) -> IstmpiError:
    """Return the error to report.

    It is ``error`` or, if MPI was not up, the lowest failing rank's error (then collective).
    ``everywhere`` is True in the result if all ranks have the error.
    """
    MPI = mpi.if_up()
    if MPI is None and read_launcher()[1] > 1:
        try:
            with world().agreed():
                raise error
        except IstmpiError as agreed:
            error = agreed
            MPI = mpi.if_up()
    error.everywhere = error.everywhere or MPI is None or MPI.COMM_WORLD.Get_size() == 1
    return error
