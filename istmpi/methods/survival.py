"""What every rank keeps so that the others can go on without one of them.

Beside its owned rows, which rest between rounds, a rank keeps its part of what it trains in a round: a `Layer`. And it
keeps a copy of both of the rank before it, whose buddy it is. The rows of a lost rank, and above them its part as the
round began, and above these what the others have trained, are the whole network without that rank's steps.

Copies travel in the background of the local steps. Until all of a round's have arrived, which the meeting of the ranks
at the end of its local steps makes sure of, the round before is kept as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from istmpi.comm import Backoff, Communicator, threads_may_call
from istmpi.devices import on_host
from istmpi.engine.axes import Axis, Parameter, Positions
from istmpi.engine.layout import Layout, part_shape
from istmpi.engine.store import ParameterStore
from istmpi.engine.transfer import Transfer

CALL = "buddies"
"""What copies are counted as."""
_AT_ONCE = 2**30
"""Most bytes of one message."""


@dataclass(frozen=True)
class Seen:
    """A layout of ranks some of which are lost, as those that are left number themselves.

    ``as_rank``: whose part each of them has, None for nobody's.
    """

    layout: Layout
    as_rank: tuple[int | None, ...]

    @property
    def lengths(self) -> Mapping[str, int]:
        return self.layout.lengths

    @property
    def ranks(self) -> int:
        return len(self.as_rank)

    @property
    def units(self) -> Mapping[str, object]:
        """The layout's contract."""
        return self.layout.units

    def positions(self, axis: Axis, place: int, rank: int) -> Positions:
        """The layout's contract."""
        there = self.as_rank[rank]
        return range(0) if there is None else self.layout.positions(axis, place, there)

    def largest(self, axis: Axis, place: int) -> int:
        """The layout's contract."""
        return self.layout.largest(axis, place)

    def copies(self, names: frozenset[str]) -> int:
        """The layout's contract."""
        return self.layout.copies(names)

    def alike(self, names: frozenset[str]) -> bool:
        """The layout's contract."""
        return self.layout.alike(names)


@dataclass
class Values:
    """What a rank has of a round that has begun."""

    layout: Layout
    parameters: Mapping[str, Parameter]
    tensors: Mapping[str, torch.Tensor]
    """This rank's parts of these parameters, as far as they are trained."""
    start: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Where an outer step's change is taken from: the same, whole, on every rank; none without an outer step."""


@dataclass
class Layer:
    """A round: this rank's values of it, and a copy of those of the rank before."""

    round: int
    values: Values
    steps: int
    """That this rank takes in the round."""
    local_steps: int
    """Done by this rank."""
    loss: float | None = None
    """The mean of these steps."""
    copy: Mapping[str, torch.Tensor] | None = None
    """Of the rank before, as the round began: of what not every rank has. None until it has arrived."""


class Survival:
    """One rank's, for as long as the ranks are the same. Making it is collective: all rows go to their buddies.

    ``buddies``: whether there are copies at all.
    """

    def __init__(self, store: ParameterStore, communicator: Communicator, buddies: bool):
        self.rank, self.ranks = communicator.rank, communicator.size
        self.store = store
        self.layers: list[Layer] = []
        """Of the last round begun, and of the one before it while it is still needed."""
        self.rows: dict[str, torch.Tensor] | None = None
        """The owned rows of the rank before; None where there is no copy."""
        self._traffic = communicator.traffic
        self._communicator = communicator.duplicate()
        self._pushed: list[dict[str, torch.Tensor]] = [{}, {}]
        """Which rows have changed since the last copy: this rank's, and those of the rank before."""
        self._received = [np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.uint8)]
        self._arriving: _Copy | None = None
        if buddies and self.ranks > 1:
            mine, theirs = list(store.tensors.values()), self._empty(store.owners, store.parameters)
            size = sum(map(_nbytes, theirs.values()))
            copy = _Copy(self._communicator, _packed(mine), np.empty(size, dtype=np.uint8))
            copy.finish(self._traffic)
            self.rows = dict(zip(theirs, _unpacked(copy.received, theirs.values()), strict=True))

    @property
    def before(self) -> int:
        """The rank whose copy this one has."""
        return (self.rank - 1) % self.ranks

    def begun(self, round: int, values: Values, steps: int, local_steps: int) -> None:
        """A round begins, or is gone on with: a copy of its values, and of rows that have changed, sets out."""
        layout, tensors = values.layout, values.tensors
        self.layers = [*self.layers[-1:], Layer(round, values, steps, local_steps)]
        if self.rows is None:
            return
        groups = layout.held(self.rank)
        apart = {name: of for name, of in values.parameters.items() if of.pattern.dealt(groups)}
        mine, theirs = self._pushed
        sent = [*on_host({name: tensors[name] for name in apart}).values()]
        sent += [self.store.tensors[name][marks] for name, marks in mine.items()]
        expected = self._empty(layout, apart)
        changed = [self.rows[name].new_empty(int(marks.sum())) for name, marks in theirs.items()]
        size = sum(map(_nbytes, (*expected.values(), *changed)))
        if self._received[round % 2].nbytes < size:
            self._received[round % 2] = np.empty(size, dtype=np.uint8)
        self._arriving = _Copy(self._communicator, _packed(sent), self._received[round % 2][:size])
        self._arriving.expected = expected
        self._arriving.changed = dict(zip(theirs, changed, strict=True))
        self._arriving.start()

    def arrived(self) -> None:
        """Wait for the copy of the round under way, sent and received."""
        if self._arriving:
            try:
                self._arriving.finish(self._traffic)
            finally:
                self.take_what_arrived()

    def take_what_arrived(self) -> None:
        """Take over the copy of the rank before if it has come, whatever became of this rank's own."""
        copy, self._arriving = self._arriving, None
        if copy is None or not copy.complete:
            return
        values = _unpacked(copy.received, (*copy.expected.values(), *copy.changed.values()))
        self.layers[-1].copy = dict(zip(copy.expected, values, strict=False))
        for (name, marks), rows in zip(self._pushed[1].items(), values[len(copy.expected) :], strict=True):
            self.rows[name][marks] = rows
        self._pushed = [{}, {}]

    def settled(self) -> None:
        """All ranks are through with their local steps, so that all copies have arrived."""
        if self.rows is not None:
            self.layers = self.layers[-1:]

    def trained(self) -> None:
        """The local steps are over; what follows may overwrite what was trained."""
        values = self.layers[-1].values
        own = {name: values.tensors[name] for name in values.parameters}
        values.tensors = {name: tensor.clone() for name, tensor in on_host(own).items()}

    def pushed(self, transfer: Callable[[int], Transfer], names: Sequence[str]) -> None:
        """Rows of these parameters change by what a transfer, which is given a rank, brings to it."""
        if self.rows is None:
            return
        for rank, rows, known in zip(
            (self.rank, self.before), (self.store.tensors, self.rows), self._pushed, strict=True
        ):
            for name, marks in transfer(rank).reached({name: rows[name] for name in names}).items():
                known[name] = known[name] | marks if name in known else marks

    def _empty(self, layout: Layout, parameters: Mapping[str, Parameter]) -> dict[str, torch.Tensor]:
        return {
            name: torch.empty(part_shape(layout, of, self.before), dtype=getattr(torch, of.dtype), device="meta")
            for name, of in parameters.items()
        }


