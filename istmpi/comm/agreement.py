"""Messages of ranks at the end of work that every rank must complete."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from istmpi.errors import IstmpiError, UserError
from istmpi.foreign import past_a_limit


class Told(NamedTuple):
    """The message of a rank: the error of its work, and a value."""

    error: IstmpiError | None
    value: Any


def find_shared_error(raised: Exception) -> IstmpiError | None:
    """Return the error to tell all ranks for one that work has ``raised``; None if it ends the
    job."""
    if isinstance(raised, IstmpiError):
        return raised
    return past_a_limit(raised)


@dataclass
class Agreement:
    """An agreement of ranks (`istmpi.comm.Communicator.agreed`)."""

    value: Any = None
    """A small object of this rank, for all others."""
    by_rank: Sequence[Any] = ()
    """The objects of all ranks, once all have completed their work."""

    def settle(self, messages: Sequence[Told], rank: int) -> None:
        """Take all ranks' messages on this ``rank``; raise the error of the lowest rank that
        failed, on every rank."""
        for other, message in enumerate(messages):
            if not isinstance(message, Told):
                # The ranks are at different calls, and the other call's value came here.
                raise UserError(
                    f"rank {other} made another call than rank {rank}; all must make the same."
                )
        self.by_rank = [message.value for message in messages]
        failed = [other for other, message in enumerate(messages) if message.error]
        if not failed:
            return
        first = messages[failed[0]].error
        assert first is not None, "a rank that failed has an error"
        # A wrong setting fails on all ranks alike: then its rank is no news.
        if len(failed) < len(messages):
            first.args = (f"rank {failed[0]}: {first}",)
        first.everywhere = True
        raise first
