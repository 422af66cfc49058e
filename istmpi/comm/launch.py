"""From processes that a launcher started to ranks that know each other, and how they end together."""

import os
import time
from typing import Any

from istmpi.comm import mpi
from istmpi.comm.communicator import Communicator
from istmpi.errors import IstmpiError, LaunchError

LAUNCHERS = {
    "PMI": ("PMI_RANK", "PMI_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_NTASKS"),
}
"""How launchers tell a process its rank and the number of ranks."""


def world() -> Communicator:
    """All ranks of this job, on a communicator of our own.

    LaunchError when there is no MPI library, or when it does not belong to the launcher that started this process.
    """
    communicator = Communicator(mpi.start().COMM_WORLD.Dup())
    announced = launched()[1]
    if communicator.size == 1 and announced > 1:
        raise LaunchError(
            f"{announced} ranks were started but {mpi.library()} sees only one: launcher and MPI library do not belong "
            f"together. Use the mpirun (or srun --mpi=...) of that library."
        )
    return communicator


def handshake(seconds: float) -> list[tuple[int, int]]:
    """Every rank greets every other; on rank 0 the pairs (listener, speaker) that did not hear each other in time.

    Uses no collective call, which one deaf pair would hang, and so comes before `world`. Other ranks return if all is
    well; else they wait for rank 0 to end the job.
    """
    MPI = mpi.start()
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
    MPI = mpi.if_up()
    return MPI.COMM_WORLD.Get_rank() if MPI and MPI.COMM_WORLD.Get_size() > 1 else launched()[0]


def meet_with(error: IstmpiError) -> IstmpiError:
    """Bring an error of this rank to the others where they wait for it: at their first agreement, if MPI is not up yet.

    Returns what this rank shall report; ``everywhere`` is set if all ranks now know.
    """
    MPI = mpi.if_up()
    if MPI is None and launched()[1] > 1 and not _in_batch_script():
        try:
            with world().agreed():
                raise error
        except IstmpiError as agreed:
            error = agreed
            MPI = mpi.if_up()
    error.everywhere = error.everywhere or MPI is None or MPI.COMM_WORLD.Get_size() == 1
    return error


def _in_batch_script() -> bool:
    """This process runs in a SLURM job's script, beside no other rank, though the variables of ranks are set."""
    return "SLURM_JOB_ID" in os.environ and "SLURM_STEP_ID" not in os.environ and "PMI_RANK" not in os.environ


def leave_together() -> None:
    """Wait for all ranks, if MPI is up: once one leaves with an error, a launcher ends the others unheard.

    Only for an end that every rank knows of.
    """
    MPI = mpi.if_up()
    if MPI:
        MPI.COMM_WORLD.Barrier()


def abort_at_exit(code: int) -> None:
    """Let this process end through MPI_Abort, if MPI is up: its peers may be waiting for it."""
    if mpi.if_up():
        from mpi4py.run import set_abort_status

        set_abort_status(code)
