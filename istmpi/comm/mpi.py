"""Access to the MPI library.

In a thread that is a simulated rank, it is access to the library's stand-in (`stand_in`).
"""

import ctypes
import os
import sys
import threading
import warnings
from typing import Any

from istmpi.comm.loopback import stay_on_loopback
from istmpi.errors import LaunchError

NOT_TOGETHER = (
    "launcher and MPI library do not match. Use the mpirun (or srun --mpi=...) of that library."
)

_this_thread = threading.local()


def stand_in() -> Any:
    """Return the simulated MPI library of this thread; None if MPI is real."""
    return getattr(_this_thread, "library", None)


def stand_in_here(library: Any) -> None:
    _this_thread.library = library


def start() -> Any:
    """Start the MPI library if it is not up, and return mpi4py's MPI module.

    Raises LaunchError if that fails.
    """
    try:
        with warnings.catch_warnings():
            # mpi4py warns of a foreign launcher in three lines; we refuse it in one.
            warnings.simplefilter("ignore", RuntimeWarning)
            import mpi4py

            mpi4py.rc.initialize = False  # `_initialise` does it
            mpi4py.rc.finalize = True
            from mpi4py import MPI
        if not MPI.Is_initialized():
            _refuse_foreign_launcher(MPI)
            stay_on_loopback()
            _initialise(MPI)
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"no MPI library can be loaded ({error}). Install one (pip install 'istmpi[mpich]') or "
            "load its module."
        ) from None
    return MPI


def _refuse_foreign_launcher(MPI: Any) -> None:
    """Raise LaunchError if Open MPI's launcher started a rank of MPICH.

    `world` detects other mismatches.
    """
    ranks = os.environ.get("OMPI_COMM_WORLD_SIZE")
    if ranks and "PMI_RANK" not in os.environ and MPI.Get_library_version().startswith("MPICH"):
        raise LaunchError(
            f"{ranks} ranks were started by Open MPI's launcher, but mpi4py uses MPICH: "
            f"{NOT_TOGETHER} Or install an mpi4py for Open MPI."
        )


def _initialise(MPI: Any) -> None:
    """Call MPI_Init_thread without Python's lock, unlike mpi4py.

    Other threads can then name missing ranks.
    """
    from mpi4py import rc

    level = MPI.THREAD_SINGLE
    if rc.threads:
        level = getattr(MPI, f"THREAD_{rc.thread_level}".upper())
    try:
        call = ctypes.CDLL(MPI.__file__).MPI_Init_thread
    except (AttributeError, OSError):  # a library that shows its names to mpi4py alone
        MPI.Init_thread(level)
        return
    # ctypes lets go of Python's lock during the call.
    if call(None, None, level, ctypes.byref(ctypes.c_int())):
        raise RuntimeError("MPI_Init_thread failed")
    for communicator in MPI.COMM_WORLD, MPI.COMM_SELF:
        # mpi4py makes exceptions of errors that are returned.
        communicator.Set_errhandler(MPI.ERRORS_RETURN)


def library_here() -> Any:
    """Return mpi4py's MPI module, which must be up; in a simulated rank its stand-in."""
    simulated = stand_in()
    if simulated:
        return simulated
    from mpi4py import MPI

    return MPI


def if_up() -> Any:
    """Return mpi4py's MPI module if the library is up, otherwise None.

    In a simulated rank, return its stand-in.
    """
    simulated = stand_in()
    if simulated:
        return simulated
    # An import would load the library, which commands for a login node must not do.
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi


def ranks_here() -> int:
    MPI = if_up()
    if MPI is None:
        return 1
    return MPI.COMM_WORLD.Get_size()


def lost_connection(error: BaseException) -> str:
    """Return the message for an exception which means that a rank is gone.

    Return an empty text for any other exception.
    """
    MPI = if_up()
    if MPI is None or not isinstance(error, MPI.Exception):
        return ""
    # Some of the classes exist only in libraries with fault tolerance.
    classes = {getattr(MPI, name) for name in _CONNECTION_ERRORS if hasattr(MPI, name)}
    if error.Get_error_class() not in classes:
        return ""
    *_, reason = error.Get_error_string().strip().splitlines()  # the end of a chain of calls
    reason = reason.strip()
    return (
        f"a rank is gone: its connection broke ({reason}). See its error message, or the "
        "launcher's."
    )


_CONNECTION_ERRORS = (
    "ERR_OTHER",
    "ERR_INTERN",
    "ERR_UNKNOWN",
    "ERR_IN_STATUS",  # calls on several requests tell no more
    "ERR_PROC_ABORTED",
    "ERR_PROC_FAILED",
    "ERR_PROC_FAILED_PENDING",
)
"""MPI's error classes for broken connections. Wrong arguments do not cause them."""


def library() -> str:
    name, version = library_here().get_vendor()
    return f"{name} {'.'.join(map(str, version))}".strip()


THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
"""The thread levels of MPI, from a single thread to calls by any thread at any time."""


def thread_level() -> str:
    MPI = library_here()
    levels = (MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE)
    return THREAD_LEVELS[levels.index(MPI.Query_thread())]


def threads_may_call() -> bool:
    return thread_level() == THREAD_LEVELS[-1]
