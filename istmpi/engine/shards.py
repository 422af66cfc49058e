"""The newest values of every parameter: where they are, and how they get to the ranks that train
them and back.

Each rank has a store of the rows that it owns (`istmpi.engine.store`). Between rounds, holders may
have newer values of dealt parameters, and every rank newer values of common parameters;
`Shards.flush` brings newer values to the owners.
"""

from collections.abc import Callable, MutableMapping, Sequence
from itertools import accumulate
from math import prod

import torch

from istmpi.comm import Communicator
from istmpi.comm.allreduce import MeanOverRanks
from istmpi.comm.clock import Clock
from istmpi.engine.axes import Parameter
from istmpi.engine.early import EarlyExchange, HeldParts, receive_buffers
from istmpi.engine.layout import part_shape
from istmpi.engine.outer import Outer
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.partition import Partition
from istmpi.engine.route import HOP, MEAN, PUSH, Leg, Route
from istmpi.engine.slots import Slot, weights_among
from istmpi.engine.sparse_mean import SparseMean
from istmpi.engine.store import ParameterStore, Tensors, copy_from_host, empty_on_host, on_host
from istmpi.engine.transfer import Transfer
from istmpi.engine.wire import forms_of


class Shards:
    """The parameters as one rank sees them. A round of IST calls `fetch`, `give` and `outer_step`.

    All ranks call the same methods in the same order. ``restored``: this rank's own values from a
    checkpoint (`of_this_rank`), by name; a resumed run begins with them.
    """

    def __init__(
        self,
        store: ParameterStore,
        route: Route,
        communicator: Communicator,
        clock: Clock,
        outer: Outer,
        restored: Tensors,
    ):
        self.store, self.route, self.outer = store, route, outer
        self._communicator, self._clock = communicator, clock
        self._restored = dict(restored)
        self._held: HeldParts | None = None
        self._common: dict[str, torch.Tensor] = {}
        """Common tensors, whole, on this rank's device; empty if they must be fetched from the
        owners."""
        self.alike: dict[str, torch.Tensor] = {}
        """Slots with the same values on all ranks, whole, on this rank's device, such as an outer
        step's velocity."""
        self._mean_taken = True
        """True if all ranks have the same values of the common parameters."""
        self._reached: dict[str, torch.Tensor] = {}
        self._arriving: MutableMapping[str, torch.Tensor] = {}
        self._leaving: MutableMapping[str, torch.Tensor] = {}
        self._sparse = SparseMean(route.largest) if route.largest else None
        self._slots: dict[str, torch.Tensor] = {}
        """Slots that only this rank has (`Route.own_slots`), on its device."""
        self._starts: dict[str, torch.Tensor] = {}
        """Weights at a round's start, on this rank's device, if changes are sent
        (`Route.sends_changes`)."""
        self._own: dict[str, torch.Tensor] = {}
        """Copies of slots that differ between ranks, from a round's beginning."""
        self._beside = communicator.duplicate() if route.early else None
        self._early: EarlyExchange | None = None

    def fetch(self, round: int, tensors: Tensors) -> None:
        """Fill ``tensors`` with the values with which this rank begins a round; begin the early
        exchange, if any."""
        route, store, deal = self.route, self.store, self.route.deal(round)
        if self._held is None and (before := route.recovered(round)):
            self._held = self._recovered(before)
        held, targets = self._held, dict(tensors)
        if not self._common:
            slots = (
                [name for name in store.parameters if name not in tensors]
                if route.keeps_all
                else ()
            )
            self.alike = {name: torch.empty_like(tensors[name.parameter]) for name in slots}
            targets |= self.alike
        present = {**self._common, **(held.tensors if held and held.deal is deal else {})}
        before = held.deal if held and held.deal is not deal else None
        arriving: dict[str, torch.Tensor] = {}
        for leg in route.into(
            {name: store.parameters[name] for name in self._names(targets)}, round, before, present
        ):
            with self._clock(leg.name):
                if leg.name == HOP:
                    arriving = receive_buffers(
                        self._arriving | self._lent(deal), leg.parameters, deal, store.rank
                    )
                    self._move(leg, held.tensors, arriving)
                    self._held = HeldParts(deal, dict(arriving))
                else:
                    missing = {
                        name: targets[name] for name in leg.parameters if name not in arriving
                    }
                    arriving |= empty_on_host(missing)
                    self._move(leg, store.tensors, arriving)
        for name, values in present.items():
            targets[name].copy_(values)
        if self._sparse and not self._common:
            weights = {
                name: arriving[name] for name in weights_among(arriving) if route.is_common(name)
            }
            self._sparse.begin(weights, self._restored, targets)
        copy_from_host(arriving | self._restored, {name: targets[name] for name in arriving})
        if route.own_slots:
            self._slots = {
                name: values for name, values in tensors.items() if isinstance(name, Slot)
            }
            copy_from_host(
                self._restored,
                {name: self._slots[name] for name in self._restored if name in self._slots},
            )
            self._own = {name: values.clone() for name, values in self._slots.items()}
        common = {name: targets[name] for name in self._names(targets) if route.is_common(name)}
        if self._sparse and route.every == 1:  # `rollback` restores them after a dropped round
            self._own = {
                name: values.clone() for name, values in common.items() if isinstance(name, Slot)
            }
        self.outer.begin(common or store.tensors)
        if route.sends_changes:
            self._starts = (
                self.outer.start
                if common
                else {n: targets[n].clone() for n in weights_among(arriving)}
            )
        self._communicator.release_scratch()  # local steps need its memory
        if route.leaves_early(round):
            buffers = self._arriving, self._leaving
            self._early = EarlyExchange(self._held, route, round, store, self._beside, *buffers)

    @property
    def leaves_early(self) -> bool:
        return self._early is not None

    def send_early(self, trained: Tensors) -> None:
        if self._early:
            with self._clock(HOP):
                self._early.leave(trained)

    def give(self, round: int, trained: Tensors) -> None:
        """Pass on the values trained in a round: take the mean if due, and push to owners or end an
        early exchange."""
        route, parameters = self.route, self.store.parameters
        moved = {name: parameters[name] for name in parameters if name in trained}
        self._own = {}  # nothing is rolled back any more, and what follows needs that memory
        for leg in route.out_of(moved, round):
            if leg.name == MEAN:
                self._average(leg, trained)
            elif self._early:
                self._arrive(trained)
            else:
                self._push(round, leg, trained)
        common = {name: trained[name] for name in moved if route.is_common(name)}
        self._mean_taken, self._restored = route.mean_is_due(round), {}
        # Owners do not have these values before the next mean, so a copy is kept in case the next
        # round is dropped.
        self._common = (
            common
            if route.every == 1
            else {name: values.clone() for name, values in common.items()}
        )

    def outer_step(self) -> None:
        """Take the outer step on a round's change, and write common parameters to their owners.

        If common parameters have no mean in this round, do nothing.
        """
        if not self._common:
            self.outer.step(self.store.tensors, self._reached)
        elif self._mean_taken:
            self.outer.step(self._common | self.alike)
            if self._sparse:
                self._sparse.start_from(self._common)
            self.keep(self._common | self.alike)
        self._reached = {}

    def flush(self) -> None:
        """Bring the newest values to their owners."""
        held, store = self._held, self.store
        if held and not held.flushed:
            moved = {name: store.parameters[name] for name in held.tensors}
            lent = {tensor.data_ptr() for tensor in store.tensors.values()}
            held.tensors |= {
                name: at.clone() for name, at in held.tensors.items() if at.data_ptr() in lent
            }
            transfer = Transfer(moved, held.deal, store.owners, store.rank, shared=False)
            transfer.run(held.tensors, store.tensors, self._communicator)
            held.flushed = True
        if not self._mean_taken and self._common:
            mean = {name: values.clone() for name, values in self._common.items()}
            self._average(Leg(MEAN, {name: store.parameters[name] for name in mean}), mean)
            store.keep(on_host(mean))

    def rollback(self) -> None:
        if self._early:
            self._finish_early()
        if self.route.every == 1:
            self._common = {}
            self._restored = on_host(self._own)
            self._slots = {}
            if self._sparse:
                self._restored |= self._sparse.slots()
        self.outer.start = {}
        self._starts = {}

    def average(self, tensors: MutableMapping[str, torch.Tensor]) -> None:
        self._average(Leg(MEAN, {name: self.store.parameters[name] for name in tensors}), tensors)

    def through_owners(
        self, tensors: Tensors, serve: Callable[[str, torch.Tensor], torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Send whole parameters to their owners, row by row, and return the owners' replies as
        whole parameters.

        ``serve(name, rows)``: the owner calls it with all ranks' values of its rows, ``[rank, row,
        ...]``. It returns the reply to each rank, in the same shape.
        """
        rank, ranks, owners = self._communicator.rank, self._communicator.size, self.store.owners
        back = {}
        for name, whole in on_host(tensors).items():
            parts = [
                whole[rows.start : rows.stop]
                for rows in (owners.rows(len(whole), peer) for peer in range(ranks))
            ]
            with self._clock(PUSH):
                arrived = self._all_to_all(parts, [parts[rank]] * ranks)
            served = serve(name, torch.stack(arrived))
            with self._clock("pull"):
                back[name] = torch.cat(self._all_to_all(list(served), parts)).to(
                    tensors[name].device
                )
        return back

    def _all_to_all(
        self, sent: Sequence[torch.Tensor], like: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        outgoing = torch.cat([values.reshape(-1) for values in sent]).view(torch.uint8).numpy()
        incoming = torch.empty(sum(values.numel() for values in like), dtype=like[0].dtype)
        layouts = [[values.nbytes for values in values_of] for values_of in (sent, like)]
        starts = [[0, *accumulate(counts)][:-1] for counts in layouts]
        self._communicator.alltoallv(
            (outgoing, layouts[0], starts[0]),
            (incoming.view(torch.uint8).numpy(), layouts[1], starts[1]),
        )
        parts = incoming.split([values.numel() for values in like])
        return [part.view(values.shape) for part, values in zip(parts, like, strict=True)]

    def of_this_rank(self) -> dict[str, torch.Tensor]:
        """Return the values that only this rank has and a checkpoint needs, whole, in host memory.

        Between two means, these are common parameters. `SparseMean` adds optimizer state, unsent
        changes and starts. Slots that no owner stores (`Route.own_slots`) count, too.
        """
        tensors = self._restored if self._mean_taken else on_host(self._common)
        if self._sparse and self._common:
            slots = {
                name: values for name, values in self._common.items() if isinstance(name, Slot)
            }
            tensors = tensors | on_host(
                slots | self._sparse.slots(not self._mean_taken)
            )  # else owners have them
        return tensors | on_host(self._slots)

    def keep(self, tensors: Tensors) -> None:
        """Copy the rows that this rank owns from whole tensors into the store."""
        with self._clock(PUSH):
            self.store.keep(on_host(tensors))

    def _lent(self, deal: Partition) -> dict[str, torch.Tensor]:
        lent = {}
        for name, parameter in self.store.parameters.items():
            shape, rows = (
                part_shape(deal, parameter, self.store.rank),
                self.store.tensors[name].view(-1),
            )
            if _is_held_once(parameter, deal) and 0 < prod(shape) <= len(rows):
                lent[name] = rows[: prod(shape)].view(shape)
        return lent

    def _names(self, targets: Tensors) -> list[str]:
        return [name for name in self.store.parameters if name in targets]

    def _move(self, leg: Leg, source: Tensors, target: Tensors) -> Transfer:
        transfer = Transfer.of(leg, self.store.rank)
        transfer.run(source, target, self._communicator)
        return transfer

    def _recovered(self, deal: Partition) -> HeldParts:
        rank, stored = self.store.rank, self.store.parameters
        parameters = {
            name: stored[name] for name in stored if stored[name].pattern.dealt(deal.units)
        }
        tensors = receive_buffers({}, parameters, deal, rank)
        with self._clock("pull"):
            pull = Transfer(parameters, self.store.owners, deal, rank)
            pull.run(self.store.tensors, tensors, self._communicator)
        return HeldParts(deal, tensors, flushed=True)

    def _push(self, round: int, leg: Leg, trained: Tensors) -> None:
        with self._clock(leg.name):
            leaving = {name: trained[name] for name in leg.parameters}
            for name, start in self._starts.items():
                leaving[name] = trained[name] - start
            staged = on_host(leaving)
            push = self._move(leg, staged, self.store.tensors)
            for name in (
                self._starts
            ):  # elements that no rank trained go back to the start in the outer step
                self.store.tensors[name] += self.outer.start[name]
            self._starts = {}
        self._reached = push.reached(self.outer.start)
        self._held = None
        if self.route.stays:
            deal = self.route.deal(round)
            stay = [
                name
                for name, parameter in leg.parameters.items()
                if parameter.pattern.dealt(deal.units)
            ]
            self._held = HeldParts(deal, {name: staged[name] for name in stay})

    def _average(self, leg: Leg, tensors: Tensors) -> None:
        nbytes = {name: tensors[name].nbytes for name in leg.parameters}
        with self._clock("all-reduce"):
            if isinstance(leg.wire, Largest):
                self._sparse.take(tensors, self._communicator)
                return
            encoded = ()
            if leg.wire:
                encoded = forms_of(leg.wire.kind, leg.parameters), leg.wire.key
            starts, self._starts = self._starts, {}
            for name, start in starts.items():
                tensors[name].sub_(start)
            mean = MeanOverRanks(nbytes, self._communicator, *encoded)
            for name in leg.parameters:
                mean.add(name, tensors[name])
            mean.finish()
            for name, start in starts.items():
                tensors[name].add_(start)

    def _arrive(self, trained: Tensors) -> None:
        with self._clock(HOP):
            early, spare = self._early, self._held.tensors
            self._finish_early()
            self._held, self._arriving = early.assemble(on_host(trained)), spare

    def _finish_early(self) -> None:
        early, self._early = self._early, None
        with self._communicator.waiting(
            "exchange"
        ):  # a background thread waits, so the rank is not idle
            self._clock.background += early.finish(self._communicator.traffic)


def _is_held_once(parameter: Parameter, deal: Partition) -> bool:
    """Return True if each element is with exactly one rank, so that the owners need no memory for
    it."""
    for term in parameter.pattern.terms():
        dealt = [factor.name in deal.units for axis in term.axes for factor in axis.factors]
        if sum(dealt) != 1:
            return False
    return True
