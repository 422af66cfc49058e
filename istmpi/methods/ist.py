"""Independent Subnet Training (arXiv 1910.02120, Algorithm 1).

Every round the units are dealt out anew; every rank trains the narrow network of its own units for J local steps, and
a weight is trained by the rank that was dealt both its ends. With nothing dealt out the same round is local SGD. An
outer step may follow, of what was trained.

A weight that somebody trains in the next round, too, goes to that rank straight from the one that trained it, or stays
where it is; only the others are flushed to their owners. The owners have all of them after `IST.publish`. An outer step
is the owners' work: with one, all weights are flushed to the owners in every round.

What is not dealt out, if it is much, stays on all ranks (`istmpi.methods.shared`), which may take an outer step of it.

With ``method.delay`` all that goes from rank to rank does so while local steps are taken (`istmpi.methods.ahead`): a
round then begins with everything there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from istmpi.comm.codec import Wire
from istmpi.data.batches import Batches
from istmpi.devices import copy_from_host, empty_on_host, on_host
from istmpi.engine.axes import Parameter, narrowed, with_slots
from istmpi.engine.layout import Replicated, in_whole, part_of, part_shape
from istmpi.engine.partition import Partition
from istmpi.engine.slots import without
from istmpi.engine.transfer import Transfer
from istmpi.errors import IstmpiError
from istmpi.methods.ahead import Ahead, Wires
from istmpi.methods.base import InterruptedRound, Job, Method
from istmpi.methods.held import Held
from istmpi.methods.shared import Shared
from istmpi.methods.spec import START, VELOCITY
from istmpi.models.architecture import Architecture
from istmpi.models.linear import release_gradients

if TYPE_CHECKING:
    from istmpi.config import Run


class IST(Method):
    """Deal, hop and pull; J local steps; push, mean and outer step."""

    def __init__(self, job: Job):
        super().__init__(job)
        self._held: Held | None = None
        by_ring = self.spec.shares_by_ring(job.run, job.architecture, job.communicator.size)
        self._shared = Shared(job, self.spec) if by_ring else None
        self._receive_buffers: dict[str, torch.Tensor] = {}
        self._deals: dict[int, Partition] = {}
        self._delay = self.spec.leaves_early(job.run, job.architecture, job.communicator.size)
        self._beside = job.communicator.duplicate() if self._delay else None
        self._leaving_buffers: dict[str, torch.Tensor] = {}
        self._ahead: Ahead | None = None

    @classmethod
    def check(cls, run: Run, task: str, batches: Batches, architecture: Architecture) -> None:
        wanted = run.method.partition
        if wanted != ():
            architecture.require_dealable(architecture.default_groups if wanted is None else wanted)

    def begin(self, round: int, resume_from: InterruptedRound) -> None:
        store, clock = self.job.store, self.job.clock
        wire = None if self._begins_exactly(round, resume_from) else self.wire
        if (wire or self._delay) and not self._held and self._stays:
            # What hops is rounded, what stays is not: a run that goes on does the same as one that went through.
            deal = self.deal(round if self._delay else round - 1)
            with clock("pull"):
                self._held = Held.fetched(deal, store, self.job.communicator)
        with clock("deal"):
            self._holders, self._next_deal = self.holders(round), self._deal_after(round)
            holders = self._holders
            held, moved = self._held, self._moved()
            staying = self._shared.tensors if self._shared else {}
            if self._delay:
                staying = {**staying, **held.tensors}
            pulled = {name: of for name, of in moved.items() if name not in staying}
            pulls = self._pulls(pulled, held and held.deal, wire and wire(round, "pull")) if pulled else []
            self.network = self.build(narrowed(holders.lengths, moved, holders.held(store.rank)))
            self.optimizer, self.tensors = self.new_optimizer(self.network, round, resume_from)
            trained = with_slots(self.job.architecture.parameters, self.optimizer_spec.slots)
            for name in trained.keys() - self.tensors.keys():  # of blocks that this rank does not have
                shape = part_shape(holders, trained[name], store.rank)
                self.tensors[name] = torch.empty(shape, dtype=getattr(torch, trained[name].dtype))
        arriving: dict[str, torch.Tensor] = {}
        if held and not self._delay:
            with clock("hop"):
                arriving = held.hop(
                    holders, self._receive_buffers, store, self.job.communicator, wire and wire(round, "hop")
                )
                self._held = Held(holders, dict(arriving))
        with clock("pull"):
            for name, values in staying.items():
                self.tensors[name].copy_(values)
            kept = {name: self.tensors[name] for name in pulled}
            arriving |= empty_on_host({name: tensor for name, tensor in kept.items() if name not in arriving})
            for pull in pulls:
                pull.run(store.tensors, arriving, self.job.communicator)
            own = {
                name: one if one.shape == kept[name].shape else part_of(one, holders, moved[name], store.rank)
                for name, one in resume_from.tensors.items()
            }
            copy_from_host(arriving | own, kept)
            if self._shared:
                self._shared.begin(self.tensors)
        self.outer.begin(dict(store.tensors))
        if self._delay and round + 1 not in self.job.run.last_rounds():
            wires = Wires(self.wire(round + 1, "hop"), self.wire(round + 1, "pull"), self.wire(round, "push"))
            buffers = self._receive_buffers, self._leaving_buffers
            self._ahead = Ahead(held, self._next_deal, store, self._beside, wires, *buffers)

    def asked_to_stop(self, local_step: int) -> bool:
        """As for every method; a round in which weights leave early, which ranks do together, is not stopped inside."""
        return super().asked_to_stop(local_step) and not self._ahead

    def after_update(self, done: int) -> None:
        if self._ahead and done == self.job.run.method.local_steps - self._delay:
            if self._sparse_rows:
                self._sparse_rows.finish()
            with self.job.clock("hop"):
                self._ahead.leave(self.tensors)

    def go_back(self) -> None:
        if self._ahead:  # what has come home by now is what diverged
            self._finish()

    def end(self, round: int) -> None:
        store, next_deal = self.job.store, self._next_deal
        if self._shared:
            self._shared.end(round, self.tensors, self.wire(round, "mean"))
        if self._ahead:
            self._arrive()
            return
        # What it has held is flushed to the owners whenever they are to have all: no other values than went home.
        wire = self.wire(round, "push", settles=next_deal is not None)
        push, trained = self._push(exclude=next_deal, wire=wire)
        self.outer.step(store.tensors, push.reached(self.outer.start))
        if next_deal:
            stay = [name for name, of in store.parameters.items() if of.pattern.dealt(next_deal.units)]
            self._held = Held(self._holders, {name: trained[name] for name in stay})

    def _arrive(self) -> None:
        """Have at hand what this rank trains next."""
        release_gradients(self.network)
        with self.job.clock("hop"):
            ahead = self._finish()
            self._receive_buffers = self._held.tensors
            self._held = ahead.put_together(on_host(self.tensors))
        self.optimizer, self.tensors = None, {}

    def _finish(self) -> Ahead:
        """Wait for what is on its way."""
        ahead, self._ahead = self._ahead, None
        communicator = self.job.communicator
        communicator.meet()
        with communicator.waiting("exchange"):  # or a rank would seem to do nothing, while a thread of it waits
            self.job.clock.background += ahead.finish(communicator.traffic)
        return ahead

    def suspend(self, round: int) -> Mapping[str, torch.Tensor]:
        if self._shared:
            self._shared.suspend()
        _, trained = self._push()
        self.outer.suspend(self.job.store.tensors)
        holders, rank = self._holders, self.job.store.rank
        shared = {name: of for name, of in self._moved().items() if holders.copies(of.pattern.names) > 1}
        return {
            name: trained[name].clone()
            if trained[name].shape == of.pattern.shape(holders.lengths)
            else in_whole(trained[name], holders, of, rank)
            for name, of in shared.items()
        }

    def _pulls(self, pulled: Mapping[str, Parameter], exclude: Partition | None, wire: Wire | None) -> list[Transfer]:
        """What brings this rank its part; what is to be alike on all ranks from then on travels as it is."""
        store, alike = self.job.store, self._shared.names if self._shared else ()
        exact = {name: of for name, of in pulled.items() if not wire or name in alike}
        rest = {name: of for name, of in pulled.items() if name not in exact}
        pulls = [(exact, None)] if exact or not wire else []
        pulls += [(rest, wire)] if rest else []
        return [
            Transfer(some, store.owners, self._holders, store.rank, exclude=exclude, wire=how) for some, how in pulls
        ]

    def _push(
        self, exclude: Partition | None = None, wire: Wire | None = None
    ) -> tuple[Transfer, dict[str, torch.Tensor]]:
        """Send home what was trained, but for what goes to the next holders; returns the transfer, and all trained."""
        store, moved = self.job.store, self._moved()
        if self._shared:
            moved = {name: of for name, of in moved.items() if name not in self._shared.tensors}
        release_gradients(self.network)
        with self.job.clock("push"):
            push = Transfer(moved, self._holders, store.owners, store.rank, None, self.weights(), exclude, wire)
            trained = on_host({name: self.tensors[name] for name in moved})
            push.run(trained, store.tensors, self.job.communicator)
        self.optimizer, self.tensors, self._held = None, {}, None
        return push, trained

    def publish(self) -> None:
        if self._held:
            self._held.flush_to_owners(self.job.store, self.job.communicator)
        if self._shared:
            self._shared.publish()

    @property
    def kept(self) -> tuple[str, ...]:
        return (*super().kept, START) if self._shared and not self._shared.outer.idle else super().kept

    def own(self) -> Mapping[str, torch.Tensor]:
        return self._shared.own() if self._shared else {}

    def _deal_after(self, round: int) -> Partition | None:
        return self.deal(round + 1) if self._stays else None

    @property
    def _stays(self) -> bool:
        job = self.job
        return self.spec.stays_with_holders(job.run, job.architecture, job.communicator.size)

    def _begins_exactly(self, round: int, resume_from: InterruptedRound) -> bool:
        if self.spec.wire(self.job.run) == "float32" or self._delay or (round == 0 and (self._stays or self._shared)):
            return True
        return self.job.communicator.allreduce_max(resume_from.local_steps) > 0

    def _moved(self) -> dict[str, Parameter]:
        parameters = self.job.store.parameters
        return {name: parameters[name] for name in without(parameters, VELOCITY, START)}

    def weights(self) -> list[int] | None:
        """How much each rank counts in the mean over holders."""
        return None

    def holders(self, round: int) -> Partition | Replicated:
        """Who trains what in a round: this round's deal."""
        return self.deal(round)

    def deal(self, round: int) -> Partition:
        """A round's deal, which is drawn once; the last two are kept."""
        if round not in self._deals:
            self._deals = {known: deal for known, deal in self._deals.items() if known == round - 1}
            self._deals[round] = self._draw(round)
        return self._deals[round]

    def _draw(self, round: int) -> Partition:
        """A round's deal, after all ranks have made sure that they drew the same."""
        job = self.job
        shares = job.shares.of(round) if job.shares else None
        partition = self.spec.deal(job.run, job.architecture, job.communicator.size, round, shares)
        first = job.communicator.broadcast_from_root(partition.digest)
        with job.communicator.agreed():
            if partition.digest != first:
                raise IstmpiError(
                    f"the deal of round {round + 1} differs from rank 0's; weights would be scrambled. "
                    f"Make sure that all ranks run the same versions of istmpi and NumPy."
                )
        return partition
