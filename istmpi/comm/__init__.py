"""The ranks of a job and all that goes on between them. The only package that imports mpi4py."""

from istmpi.comm.backoff import Backoff
from istmpi.comm.communicator import STAGING_BYTES, Communicator
from istmpi.comm.launch import announce, current_rank, handshake, meet_with, speaks, world
from istmpi.comm.launcher import launched, terminal_columns
from istmpi.comm.leaving import PASSED_ON, abort_at_exit, final_barrier, leave_survivors, leave_the_lost
from istmpi.comm.mpi import (
    THREAD_LEVELS,
    cannot_lose_ranks,
    library,
    library_before_start,
    lost_connection,
    send_to_self,
    start,
    tells_of_a_loss,
    thread_level,
    threads_may_call,
)
from istmpi.comm.overdue import within_deadlines
from istmpi.comm.roll_call import RollCall, while_loading
from istmpi.comm.stop_gossip import StopGossip
from istmpi.comm.traffic import Sent, Traffic

__all__ = [
    "PASSED_ON",
    "STAGING_BYTES",
    "THREAD_LEVELS",
    "Communicator",
    "Backoff",
    "RollCall",
    "Sent",
    "StopGossip",
    "Traffic",
    "abort_at_exit",
    "announce",
    "cannot_lose_ranks",
    "current_rank",
    "handshake",
    "launched",
    "leave_survivors",
    "leave_the_lost",
    "final_barrier",
    "library",
    "library_before_start",
    "lost_connection",
    "meet_with",
    "send_to_self",
    "speaks",
    "start",
    "tells_of_a_loss",
    "terminal_columns",
    "thread_level",
    "threads_may_call",
    "world",
    "while_loading",
    "within_deadlines",
]
