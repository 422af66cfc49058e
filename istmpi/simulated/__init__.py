"""A cluster in one process: P ranks take turns, on a simulated MPI library.

It needs no launcher and no MPI, and waits for nothing.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from istmpi.comm.communicator import Communicator
from istmpi.comm.mpi import stand_in_here
from istmpi.errors import IstmpiError
from istmpi.simulated.communicator import Job, SimulatedMPI
from istmpi.simulated.faults import DELAYS, KILLS, KINDS, SLOW, STOPS, Faults, Kill, Stop
from istmpi.simulated.network import KILLED, Context, Network
from istmpi.simulated.scheduler import Ended, Task


@dataclass(frozen=True)
class Outcome:
    results: Sequence[Any]
    """The program's result on each rank; None if the program did not return."""
    errors: Sequence[IstmpiError | None]
    ended: BaseException | None
    """The exception that ended the job: of a rank, or the error on which all ranks agreed."""
    ended_by: int | None
    """The rank whose exception ended the job; None if no rank's program raised it, or all did."""
    happened: Sequence[str]
    dead: frozenset[int]
    calls: Sequence[int]
    messages: Counter[str]
    """Counts: ``messages``, also of collective calls, and ``bytes`` of messages between ranks."""
    switches: int
    seconds: float
    trace: int
    """A checksum of all calls and their times. Equal checksums mean the same schedule."""

    def require(self) -> Sequence[Any]:
        for error in (self.ended, *self.errors):
            if error is not None:
                raise error
        return self.results


UNDISTURBED = Faults()


class _Programs:
    """The program on each rank, and the results and errors that it left."""

    def __init__(self, program: Callable[[Communicator], Any], network: Network):
        self._program = program
        self._network = network
        self._job = Job(network)
        ranks = len(network.scheduler.tasks)
        self._world = Context(network, range(ranks))
        self.results: list[Any] = [None] * ranks
        self.errors: list[IstmpiError | None] = [None] * ranks

    def run(self, task: Task) -> None:
        """Run the program on a task's rank, in the task's thread."""
        library = SimulatedMPI(self._job, self._world, task.rank)
        stand_in_here(library)
        try:
            self.results[task.rank] = self._program(Communicator(library.COMM_WORLD))
        except Ended:
            raise
        except BaseException as error:  # any other exception is a result of the job
            if isinstance(error, IstmpiError) and error.everywhere:
                self.errors[task.rank] = error
            else:
                self._network.scheduler.end(error, task.rank)


def simulate(
    program: Callable[[Communicator], Any], ranks: int, faults: Faults = UNDISTURBED
) -> Outcome:
    """Run a program on simulated ranks: each rank calls it once, with a communicator of all ranks.

    The outcome depends only on the program and the faults. An exception ends the job, except an
    `IstmpiError` that is marked as raised on all ranks (``everywhere``).
    """
    network = Network(ranks, faults)
    programs = _Programs(program, network)
    scheduler = network.scheduler
    scheduler.run(programs.run)
    agreed = next(filter(None, programs.errors), None)
    return Outcome(
        results=programs.results,
        errors=programs.errors,
        ended=scheduler.verdict or agreed,
        ended_by=scheduler.ended_by,
        happened=network.happened,
        dead=frozenset(network.dead),
        calls=[task.calls for task in scheduler.tasks],
        messages=network.messages,
        switches=scheduler.switches,
        seconds=scheduler.now,
        trace=network.trace,
    )
