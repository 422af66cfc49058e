"""What the next round of IST needs, sent while the last local steps of this one are still taken (``method.delay``).

Deals are known in advance. What nobody trains now and somebody will next is fetched from its owners from the round's
beginning on. What a rank trains now and will not train next leaves ``delay`` local steps before the end, as it is then:
to its next holder, or home to its owner. What stays with its rank keeps all local steps.

Between two rounds nothing is on its way, and ranks have all that they train next.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import torch

from istmpi.comm import Communicator, Sent, Traffic
from istmpi.comm.background import BackgroundRunner
from istmpi.comm.codec import Wire
from istmpi.engine.axes import Parameter
from istmpi.engine.layout import Layout
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.engine.transfer import Transfer
from istmpi.methods.held import Held, room

Buffers = MutableMapping[str, torch.Tensor]


@dataclass(frozen=True)
class Wires:
    """How values travel from one round to the next."""

    hop: Wire | None
    pull: Wire | None
    push: Wire | None


class Ahead:
    """One round's exchange, in the background. All ranks call the same methods in the same order.

    ``communicator``: one on which nothing else goes on, and whose calls are counted in `finish`.
    """

    def __init__(
        self,
        held: Held,
        following: Partition,
        store: ParameterStore,
        communicator: Communicator,
        wires: Wires,
        arriving: Buffers,
        leaving: Buffers,
    ):
        """``held``: what this rank trains, as the round began. ``arriving``, ``leaving``: memory to be used again."""
        self._deal, self._following, self._store = held.deal, following, store
        self._communicator, self._wires = communicator, wires
        self._parameters: Mapping[str, Parameter] = {name: store.parameters[name] for name in held.tensors}
        self._held = held
        self._arriving = room(arriving, self._parameters, following, store.rank)
        self._leaving = room(leaving, self._parameters, held.deal, store.rank)
        self._hop: Transfer | None = None
        self._sent: list[Sent] = []
        self._work = BackgroundRunner("exchange")
        communicator.traffic = Traffic(followers=[self._sent.append])
        self._work.put(self._fetch)

    def leave(self, trained: Mapping[str, torch.Tensor]) -> None:
        """What leaves does so with the values that are trained by now."""
        for name, values in self._leaving.items():
            values.copy_(trained[name])
        self._held.flushed = False  # owners get other values
        self._work.put(self._send)

    def finish(self, traffic: Traffic) -> float:
        """Until everything has arrived; returns the seconds that it took to send, most of them beside local steps."""
        self._work.finish()
        for one in self._sent:
            traffic.add(one.bytes, one.call, one.began, one.ended)
        return self._work.seconds

    def put_together(self, trained: Mapping[str, torch.Tensor]) -> Held:
        """What has arrived, and what stays with this rank, as it is trained by now."""
        self._hop.stay(trained, self._arriving)
        return Held(self._following, self._arriving)

    def _fetch(self) -> None:
        source, target = self._store.owners, self._following
        self._move(source, target, self._deal, self._wires.pull, self._store.tensors, self._arriving)

    def _send(self) -> None:
        owners, now, next = self._store.owners, self._deal, self._following
        self._hop = self._move(now, next, None, self._wires.hop, self._leaving, self._arriving)
        self._move(now, owners, next, self._wires.push, self._leaving, self._store.tensors)

    def _move(
        self,
        source: Layout,
        target: Layout,
        exclude: Partition | None,
        wire: Wire | None,
        values: Mapping[str, torch.Tensor],
        into: Mapping[str, torch.Tensor],
    ) -> Transfer:
        rank = self._store.rank
        transfer = Transfer(self._parameters, source, target, rank, exclude=exclude, wire=wire)
        transfer.run(values, into, self._communicator)
        return transfer
