"""Replica groups: some processes of one host train one subnet together, as one rank of a method.

The first member of a group leads it: it alone exchanges with the leaders of other groups, so
methods count groups as ranks. Other members hear from their leader what they need, and what it
agrees on with other leaders while a run is set up.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from istmpi.comm.agreement import Told, take_first
from istmpi.comm.communicator import Communicator
from istmpi.comm.ledger import GROUP, Sent
from istmpi.comm.objects import EAGER_SLOT, SLOT
from istmpi.errors import ConfigError, IstmpiError
from istmpi.signals import receiver
from istmpi.units import list_first

T = TypeVar("T")
Help = Callable[[Any], None]

WHOLE_HOST = 0
"""The value of train.group_size that makes one group of all processes of a host."""


@dataclass(frozen=True)
class Start:
    """Tells members that their leader sets up the run, to resume from ``checkpoint`` if any."""

    checkpoint: Any


@dataclass(frozen=True)
class End:
    """Tells members that the run has ended, with the ``error`` that all leaders raise if any."""

    error: IstmpiError | None


@dataclass(frozen=True)
class Answer:
    """The result of a ``call`` of a user's program, or the error that it raises."""

    call: str
    result: Any
    error: IstmpiError | None


def divide(hosts: Sequence[str], size: int) -> list[tuple[int, ...]]:
    """Return the processes of each group, groups in the order of their first processes.

    ``hosts``: the host of each process. ``size``: processes of a group, or `WHOLE_HOST`. Raises
    ConfigError if a host's processes cannot be divided.
    """
    processes: dict[str, list[int]] = {}
    for process, host in enumerate(hosts):
        processes.setdefault(host, []).append(process)
    groups = []
    for host, of_host in processes.items():
        step = size or len(of_host)
        if len(of_host) % step:
            raise ConfigError(
                f"train.group_size = {size} does not divide the {len(of_host)} processes on "
                f"{host}. Start a multiple of {size} on each host."
            )
        for first in range(0, len(of_host), step):
            groups.append(tuple(of_host[first : first + step]))
    return sorted(groups)


def name_processes(groups: Sequence[Sequence[int]]) -> dict[int, str]:
    """Return what messages call each process: its number in the job, and its place in a group."""
    names = {}
    for rank, group in enumerate(groups):
        places = ["leader", *(f"member {member}" for member in range(1, len(group)))]
        for process, place in zip(group, places, strict=True):
            names[process] = f"process {process} ({place} of rank {rank})"
    return names


class Leaders(Communicator):
    """The communicator of all groups' leaders. While it `tells`, a leader passes on to its members
    what all leaders learn."""

    inside: Communicator
    tells = False

    def allgather(self, value: T, slot: int = SLOT) -> list[T]:
        values = super().allgather(value, slot)
        if self.tells:
            self.inside.broadcast_from_root(values)
        return values

    def broadcast_from_root(self, value: T) -> T:
        value = super().broadcast_from_root(value)
        if self.tells:
            self.inside.broadcast_from_root(value)
        return value

    def gather_told(self, message: Told, slot: int) -> list[Told]:
        if self.tells:
            errors, later = zip(*self.inside.allgather((message.error, message.later)), strict=True)
            message = message._replace(
                error=take_first(errors, "member"), later=take_first(later, "member")
            )
        return self.allgather(message, slot)


class Listener(Communicator):
    """A leader's communicator as another member hears it. ``rank`` is the group's number, ``size``
    the number of groups."""

    def __init__(self, inside: Communicator, number: int, groups: int):
        super().__init__(inside.mpi, f"group {number}", inside.ranks, inside.whereabouts)
        self.rank = number
        self.size = groups
        self._inside = inside

    def allgather(self, value: T, slot: int = SLOT) -> list[T]:
        values: list[T] = []
        return self._inside.broadcast_from_root(values)

    def broadcast_from_root(self, value: T) -> T:
        return self._inside.broadcast_from_root(value)

    def gather_told(self, message: Told, slot: int) -> list[Told]:
        self._inside.allgather((message.error, message.later))
        return self.allgather(message, slot)


