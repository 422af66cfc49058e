"""Work of rank 0 for all ranks, in one message."""

from collections.abc import Callable
from typing import TypeVar

from istmpi.comm.agreement import Agreement, Told, find_shared_error
from istmpi.comm.communicator import Communicator

T = TypeVar("T")


def ask_root(communicator: Communicator, work: Callable[[], T]) -> T:
    """Return what ``work`` returns on rank 0, which alone calls it. Collective.

    Raises the error of rank 0 on every rank, as `Communicator.agreed` does. An agreement, and then
    a message with the result, would be two round trips.
    """
    message = Told(None, None)
    if communicator.rank == 0:
        message = _do(work)
    message = communicator.broadcast_from_root(message)
    others = [Told(None, None)] * (communicator.size - 1)
    Agreement().settle([message, *others], communicator.rank)
    result: T = message.value
    return result


def _do(work: Callable[[], T]) -> Told:
    try:
        return Told(None, work())
    except Exception as raised:
        error = find_shared_error(raised)
        if error is None:
            raise
        return Told(error, None)
