"""A cluster in one process: P ranks take turns, on a simulated MPI library. No launcher, no MPI, no
waiting."""

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
    happened: Sequence[str]
    dead: frozenset[int]
    calls: Sequence[int]
    messages: Counter[str]
    """Counts: ``messages``, also of collective calls, and ``bytes`` of messages between two
    ranks."""
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


def simulate(
    program: Callable[[Communicator], Any], ranks: int, faults: Faults = UNDISTURBED
) -> Outcome:
    """Run a program on simulated ranks: each rank calls it once, with a communicator of all ranks.

    The outcome depends only on the program and the faults. An exception ends the job, except an
    `IstmpiError` that is marked as raised on all ranks (``everywhere``).
    """
    network = Network(ranks, faults)
    job, world = Job(network), Context(network, range(ranks))
    results, errors = [None] * ranks, [None] * ranks

    def live(task: Task) -> None:
        library = SimulatedMPI(job, world, task.rank)
        stand_in_here(library)
        try:
            results[task.rank] = program(Communicator(library.COMM_WORLD))
        except Ended:
            raise
        except BaseException as error:
            if isinstance(error, IstmpiError) and error.everywhere:
                errors[task.rank] = error
            else:
                error.simulated_rank = task.rank
                network.scheduler.end(error)

    scheduler = network.scheduler
    scheduler.run(live)
    calls = [task.calls for task in scheduler.tasks]
    end = scheduler.verdict, network.happened, frozenset(network.dead)
    return Outcome(
        results,
        errors,
        *end,
        calls,
        network.messages,
        scheduler.switches,
        scheduler.now,
        network.trace,
    )
