"""The communicator: MPI's calls as the engine uses them, counted and timed. The only module that imports mpi4py.

Values travel as bytes, so that every dtype arrives as it left. Each call adds to `Traffic` the bytes that this rank
hands to MPI for other ranks; what it keeps for itself does not count.
"""

import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from istmpi.errors import IstmpiError, LaunchError

T = TypeVar("T")

LAUNCHERS = {
    "PMI": ("PMI_RANK", "PMI_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_NTASKS"),
}
"""How launchers tell a process its rank and the number of ranks."""

STAGING_BYTES = 2**27
"""Most bytes that a rank packs for one Alltoallv. It bounds the memory beside the weights, and keeps counts and
displacements far below the 2**31 that MPI libraries before MPI-4 can take."""

EAGER_LOOKS = 20
"""So many times in vain before the first nap."""
LONGEST_NAP = 5e-4
"""Seconds; a line of 1 Gbit/s carries 62 kB meanwhile, which its socket buffers hold."""

Staged = tuple[np.ndarray, list[int], list[int]]
"""A byte buffer with the count and the start of each rank's message in it."""


@dataclass
class Traffic:
    """What this rank handed to MPI."""

    bytes: int = 0
    calls: int = 0

    def add(self, nbytes: int) -> None:
        self.bytes += nbytes
        self.calls += 1


class Nap:
    """Waits for the network with naps that grow while nothing happens.

    MPI libraries wait by spinning: a rank that waits would take the core from one that shares it and still computes.
    """

    def __init__(self) -> None:
        self._idle = 0

    def after(self, moved: bool) -> None:
        """After a look at the network that found something to do, or nothing."""
        self._idle = 0 if moved else self._idle + 1
        if self._idle > EAGER_LOOKS:
            doublings = min(self._idle - EAGER_LOOKS, 20)
            time.sleep(min(2**doublings * 25e-6, LONGEST_NAP))


class Communicator:
    """A group of ranks. Every method but `scratch` is collective."""

    def __init__(self, mpi_communicator: Any):
        self._mpi = mpi_communicator
        self.rank: int = mpi_communicator.Get_rank()
        self.size: int = mpi_communicator.Get_size()
        self.traffic = Traffic()
        self._scratch: dict[str, np.ndarray] = {}

    def scratch(self, name: str, nbytes: int) -> np.ndarray:
        """A reused byte buffer: fresh memory for every transfer would cost a page fault for every 4 KiB."""
        buffer = self._scratch.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            self._scratch.pop(name, None)
            buffer = self._scratch[name] = np.empty(nbytes, dtype=np.uint8)
        return buffer

    def alltoallv(self, send: Staged, receive: Staged) -> None:
        """Every rank's message to every other, as bytes."""
        from mpi4py import MPI

        self._mpi.Alltoallv([*send, MPI.BYTE], [*receive, MPI.BYTE])
        self.traffic.add(sum(send[1]) - send[1][self.rank])

    def allgather(self, mine: np.ndarray, counts: list[int]) -> np.ndarray:
        """All ranks' flat arrays one after the other: rank r's has ``counts[r]`` elements; any dtype."""
        from mpi4py import MPI

        itemsize = mine.dtype.itemsize
        result = np.empty(sum(counts), dtype=mine.dtype)
        parts = [count * itemsize for count in counts]
        starts = [sum(parts[:rank]) for rank in range(self.size)]
        self._mpi.Allgatherv(
            [np.ascontiguousarray(mine).view(np.uint8), MPI.BYTE], [result.view(np.uint8), parts, starts, MPI.BYTE]
        )
        self.traffic.add(mine.nbytes * (self.size - 1))
        return result

    def broadcast(self, values: np.ndarray, root: int) -> None:
        """Overwrite ``values`` (contiguous) by the root's, in place."""
        from mpi4py import MPI

        self._mpi.Bcast([values.reshape(-1).view(np.uint8), MPI.BYTE], root=root)
        if self.rank == root:
            self.traffic.add(values.nbytes * (self.size - 1))

    def exchange(self, peer: int, mine: np.ndarray, theirs: np.ndarray) -> None:
        """Send ``mine`` to a rank, receive as much from it; both contiguous. Each rank of a pair names the other."""
        from mpi4py import MPI

        self._mpi.Sendrecv(
            [mine.view(np.uint8), MPI.BYTE], peer, recvbuf=[theirs.view(np.uint8), MPI.BYTE], source=peer
        )
        self.traffic.add(mine.nbytes)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """The sum over ranks, added in rank order so that two runs agree bit for bit."""
        gathered = self.allgather(values.ravel(), [values.size] * self.size)
        return gathered.reshape(self.size, *values.shape).sum(axis=0)

    def maximum(self, value: int) -> int:
        return max(self.gather(value))

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank: for small Python objects."""
        return self._mpi.allgather(value)

    def from_first(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        return self._mpi.bcast(value, root=0)

    def barrier(self) -> None:
        self._mpi.Barrier()

    def meet(self) -> None:
        """A barrier for ranks that may come long after each other."""
        everybody, nap = self._mpi.Ibarrier(), Nap()
        while not everybody.Test():
            nap.after(False)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Local work that every rank must get through: if one fails, all raise the lowest failing rank's error.

        The message names that rank if other ranks got through. Only errors meant for the user are agreed on; any other
        ends the job at once.
        """
        error: IstmpiError | None = None
        try:
            yield
        except IstmpiError as raised:
            error = raised
        by_rank = self.gather(error)
        failed = [rank for rank, error in enumerate(by_rank) if error is not None]
        if failed:
            first = by_rank[failed[0]]
            if len(failed) < self.size:
                first.args = (f"rank {failed[0]}: {first}",)
            first.everywhere = True
            raise first

    @property
    def mpi(self) -> Any:
        """The mpi4py communicator, for a library that takes one."""
        return self._mpi

    def duplicate(self) -> "Communicator":
        """The same ranks on a communicator of their own: what goes on there mixes with nothing here."""
        return Communicator(self._mpi.Dup())

    @contextmanager
    def among(self, ranks: Sequence[int]) -> Iterator["Communicator | None"]:
        """A communicator of these ranks alone, in this order, None on the others; its traffic counts here, too."""
        if self.rank not in ranks:
            yield None
            return
        group = self._mpi.Get_group().Incl(ranks)
        some = Communicator(self._mpi.Create_group(group))
        yield some
        self.traffic.bytes += some.traffic.bytes
        self.traffic.calls += some.traffic.calls
        some.mpi.Free()
        group.Free()

    def start_maximum(self, value: int) -> Callable[[], int]:
        """Begin to agree on the largest of all ranks' values; what it returns waits for it and tells."""
        from mpi4py import MPI

        result = np.array([value], dtype=np.int64)
        request = self._mpi.Iallreduce(MPI.IN_PLACE, result, op=MPI.MAX)

        def largest() -> int:
            request.Wait()
            return int(result[0])

        return largest

    def start_send(self, values: np.ndarray, peer: int, tag: int) -> Any:
        """Begin to send bytes, not to be touched until the request is `over`; not counted."""
        from mpi4py import MPI

        return self._mpi.Isend([values, MPI.BYTE], peer, tag)

    def start_receive(self, values: np.ndarray, peer: int, tag: int) -> Any:
        """Begin to receive bytes, which have arrived once the request is `over`."""
        from mpi4py import MPI

        return self._mpi.Irecv([values, MPI.BYTE], peer, tag)

    @staticmethod
    def over(requests: Sequence[Any]) -> list[bool]:
        """Which requests, sent or received, are over by now: a single look at the network for all of them."""
        from mpi4py import MPI

        MPI.Request.Testsome(requests)
        return [request == MPI.REQUEST_NULL for request in requests]

    def on_this_host(self) -> "Communicator":
        """The ranks on this host."""
        from mpi4py import MPI

        return Communicator(self._mpi.Split_type(MPI.COMM_TYPE_SHARED))

    def hosts(self) -> list[str]:
        """Every rank's host name."""
        return self.gather(socket.gethostname())


