"""The stand-in for mpi4py's MPI module in a simulated rank: the names that `istmpi.comm` uses."""

from __future__ import annotations

from typing import Any

import numpy as np

from istmpi.simulated.communicator import IN_PLACE, Job, SimulatedCommunicator
from istmpi.simulated.network import Context
from istmpi.simulated.requests import Request, Status


class SimulatedMPI:
    """The MPI library of one rank."""

    BYTE, COMM_TYPE_SHARED = "BYTE", "COMM_TYPE_SHARED"
    IN_PLACE, MAX = IN_PLACE, np.maximum
    THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
    Request, Status = Request, Status
    REQUEST_NULL = Request()
    Exception = ()
    """Empty: a simulated call raises none of MPI's errors."""

    def __init__(self, job: Job, world: Context, rank: int):
        self._network, self._rank = job.network, rank
        self.COMM_WORLD = SimulatedCommunicator(job, world, rank)

    def Query_thread(self) -> int:
        return self.THREAD_SINGLE  # which of several threads runs would be no draw of ours

    def get_vendor(self) -> tuple[str, tuple[int, ...]]:
        return "simulated", ()

    def Get_library_version(self) -> str:
        return "simulated"

    # ---- for `istmpi.comm.mpi.stand_in`

    def now(self) -> float:
        """Virtual seconds."""
        return self._network.scheduler.now

    def rest(self) -> None:
        """Pause until something comes."""
        self._network.rest(self._rank)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated MPI has no {name}: see {__name__}")
