"""The ranks of a job and all that goes on between them. The only package that imports mpi4py."""

from istmpi.comm.communicator import STAGING_BYTES, Backoff, Communicator, Sent, Traffic
from istmpi.comm.launch import announce, current_rank, handshake, meet_with, world
from istmpi.comm.launcher import launched, terminal_columns
from istmpi.comm.leaving import abort_at_exit, final_barrier
from istmpi.comm.mpi import (
    THREAD_LEVELS,
    library,
    library_before_start,
    lost_connection,
    send_to_self,
    start,
    thread_level,
    threads_may_call,
)
from istmpi.comm.stop_gossip import StopGossip

__all__ = [
    "STAGING_BYTES",
    "THREAD_LEVELS",
    "Communicator",
    "Backoff",
    "Sent",
    "StopGossip",
    "Traffic",
    "abort_at_exit",
    "announce",
    "current_rank",
    "handshake",
    "launched",
    "final_barrier",
    "library",
    "library_before_start",
    "lost_connection",
    "meet_with",
    "send_to_self",
    "start",
    "terminal_columns",
    "thread_level",
    "threads_may_call",
    "world",
]