class Rumour:
    """A word that any rank may spread at any time, and that every rank hears sooner or later without waiting for it.

    Who hears it first passes it on to the ranks 1, 2, 4, ... further on. `Rumour` is collective, `settle` too.
    """

    def __init__(self, communicator: Communicator):
        self._mpi = communicator.mpi.Dup()
        self._rank, self._size = communicator.rank, communicator.size
        self._steps = [2**power for power in range((self._size - 1).bit_length())]
        self._sent: list[Any] = []
        self._heard_from: set[int] = set()

    def spread(self, word: str) -> None:
        """Say it, once."""
        self._sent = [self._mpi.isend(word, (self._rank + step) % self._size) for step in self._steps]

    def heard(self) -> str:
        """The word that has arrived by now, or nothing."""
        from mpi4py import MPI

        status = MPI.Status()
        if not self._steps or not self._mpi.iprobe(status=status):
            return ""
        self._heard_from.add(status.source)
        return self._mpi.recv(source=status.source)

    def settle(self) -> None:
        """Receive what is still under way."""
        said = self._mpi.allgather(bool(self._sent))
        for step in self._steps:
            source = (self._rank - step) % self._size
            if said[source] and source not in self._heard_from:
                self._mpi.recv(source=source)
        for request in self._sent:
            request.wait()
        self._sent, self._heard_from = [], set()


def start() -> Any:
    """mpi4py's MPI module, the library started; LaunchError when there is none."""
    try:
        with warnings.catch_warnings():
            # mpi4py warns of a foreign launcher in three lines; we refuse it in one.
            warnings.simplefilter("ignore", RuntimeWarning)
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"no MPI library can be loaded ({error}). Install one (pip install 'istmpi[mpich]') or load its module."
        ) from None
    return MPI


