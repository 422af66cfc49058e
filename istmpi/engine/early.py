"""Exchanges dealt parameters for the next round while a round still takes local steps
(method.delay).

Deals are known in advance. An owner sends an element at the beginning of a round in which no rank
trains the element, if a rank trains it next. An element that its rank does not train next leaves
before the last local steps: to the rank that trains it next, or else to its owner. Other elements
stay. After the round no message is on its way, and every rank has all dealt values that it trains
next.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch

from istmpi.comm import Communicator, Traffic
from istmpi.comm.background import BackgroundRunner
from istmpi.engine.axes import Parameter
from istmpi.engine.layout import TrainingLayout, part_shape
from istmpi.engine.partition import Partition
from istmpi.engine.route import HOP, PULL, PUSH, Leg, Route
from istmpi.engine.slots import select_weights
from istmpi.engine.store import ParameterStore, Tensors
from istmpi.engine.transfer import Transfer

Buffers = dict[str, torch.Tensor]


@dataclass
class HeldParts:
    """A rank's part of the dealt parameters and of their optimizer state, in host memory.

    Rows of the owners may be out of date until ``flushed`` is true.
    """

    deal: TrainingLayout
    tensors: dict[str, torch.Tensor]
    flushed: bool = False

    def find_weights(self, deal: Partition) -> dict[str, torch.Tensor]:
        """Return the weights of the part, if it is one of ``deal`` and owners have the same values;
        otherwise nothing."""
        if not self.flushed or not isinstance(self.deal, Partition):
            return {}
        if self.deal.digest != deal.digest:
            return {}
        return {name: self.tensors[name] for name in select_weights(self.tensors)}


def receive_buffers(
    buffers: Buffers, parameters: Mapping[str, Parameter], deal: TrainingLayout, rank: int
) -> dict[str, torch.Tensor]:
    """Return host tensors for a rank's part in a deal, from ``buffers``; add new tensors where none
    fits."""
    for name, parameter in parameters.items():
        shape = part_shape(deal, parameter, rank)
        # Parts of later rounds mostly have the same shapes.
        if name not in buffers or buffers[name].shape != shape:
            buffers[name] = torch.empty(shape, dtype=getattr(torch, parameter.dtype))
    return {name: buffers[name] for name in parameters}


def lend_rows(store: ParameterStore, deal: TrainingLayout) -> dict[str, torch.Tensor]:
    """Return rows of the store as buffers for this rank's part of ``deal``.

    Owners need no memory for parameters of which every element is with one holder.
    """
    lent = {}
    for name, parameter in store.parameters.items():
        shape = part_shape(deal, parameter, store.rank)
        rows = store.tensors[name].view(-1)
        if _is_held_once(parameter, deal) and 0 < prod(shape) <= len(rows):
            lent[name] = rows[: prod(shape)].view(shape)
    return lent


def _is_held_once(parameter: Parameter, deal: TrainingLayout) -> bool:
    """Return True if each element is with exactly one rank."""
    for term in parameter.pattern.terms():
        dealt = [factor.name in deal.units for axis in term.axes for factor in axis.factors]
        # Without a dealt factor all ranks hold an element; with two, perhaps none does.
        if sum(dealt) != 1:
            return False
    return True


class EarlyExchange:
    """The exchange for the next round, done by a background thread. All ranks call the same methods
    in the same order.

    Nothing else may use ``communicator``, whose traffic `finish` adds to its argument.
    """

    def __init__(
        self,
        held: HeldParts,
        route: Route,
        round: int,
        store: ParameterStore,
        communicator: Communicator,
        arriving: Buffers,
        leaving: Buffers,
    ):
        self._held = held
        self._store = store
        self._communicator = communicator
        self._following = route.deal(round + 1)
        parameters = {name: store.parameters[name] for name in held.tensors}
        legs = {leg.name: leg for leg in route.into(parameters, round + 1, held.deal)}
        legs |= {leg.name: leg for leg in route.out_of(parameters, round)}
        self._legs: Mapping[str, Leg] = legs
        self._arriving = receive_buffers(arriving, parameters, self._following, store.rank)
        self._leaving = receive_buffers(leaving, parameters, held.deal, store.rank)
        self._hop: Transfer | None = None
        # decision 12: on a communicator of its own, because local steps beside it may send, too.
        self._work = BackgroundRunner("exchange")
        communicator.traffic = Traffic()
        self._work.put(self._pull)

    def leave(self, trained: Tensors) -> None:
        """Send the weights as they are now; local steps may change them afterwards."""
        for name, values in self._leaving.items():
            values.copy_(trained[name])
        # The push changes owners' rows: after a rollback a flush must restore them.
        self._held.flushed = False
        self._work.put(self._send)

    def finish(self, traffic: Traffic) -> float:
        self._work.finish()
        traffic.add(self._communicator.traffic.bytes)
        return self._work.seconds

    def assemble(self, trained: Tensors) -> HeldParts:
        """Return this rank's part of the next deal: elements that arrived, and ``trained`` elements
        that stay."""
        if self._hop is None:
            raise AssertionError("the exchange is not finished")
        self._hop.stay(trained, self._arriving)
        return HeldParts(self._following, self._arriving)

    def _pull(self) -> None:
        self._move(PULL, self._store.tensors, self._arriving)

    def _send(self) -> None:
        self._hop = self._move(HOP, self._leaving, self._arriving)
        self._move(PUSH, self._leaving, self._store.tensors)

    def _move(self, name: str, values: Tensors, into: Tensors) -> Transfer:
        leg = self._legs[name]
        transfer = Transfer.from_leg(leg, self._store.rank)
        transfer.run(values, into, self._communicator)
        return transfer
