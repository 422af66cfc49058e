"""What stands in for mpi4py's MPI module in a simulated rank: the names that `istmpi.comm` uses, and their like."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from istmpi.comm.simulated import requests
from istmpi.comm.simulated.communicator import IN_PLACE, Job, SimulatedCommunicator
from istmpi.comm.simulated.network import Context


class SimulatedMPI:
    """One rank's MPI library."""

    ANY_SOURCE, ANY_TAG, PROC_NULL, UNDEFINED = requests.ANY_SOURCE, requests.ANY_TAG, requests.PROC_NULL, -32766
    BYTE, COMM_TYPE_SHARED, COMM_NULL, ERRORS_RETURN = "BYTE", "COMM_TYPE_SHARED", None, None
    IN_PLACE = IN_PLACE
    SUM, PROD, MAX, MIN = np.add, np.multiply, np.maximum, np.minimum
    BAND, BOR, LAND, LOR = operator.and_, operator.or_, np.logical_and, np.logical_or
    THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
    ERR_TRUNCATE, ERR_OTHER = requests.ERR_TRUNCATE, requests.ERR_OTHER
    ERR_IN_STATUS, ERR_PENDING = requests.ERR_IN_STATUS, requests.ERR_PENDING
    ERR_PROC_ABORTED, ERR_PROC_FAILED = requests.ERR_PROC_ABORTED, requests.ERR_PROC_FAILED
    ERR_PROC_FAILED_PENDING, ERR_REVOKED = requests.ERR_PROC_FAILED_PENDING, requests.ERR_REVOKED
    Request, Status, Group, Exception = requests.Request, requests.Status, requests.Group, requests.MPIError
    Comm = Intracomm = SimulatedCommunicator
    REQUEST_NULL = requests.Request()

    def __init__(self, job: Job, world: Context, rank: int):
        self._network, self._rank = job.network, rank
        self.COMM_WORLD = SimulatedCommunicator(job, world, rank)
        self.COMM_SELF = SimulatedCommunicator(job, Context(job.network, [rank]), rank)

    def Is_initialized(self) -> bool:
        return True

    def Is_finalized(self) -> bool:
        return False

    def Query_thread(self) -> int:
        """One thread a rank: which of several runs would be no draw of ours."""
        return self.THREAD_SINGLE

    def get_vendor(self) -> tuple[str, tuple[int, ...]]:
        return "simulated", ()

    def Get_library_version(self) -> str:
        return "simulated"

    def Get_version(self) -> tuple[int, int]:
        return 4, 1

    # ---- for `istmpi.comm.stand_in`

    def now(self) -> float:
        """Virtual seconds."""
        return self._network.scheduler.now

    def rest(self) -> None:
        """Nothing to do until something comes."""
        self._network.rest(self._rank)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated MPI has no {name}: see {__name__}")
