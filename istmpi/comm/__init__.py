"""The ranks of a job and all communication between them. No other package imports mpi4py."""

from istmpi.comm.backoff import Backoff
from istmpi.comm.communicator import STAGING_BYTES, Communicator
from istmpi.comm.hang_watch import WHILE_LOADING, HangWatch
from istmpi.comm.launch import agree_on_error, announce, find_rank, handshake, world
from istmpi.comm.launcher import rank_variable, read_launcher, terminal_columns
from istmpi.comm.leaving import PASSED_ON, abort_at_exit, final_barrier
from istmpi.comm.ledger import Traffic
from istmpi.comm.members import find_members, list_neighbours, threads_may_call_everywhere
from istmpi.comm.mpi import (
    THREAD_LEVELS,
    library,
    lost_connection,
    start,
    thread_level,
    threads_may_call,
)
