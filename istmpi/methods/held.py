"""Weights that stay with those who trained them until the next deal, instead of going home to their owners.

In the next deal they go to their next holders straight from the last ones, or stay where they are.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import torch

from istmpi.comm import Communicator
from istmpi.comm.codec import Wire
from istmpi.engine.axes import Parameter
from istmpi.engine.layout import part_shape
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.engine.transfer import Transfer


@dataclass
class Held:
    """A rank's part of them, of which the owners' rows are out of date until `flush_to_owners`."""

    deal: Partition
    tensors: dict[str, torch.Tensor]
    """In host memory; with the optimizer state that is carried along."""
    flushed: bool = False

    @staticmethod
    def fetched(deal: Partition, store: ParameterStore, communicator: Communicator) -> "Held":
        """What its ranks had of a deal, from the owners, who have all of it. Collective."""
        parameters = {name: of for name, of in store.parameters.items() if of.pattern.dealt(deal.units)}
        tensors = {
            name: torch.empty(part_shape(deal, of, store.rank), dtype=store.tensors[name].dtype)
            for name, of in parameters.items()
        }
        Transfer(parameters, store.owners, deal, store.rank).run(store.tensors, tensors, communicator)
        return Held(deal, tensors, flushed=True)

    def hop(
        self,
        holders: Partition,
        buffers: MutableMapping[str, torch.Tensor],
        store: ParameterStore,
        communicator: Communicator,
        wire: Wire | None,
    ) -> dict[str, torch.Tensor]:
        """This rank's part of them in another deal, as far as anybody has it. Collective.

        It lies in ``buffers``, which are enlarged where they must be, and not in the memory that the weights leave:
        that is still read while they arrive.
        """
        parameters = self._parameters(store)
        arriving = room(buffers, parameters, holders, store.rank)
        Transfer(parameters, self.deal, holders, store.rank, wire=wire).run(self.tensors, arriving, communicator)
        return arriving

    def flush_to_owners(self, store: ParameterStore, communicator: Communicator) -> None:
        """Have them in the owners' rows as well. Collective."""
        if not self.flushed:
            home = Transfer(self._parameters(store), self.deal, store.owners, store.rank)
            home.run(self.tensors, store.tensors, communicator)
            self.flushed = True

    def _parameters(self, store: ParameterStore) -> dict[str, Parameter]:
        return {name: store.parameters[name] for name in self.tensors}


def room(
    buffers: MutableMapping[str, torch.Tensor], parameters: Mapping[str, Parameter], deal: Partition, rank: int
) -> dict[str, torch.Tensor]:
    """Host memory for a rank's part of these in a deal: out of ``buffers``, which are exchanged where they must be."""
    for name, of in parameters.items():
        shape = part_shape(deal, of, rank)
        if name not in buffers or buffers[name].shape != shape:
            buffers[name] = torch.empty(shape, dtype=getattr(torch, of.dtype))
    return {name: buffers[name] for name in parameters}