class _Copy:
    """A message to the next rank and one from the rank before, moved by a thread until they are through."""

    def __init__(self, communicator: Communicator, sent: np.ndarray, received: np.ndarray):
        self.received = received
        self.complete = False
        """What is received is there."""
        self.expected: Mapping[str, torch.Tensor] = {}
        self.changed: Mapping[str, torch.Tensor] = {}
        self._communicator, self._sent = communicator, sent
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        rank, ranks = communicator.rank, communicator.size
        self._receives, self._sends = [], []
        try:
            for tag, part in enumerate(_parts(received)):
                self._receives.append(communicator.start_receive(part, (rank - 1) % ranks, tag))
            for tag, part in enumerate(_parts(sent)):
                self._sends.append(communicator.start_send(part, (rank + 1) % ranks, tag))
        except Exception as failure:  # raised where the copy is waited for: the round's local steps count all the same
            self._failure = failure

    def start(self) -> None:
        """Let a thread move it, where threads may call MPI; else it moves in `finish`."""
        if threads_may_call() and not self._failure:
            self._thread = threading.Thread(target=self._move, name="buddies", daemon=True)
            self._thread.start()

    def finish(self, traffic: Any) -> None:
        """Wait for both messages; raises what kept one of them."""
        began = time.perf_counter()
        self._communicator.meet()
        with self._communicator.waiting(CALL):  # or a rank would seem to do nothing, while a thread of it waits
            if self._thread:
                self._thread.join()
            else:
                self._move()
        if self._failure:
            raise self._failure
        traffic.add(self._sent.nbytes, CALL, began)

    def _move(self) -> None:
        if self._failure:
            return
        received = self._through(self._receives)
        self.complete = received
        self._through(self._sends)

    def _through(self, requests: list[Any]) -> bool:
        """Whether all of these came through; what kept one is noted."""
        backoff = Backoff(self._communicator.require_all)
        try:
            with self._communicator.kept_if_it_fails(self):
                while not self._communicator.all_done(requests):
                    backoff.wait_unless(self._communicator.test_some(requests))
        except BaseException as failure:  # raised where the copy is waited for
            self._failure = failure
            return False
        return True


def _parts(values: np.ndarray) -> Iterator[np.ndarray]:
    return (values[first : first + _AT_ONCE] for first in range(0, values.nbytes, _AT_ONCE))


def _nbytes(tensor: torch.Tensor) -> int:
    return prod(tensor.shape) * tensor.element_size()


def _packed(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    """The bytes of all of them, one after the other: a copy."""
    flat = np.empty(sum(map(_nbytes, tensors)), dtype=np.uint8)
    at = 0
    for tensor in tensors:
        flat[at : at + _nbytes(tensor)] = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        at += _nbytes(tensor)
    return flat


def _unpacked(flat: np.ndarray, like: Any) -> list[torch.Tensor]:
    """The tensors of these shapes and kinds that lie in it: the same memory where alignment allows."""
    tensors, at = [], 0
    for tensor in like:
        part = flat[at : at + _nbytes(tensor)]
        if at % tensor.element_size():
            part = part.copy()
        tensors.append(torch.from_numpy(part).view(tensor.dtype).view(tensor.shape))
        at += _nbytes(tensor)
    return tensors
