"""Messages of ranks at the end of work that every rank must complete."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from istmpi.errors import IstmpiError, UserError
from istmpi.foreign import past_a_limit


class Told(NamedTuple):
    """The message of a rank: the error of its work, a value, and the error of the work after
    that."""

    error: IstmpiError | None
    value: Any
    later: IstmpiError | None = None


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
    later: IstmpiError | None = None
    """The error of this rank's work in `going_on`."""
    _later_by_rank: Sequence[IstmpiError | None] = field(default_factory=list)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Run this rank's work that is in vain if the values of other ranks are refused.

        Its error travels with the value, and `raise_later` raises it after that judgement. A second
        agreement would be a round trip more.
        """
        try:
            yield
        except Exception as raised:
            self.later = find_shared_error(raised)
            if self.later is None:
                raise

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
        self._later_by_rank = [message.later for message in messages]
        _raise_first([message.error for message in messages])

    def raise_later(self) -> None:
        """Raise, on every rank, the error of the lowest rank whose work in `going_on` failed."""
        _raise_first(self._later_by_rank)


def take_first(errors: Sequence[IstmpiError | None], kind: str) -> IstmpiError | None:
    """Return the error of the lowest process that has one; None if none has.

    ``kind``: what messages call a process. The message names it if another one succeeded: a wrong
    setting fails on all alike, and its process is no news.
    """
    failed = [number for number, error in enumerate(errors) if error is not None]
    if not failed:
        return None
    first = errors[failed[0]]
    if first is not None and len(failed) < len(errors):
        first.args = (f"{kind} {failed[0]}: {first}",)
    return first


def _raise_first(errors: Sequence[IstmpiError | None]) -> None:
    first = take_first(errors, "rank")
    if first is not None:
        first.everywhere = True
        raise first