def world() -> Communicator:
    """All ranks of this job, on a communicator of our own.

    LaunchError when there is no MPI library, or when it does not belong to the launcher that started this process.
    """
    communicator = Communicator(start().COMM_WORLD.Dup())
    announced = launched()[1]
    if communicator.size == 1 and announced > 1:
        raise LaunchError(
            f"{announced} ranks were started but {library()} sees only one: launcher and MPI library do not belong "
            f"together. Use the mpirun (or srun --mpi=...) of that library."
        )
    return communicator


def library_before_start() -> str:
    """The MPI library's own words about itself, MPI not started; for a process that does nothing else."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    return MPI.Get_library_version()


def library() -> str:
    """The MPI library's name and version, in a few words."""
    from mpi4py import MPI

    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"


THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
"""What an MPI library lets a process's threads do, from nothing to everything."""


def thread_level() -> str:
    """Which of `THREAD_LEVELS` the library grants."""
    from mpi4py import MPI

    levels = (MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE)
    return THREAD_LEVELS[levels.index(MPI.Query_thread())]


def threads_may_call() -> bool:
    """Several threads of a process may call the MPI library at the same time."""
    return thread_level() == THREAD_LEVELS[-1]


def send_to_self(sent: Any, received: Any) -> None:
    """Through MPI from one buffer to another of this process; they may lie in device memory if the library takes it."""
    from mpi4py import MPI

    MPI.COMM_SELF.Sendrecv(sent, 0, 0, received, 0, 0)


def handshake(seconds: float) -> list[tuple[int, int]]:
    """Every rank greets every other; on rank 0 the pairs (listener, speaker) that did not hear each other in time.

    Uses no collective call, which one deaf pair would hang, and so comes before `world`. Other ranks return if all is
    well; else they wait for rank 0 to end the job.
    """
    MPI = start()
    everyone = MPI.COMM_WORLD
    rank, peers = everyone.Get_rank(), [rank for rank in range(everyone.Get_size()) if rank != everyone.Get_rank()]
    greeting, report, verdict = range(3)
    kept = [everyone.isend(None, peer, greeting) for peer in peers]
    silent = [(rank, peer) for peer in _unheard(everyone, peers, greeting, seconds)[1]]
    if rank == 0:
        reports, missing = _unheard(everyone, peers, report, seconds)
        silent += [pair for pairs in reports.values() for pair in pairs]
        silent += [(0, peer) for peer in missing if (0, peer) not in silent]
        kept += [everyone.isend(bool(silent), peer, verdict) for peer in peers]
    else:
        kept.append(everyone.isend(silent, 0, report))
        answer, _ = _unheard(everyone, [0], verdict, 3 * seconds)
        if answer.get(0, True):
            time.sleep(seconds)
            everyone.Abort(1)
    if not silent:
        MPI.Request.waitall(kept)
    return sorted(silent)


def _unheard(everyone: Any, peers: list[int], tag: int, seconds: float) -> tuple[dict[int, Any], list[int]]:
    """What the peers sent, and the peers from whom nothing came in time."""
    waiting = {peer: everyone.irecv(source=peer, tag=tag) for peer in peers}
    heard = {}
    deadline = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline:
        for peer, request in list(waiting.items()):
            done, value = request.test()
            if done:
                heard[peer] = value
                del waiting[peer]
        time.sleep(0.001)  # leave the core to ranks that share it
    return heard, list(waiting)


def launched() -> tuple[int, int]:
    """This process's rank and the number of ranks as its launcher told it, before MPI is up; (0, 1) without one."""
    for rank, size in LAUNCHERS.values():
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def current_rank() -> int:
    """This process's rank: as MPI tells it, or as the launcher did while MPI is not up."""
    mpi = _mpi_if_up()
    return mpi.COMM_WORLD.Get_rank() if mpi and mpi.COMM_WORLD.Get_size() > 1 else launched()[0]


def meet_with(error: IstmpiError) -> IstmpiError:
    """Bring an error of this rank to the others where they wait for it: at their first agreement, if MPI is not up yet.

    Returns what this rank shall report; ``everywhere`` is set if all ranks now know.
    """
    mpi = _mpi_if_up()
    if mpi is None and launched()[1] > 1 and not _in_batch_script():
        try:
            with world().agreed():
                raise error
        except IstmpiError as agreed:
            error = agreed
            mpi = _mpi_if_up()
    error.everywhere = error.everywhere or mpi is None or mpi.COMM_WORLD.Get_size() == 1
    return error


def _in_batch_script() -> bool:
    """This process runs in a SLURM job's script, beside no other rank, though the variables of ranks are set."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_STEP_ID" not in os.environ and "PMI_RANK" not in os.environ


def leave_together() -> None:
    """Wait for all ranks, if MPI is up: once one leaves with an error, a launcher ends the others unheard.

    Only for an end that every rank knows of.
    """
    mpi = _mpi_if_up()
    if mpi:
        mpi.COMM_WORLD.Barrier()


def abort_at_exit(code: int) -> None:
    """Let this process end through MPI_Abort, if MPI is up: its peers may be waiting for it."""
    if _mpi_if_up():
        from mpi4py.run import set_abort_status

        set_abort_status(code)


def _mpi_if_up() -> Any:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() else None
