"""Counts what TCP of this host sends again, of all programs on the host together."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from istmpi.comm.hang_report import Member

TABLE = Path("/proc/net/snmp")
"""Linux's counters of this network namespace: for each protocol a line of names, then one of
numbers."""


class Resends:
    """The segments that this host's TCP has sent again since the counter was made."""

    def __init__(self) -> None:
        self._first = _read_resent()

    def count(self) -> int | None:
        """Return the number of segments; None if the system does not count them."""
        now = _read_resent()
        if now is None or self._first is None:
            return None
        return now - self._first


def _read_resent() -> int | None:
    # Other systems than Linux have no such file.
    with suppress(OSError, ValueError):
        lines = TABLE.read_text(encoding="ascii").splitlines()
        names, numbers = (line.split() for line in lines if line.startswith("Tcp:"))
        return int(numbers[names.index("RetransSegs")])
    return None


def add_up_hosts(by_rank: Sequence[int | None], members: Sequence[Member]) -> int | None:
    """Return the segments that all hosts sent again; None if there is one host, or if a host does
    not count them.

    ``by_rank``: the number that each rank has counted on its host.
    """
    by_host: dict[tuple[str, str], int] = {}
    for segments, member in zip(by_rank, members, strict=True):
        if segments is None:
            return None
        # Ranks of one host read the same counter, one after the other.
        by_host[member.machine] = max(segments, by_host.get(member.machine, 0))
    if len(by_host) == 1:
        return None
    return sum(by_host.values())