class Membership:
    """This process's place in a job of replica groups. Creation is collective.

    ``size``: as for `divide`, whose error it raises on all processes.
    """

    def __init__(self, world: Communicator, size: int):
        everyone = world.allgather((socket.gethostname(), size))
        with world.agreed():
            if len({asked for _, asked in everyone}) > 1:
                raise ConfigError("train.group_size differs between processes. Give all the same.")
            groups = divide([host for host, _ in everyone], size)
        self.world = world
        self.groups = len(groups)
        self.sizes = [len(group) for group in groups]
        """The number of members of each group."""
        if self.largest > 1:
            world.whereabouts.names = name_processes(groups)
        self.number = next(number for number, group in enumerate(groups) if world.rank in group)
        members = groups[self.number]
        handle = world.create(members)
        # A ledger of its own: messages inside a group are not those of the run.
        self.inside = Communicator(handle, f"group {self.number}", members, world.whereabouts)
        # decision 86: a leader that tells a step goes on at once, and waits in the mean alone.
        self.inside.broadcast_slot = EAGER_SLOT
        self._communicator = self._join_leaders([group[0] for group in groups])
        self._signal = ""

    def _join_leaders(self, leaders: Sequence[int]) -> Communicator:
        world = self.world
        if not self.leads:
            return Listener(self.inside, self.number, self.groups)
        handle = world.create(leaders)
        communicator = Leaders(handle, "leaders", leaders, world.whereabouts, world.ledger)
        communicator.inside = self.inside
        communicator.ledger.sent[GROUP] = Sent()
        return communicator

    @property
    def leads(self) -> bool:
        return self.inside.rank == 0

    @property
    def largest(self) -> int:
        """The number of members of the largest group."""
        return max(self.sizes)

    @property
    def in_words(self) -> str:
        """The groups and the processes of each."""
        if len({*self.sizes}) == 1:
            return f"replica groups of {self.sizes[0]} processes each"
        return f"replica groups of {list_first(self.sizes)} processes"

    @property
    def communicator(self) -> Communicator:
        """The communicator of all groups, each with its leader as a rank. Another member may only
        set up a run with it."""
        return self._communicator

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Let members hear what the leaders agree on in this block, which all processes enter."""
        if not isinstance(self._communicator, Leaders):
            yield
            return
        self._communicator.tells = True
        try:
            yield
        finally:
            self._communicator.tells = False

    # ---- what a leader tells

    def tell(self, message: Any) -> None:
        self.inside.broadcast_from_root(message)

    def hear(self) -> Any:
        return self.inside.broadcast_from_root(None)

    def dismiss(self, error: BaseException | None) -> None:
        """Tell members the run's end, and the ``error`` that all leaders have if any."""
        assert error is None or isinstance(error, IstmpiError), "others end the job"
        self.tell(End(error))

    def count(self, nbytes: int) -> None:
        """Count bytes that the members together send to each other."""
        if self.leads:
            self._communicator.ledger.add(nbytes, 1, GROUP)

    def answer(self, call: str, work: Callable[[], T], help: Help | None = None) -> T:
        """Return the result of ``work``, which the leader does for all members; raise its error.

        ``call``: the name of the user's call, which must be that of the leader. ``help``: what
        another member does with the leader's messages before the answer.
        """
        if self.leads:
            try:
                result = work()
            except IstmpiError as error:
                self.tell(Answer(call, None, error))
                raise
            self.tell(Answer(call, result, None))
            return result
        heard = self.hear()
        while help and not isinstance(heard, Answer | End):
            help(heard)
            heard = self.hear()
        if not isinstance(heard, Answer) or heard.call != call:
            raise ConfigError(
                f"process {self.world.rank} called {call}, and the leader of its replica group did "
                "not. Every process must make the same job calls in the same order."
            )
        if heard.error:
            heard.error.heard = True
            raise heard.error
        return heard.result

    # ---- what all processes compute

    def average_over_groups(self, values: Sequence[float]) -> list[float]:
        """Return the means over all groups of values that the members of each have in common.
        Collective in the job."""
        means: list[float] = []
        if self.leads:
            by_group = self._communicator.allgather(list(values))
            means = [sum(column) / self.groups for column in zip(*by_group, strict=True)]
        return self.inside.broadcast_from_root(means)

    # ---- what members tell

    def listen(self) -> None:
        """Treat signals to this member as requests to stop, which `collect` brings to its leader.
        Call it in the main thread."""
        receiver().listen(self._note_signal)

    def _note_signal(self, name: str) -> None:
        self._signal = name

    def collect(self, values: Sequence[T]) -> tuple[list[list[T]], str]:
        """Return all members' values, and the first signal that a member got. Collective."""
        reports = self.inside.allgather(([*values], self._signal))
        signals = [signal for _, signal in reports if signal]
        return [of_member for of_member, _ in reports], next(iter(signals), "")
