"""The newest values of every parameter, and their way to the ranks that train them and back.

A rank stores the rows that it owns (`istmpi.engine.store`). Between rounds, holders have newer
values of dealt parameters, and all ranks of common ones; `Shards.flush` brings them to the owners.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from istmpi.comm import Communicator
from istmpi.comm.allreduce import MeanOverRanks
from istmpi.comm.clock import Clock
from istmpi.comm.host_copies import copy_from_host, empty_on_host, on_host
from istmpi.comm.ledger import ROUNDS
from istmpi.engine.early import EarlyExchange, HeldParts, lend_rows, receive_buffers
from istmpi.engine.layout import TrainingLayout
from istmpi.engine.outer import Outer
from istmpi.engine.packed_sizes import Largest
from istmpi.engine.route import HOP, MEAN, PULL, PUSH, Leg, Route, select_dealt
from istmpi.engine.slots import Slot, select_weights, strip_slot
from istmpi.engine.sparse_mean import SparseMean
from istmpi.engine.store import ParameterStore, Tensors
from istmpi.engine.transfer import Transfer
from istmpi.engine.wire import choose_forms


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
        self.store = store
        self.route = route
        self.outer = outer
        self._communicator = communicator
        self._clock = clock
        self._restored = dict(restored)
        self.held: HeldParts | None = None
        """This rank's dealt parts; None if only owners have them."""
        self._common: dict[str, torch.Tensor] = {}
        """Common tensors, whole, on this rank's device; empty if owners have newer ones."""
        self.alike: dict[str, torch.Tensor] = {}
        """Slots with the same values on all ranks, whole, on this rank's device, such as an outer
        step's velocity."""
        self._mean_taken = True
        """True if all ranks have the same values of the common parameters."""
        self._reached: dict[str, torch.Tensor] = {}
        """A mask for each weight: True for the elements that a rank trained in this round."""
        # Buffers of the early exchange, which change places from round to round.
        self._arriving: dict[str, torch.Tensor] = {}
        self._leaving: dict[str, torch.Tensor] = {}
        self._sparse = SparseMean(route.largest) if route.largest else None
        self._slots: dict[str, torch.Tensor] = {}
        """Slots that only this rank has (`Route.own_slots`), on its device."""
        self._starts: dict[str, torch.Tensor] = {}
        """Weights at a round's start, on this rank's device (`Route.sends_changes`)."""
        self._own: dict[str, torch.Tensor] = {}
        """Copies of slots that differ between ranks, from a round's beginning."""
        # A background thread exchanges on it while this thread uses the other communicator.
        self._beside = communicator.duplicate(ROUNDS) if route.early else None
        self._early: EarlyExchange | None = None

    # ---- the beginning of a round

    def fetch(self, round: int, tensors: Tensors) -> None:
        """Fill ``tensors`` with the values with which this rank begins a round.

        If weights leave early in this round, the exchange for the next round begins here.
        """
        if self.store.seed is None:
            # A checkpoint has replaced the initial values.
            self.route = replace(self.route, drawn=frozenset())
        self._recover_held(round)
        targets = dict(tensors)
        if not self._common:
            self.alike = self._empty_alike(tensors)
            targets.update(self.alike)
        present = self._present(self.route.deal(round))
        arriving = self._receive(round, targets, present)
        for name, values in present.items():
            targets[name].copy_(values)
        self._fill(targets, arriving)
        if self.route.own_slots:
            self._restore_own_slots(tensors)
        self._note_start(targets, arriving)
        self._communicator.release_scratch()  # local steps need its memory
        if self.route.leaves_early(round):
            self._early = self._begin_early_exchange(round)

    def _recover_held(self, round: int) -> None:
        before = self.route.find_recovered(round)
        if self.held is None and before:
            self.held = self._pull_parts(round, before)

    def _empty_alike(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Return empty tensors for the slots that the owners store and ``tensors`` lack."""
        if not self.route.keeps_all:
            return {}
        missing = [name for name in self.store.parameters if name not in tensors]
        return {name: torch.empty_like(tensors[strip_slot(name)]) for name in missing}

    def _present(self, deal: TrainingLayout) -> dict[str, torch.Tensor]:
        """Return the tensors with which this rank begins a round and that it has already."""
        present = dict(self._common)
        if self.held and self.held.deal is deal:  # the early exchange brought them
            present.update(self.held.tensors)
        return present

    def _receive(self, round: int, targets: Tensors, present: Tensors) -> dict[str, torch.Tensor]:
        """Execute the legs that bring parameters; return what arrived, in host memory."""
        store = self.store
        deal = self.route.deal(round)
        held = self.held
        before = None
        if held and held.deal is not deal:
            before = held.deal
        arriving: dict[str, torch.Tensor] = {}
        parameters = {name: store.parameters[name] for name in self._names(targets)}
        for leg in self.route.into(parameters, round, before, present):
            with self._clock(leg.name):
                if leg.name == HOP and held:
                    buffers = {**self._arriving, **lend_rows(store, deal)}
                    arriving = receive_buffers(buffers, leg.parameters, deal, store.rank)
                    self._move(leg, held.tensors, arriving)
                    self.held = HeldParts(deal, dict(arriving))
                else:
                    missing = {}
                    for name in leg.parameters:
                        if name not in arriving:
                            missing[name] = targets[name]
                    arriving.update(empty_on_host(missing))
                    self._move(leg, store.tensors, arriving)
        absent = [name for name in parameters if name not in present]
        computed = self.route.computed_in(absent, round)
        arriving.update(empty_on_host({name: targets[name] for name in computed}))
        for name in computed:
            store.fill_initial(name, deal, arriving[name])
        return arriving

    def _fill(self, targets: Tensors, arriving: Tensors) -> None:
        """Copy what arrived, or the restored value in its place, to this rank's device."""
        if self._sparse and not self._common:
            weights = {}
            for name in select_weights(arriving):
                if self.route.is_common(name):
                    weights[name] = arriving[name]
            self._sparse.begin(weights, self._restored, targets)
        values = {**arriving, **self._restored}
        copy_from_host(values, {name: targets[name] for name in arriving})

    def _restore_own_slots(self, tensors: Tensors) -> None:
        self._slots = _slots_among(tensors)
        restored = {name: self._slots[name] for name in self._restored if name in self._slots}
        copy_from_host(self._restored, restored)
        self._own = _clone(self._slots)

    def _note_start(self, targets: Tensors, arriving: Tensors) -> None:
        """Keep the values of the round's start that the outer step, a change or a rollback
        needs."""
        names = [name for name in self._names(targets) if self.route.is_common(name)]
        common = {name: targets[name] for name in names}
        if self._sparse and self.route.every == 1:
            self._own = _clone(_slots_among(common))
        self.outer.begin(common or self.store.tensors)
        if not self.route.sends_changes:
            return
        if common:
            self._starts = self.outer.start
        else:
            self._starts = {name: targets[name].clone() for name in select_weights(arriving)}

    def _begin_early_exchange(self, round: int) -> EarlyExchange:
        if self.held is None or self._beside is None:
            raise AssertionError("weights leave early only where parts stay with their holders")
        return EarlyExchange(
            held=self.held,
            route=self.route,
            round=round,
            store=self.store,
            communicator=self._beside,
            arriving=self._arriving,
            leaving=self._leaving,
        )

    # ---- during a round

    @property
    def leaves_early(self) -> bool:
        return self._early is not None

    def send_early(self, trained: Tensors) -> None:
        if self._early:
            with self._clock(HOP):
                self._early.leave(trained)

    # ---- the end of a round

    def give(self, round: int, trained: Tensors) -> None:
        """Pass on the values trained in a round: to the mean if it is due, and to the owners.

        If weights left early, the exchange ends here instead of the push.
        """
        route = self.route
        moved = {name: self.store.parameters[name] for name in self._names(trained)}
        self._own = {}  # nothing is rolled back any more, and what follows needs that memory
        for leg in route.out_of(moved, round):
            if leg.name == MEAN:
                self._average(leg, trained)
            elif self._early:
                self._finish_and_hold(self._early, trained)
            else:
                self._push(round, leg, trained)
        self._restored = {}
        self._mean_taken = route.mean_is_due(round)
        self._common = {name: trained[name] for name in moved if route.is_common(name)}
        if route.every > 1:
            # Owners do not have these values before the next mean, so a copy is kept in case the
            # next round is dropped.
            self._common = _clone(self._common)

    def outer_step(self) -> None:
        """Take the outer step on a round's change, and write common parameters to their owners.

        If common parameters have no mean in this round, do nothing.
        """
        if not self._common:
            self.outer.step(self.store.tensors, self._reached)
        elif self._mean_taken:
            everything = {**self._common, **self.alike}
            self.outer.step(everything)
            if self._sparse:
                self._sparse.start_from(self._common)
            self.keep(everything)
        self._reached = {}

    # ---- between rounds

    def flush(self) -> None:
        """Bring the newest values to their owners."""
        if self.held and not self.held.flushed:
            self._flush_held(self.held)
        if not self._mean_taken and self._common:
            mean = _clone(self._common)
            self.average(mean)
            self.store.keep(on_host(mean))

    def _flush_held(self, held: HeldParts) -> None:
        store = self.store
        moved = {name: store.parameters[name] for name in held.tensors}
        # A held part may lie in rows of the store (`lend_rows`), which the transfer overwrites.
        lent = {tensor.data_ptr() for tensor in store.tensors.values()}
        for name, part in held.tensors.items():
            if part.data_ptr() in lent:
                held.tensors[name] = part.clone()
        transfer = Transfer(moved, held.deal, store.owners, store.rank, shared=False)
        transfer.run(held.tensors, store.tensors, self._communicator)
        held.flushed = True

    def values_on_all_ranks(self) -> dict[str, torch.Tensor]:
        """Return the common weights, whole, on this rank's device, if every rank has the owners'
        values of them now; otherwise nothing. Equal names on all ranks."""
        if not self._mean_taken:
            return {}
        return {name: self._common[name] for name in select_weights(self._common)}

    def rollback(self) -> None:
        """Go back to the values of the dropped round's beginning."""
        if self._early:
            self._finish_early(self._early)
        if self.route.every == 1:
            self._common = {}
            self._restored = on_host(self._own)
            self._slots = {}
            if self._sparse:
                self._restored.update(self._sparse.slots())
        self.outer.start = {}
        self._starts = {}

    def average(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace tensors, which are whole parameters, by their mean over ranks. Collective."""
        self._average(Leg(MEAN, {name: self.store.parameters[name] for name in tensors}), tensors)

    def of_this_rank(self) -> dict[str, torch.Tensor]:
        """Return the values that only this rank has and a checkpoint needs, whole, in host memory.

        Between two means, these are common parameters. `SparseMean` adds optimizer state, unsent
        changes and starts. Slots that no owner stores (`Route.own_slots`) count, too.
        """
        tensors = dict(self._restored) if self._mean_taken else on_host(self._common)
        if self._sparse and self._common:  # otherwise owners have them
            tensors.update(on_host(_slots_among(self._common)))
            tensors.update(on_host(self._sparse.slots(with_starts=not self._mean_taken)))
        tensors.update(on_host(self._slots))
        return tensors

    def keep(self, tensors: Tensors) -> None:
        """Copy the rows that this rank owns from whole tensors into the store."""
        with self._clock(PUSH):
            self.store.keep(on_host(tensors))

    # ---- moves

    def _names(self, targets: Tensors) -> list[str]:
        return [name for name in self.store.parameters if name in targets]

    def _move(self, leg: Leg, source: Tensors, target: Tensors) -> Transfer:
        transfer = Transfer.from_leg(leg, self.store.rank)
        transfer.run(source, target, self._communicator)
        return transfer

    def _pull_parts(self, round: int, deal: TrainingLayout) -> HeldParts:
        """Return this rank's part of a deal: computed initial values, and the others from their
        owners."""
        store = self.store
        dealt = select_dealt(store.parameters, deal)
        tensors = receive_buffers({}, dealt, deal, store.rank)
        computed = self.route.computed_in(dealt, round)
        for name in computed:
            store.fill_initial(name, deal, tensors[name])
        sent = {name: parameter for name, parameter in dealt.items() if name not in computed}
        with self._clock(PULL):
            pull = Transfer(sent, store.owners, deal, store.rank)
            pull.run(store.tensors, tensors, self._communicator)
        return HeldParts(deal, tensors, flushed=True)

    def _push(self, round: int, leg: Leg, trained: Tensors) -> None:
        with self._clock(leg.name):
            leaving = {name: trained[name] for name in leg.parameters}
            for name, start in self._starts.items():
                leaving[name] = trained[name] - start
            staged = on_host(leaving)
            push = self._move(leg, staged, self.store.tensors)
            for name in self._starts:
                # Elements that no rank trained go back to the start in the outer step.
                self.store.tensors[name] += self.outer.start[name]
            self._starts = {}
        self._reached = push.reached(self.outer.start)
        self.held = None
        if self.route.stays:
            deal = self.route.deal(round)
            staying = select_dealt(leg.parameters, deal)
            self.held = HeldParts(deal, {name: staged[name] for name in staying})

    def _average(self, leg: Leg, tensors: Tensors) -> None:
        with self._clock("all-reduce"):
            if isinstance(leg.wire, Largest):
                if self._sparse is None:
                    raise AssertionError("a leg of largest changes needs a sparse mean")
                self._sparse.take(tensors, self._communicator)
                return
            starts = self._starts
            self._starts = {}
            for name, start in starts.items():
                tensors[name].sub_(start)
            nbytes = {name: tensors[name].nbytes for name in leg.parameters}
            if leg.wire:
                forms = choose_forms(leg.wire.kind, leg.parameters)
                mean = MeanOverRanks(nbytes, self._communicator, forms, leg.wire.key)
            else:
                mean = MeanOverRanks(nbytes, self._communicator)
            for name in leg.parameters:
                mean.add(name, tensors[name])
            mean.finish()
            for name, start in starts.items():
                tensors[name].add_(start)

    def _finish_and_hold(self, early: EarlyExchange, trained: Tensors) -> None:
        """Finish the early exchange, and hold this rank's part of the next deal."""
        with self._clock(HOP):
            # The former parts become the buffers of the next exchange.
            spare = self.held.tensors if self.held else {}
            self._finish_early(early)
            self.held = early.assemble(on_host(trained))
            self._arriving = spare

    def _finish_early(self, early: EarlyExchange) -> None:
        self._early = None
        with self._communicator.waiting("exchange"):  # a background thread waits: the rank is busy
            self._clock.background += early.finish(self._communicator.traffic)


def _slots_among(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: values for name, values in tensors.items() if isinstance(name, Slot)}


def _clone(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: values.clone() for name, values in tensors.items()}
