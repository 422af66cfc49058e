"""Computes leaves whose weights' rows are spread over ranks that have the same or different
examples."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from istmpi.comm import Communicator
from istmpi.engine.store import ParameterStore
from istmpi.models.leaves import Leaf
from istmpi.models.norms import Calibrated, Moments


class SameExamples:
    """The exchange if all ranks have the same examples: a rank uses its rows of weights; outputs
    are gathered or added.

    All ranks call the same leaves in the same order, even if a network branches on values: the
    values are the same.
    """

    def __init__(self, store: ParameterStore, communicator: Communicator):
        self._store, self._communicator = store, communicator

    def rows_of(self, leaf: Leaf) -> Callable[..., torch.Tensor]:
        """Return a forward function of a leaf that computes only the outputs of this rank's
        rows."""
        rows = owned_rows(leaf, self._store)[self._store.rank]
        values = {key: self._store.tensors[name] for key, name in leaf.names.items()}
        return lambda *inputs, **named: leaf.outputs(rows, values, *inputs, **named)

    def forward_of(self, leaf: Leaf) -> Callable[..., torch.Tensor]:
        owned, of_rows = owned_rows(leaf, self._store), self.rows_of(leaf)
        rows_here = owned[self._store.rank]

        def gathered(*inputs: Any, **named: Any) -> torch.Tensor:
            outputs = of_rows(*inputs, **named).movedim(leaf.axis, 0)
            shape = outputs.shape[1:]
            counts = [len(rows) * shape.numel() for rows in owned]
            flat = self._communicator.allgatherv(outputs.contiguous().view(-1).numpy(), counts)
            whole = torch.from_numpy(flat).view(owned[-1].stop, *shape).movedim(0, leaf.axis)
            return whole.contiguous()  # as the layer returns it: a ``view`` may need that

        def looked_up(input: torch.Tensor) -> torch.Tensor:
            # Each row that is looked up is sent once, and no other.
            numbers, place = torch.unique(input, return_inverse=True)
            ends = torch.searchsorted(
                numbers, numbers.new_tensor([rows.stop for rows in owned])
            ).tolist()
            counts = [end - start for start, end in zip([0, *ends], ends)]
            here = numbers[ends[self._store.rank] - counts[self._store.rank] :][
                : counts[self._store.rank]
            ]
            looked = functional.embedding(
                here - rows_here.start, self._store.tensors[leaf.names["weight"]]
            )
            width = looked.shape[1]
            flat = self._communicator.allgatherv(
                looked.view(-1).numpy(), [count * width for count in counts]
            )
            return functional.embedding(place, torch.from_numpy(flat).view(-1, width))

        def added_up(*inputs: Any, **named: Any) -> torch.Tensor:
            return torch.from_numpy(
                self._communicator.allreduce_sum(of_rows(*inputs, **named).numpy())
            )

        if isinstance(leaf.module, nn.Embedding):
            return looked_up
        return added_up if leaf.of_inputs else gathered


class OwnExamples:
    """The exchange if each rank has its own examples: owner after owner sends its rows of weights
    to all ranks.

    All ranks take part in each call of a leaf, even a rank at another leaf or without examples
    left. The first leaf that a rank waits for is served, until no rank waits. Moments of
    normalisations are served after all leaves.
    """

    def __init__(self, store: ParameterStore, communicator: Communicator):
        self._store, self._communicator = store, communicator
        self._services: list[Callable[[Any], Any]] = []
        self.moments: dict[str, list[Moments]] = {}
        """The means and variances of all calls of each batch normalisation, on every rank."""

    def forward_of(self, leaf: Leaf) -> Callable[..., torch.Tensor]:
        number = len(self._services)
        owned = owned_rows(leaf, self._store)

        def bring(call: tuple[tuple[Any, ...], Mapping[str, Any]] | None) -> torch.Tensor | None:
            parts = []
            for owner, rows in enumerate(owned):
                if not rows:
                    continue
                values = {}
                for key, name in leaf.names.items():
                    local = self._store.tensors[name]
                    values[key] = (
                        local
                        if owner == self._store.rank
                        else local.new_empty(len(rows), *local.shape[1:])
                    )
                    self._communicator.broadcast(values[key].numpy(), owner)
                if call:
                    parts.append(leaf.outputs(rows, values, *call[0], **call[1]))
            return leaf.join(parts) if call else None

        self._services.append(bring)
        return lambda *inputs, **named: self._request(number, (inputs, named))

    def moments_of(
        self, name: str, layer: Calibrated, dtype: torch.dtype
    ) -> Callable[[torch.Tensor], Moments]:
        """Return a function that computes moments of a layer's units over all ranks, and adds them
        to ``moments``."""
        number = len(self._services)

        def add_up(x: torch.Tensor | None) -> Moments:
            x = torch.empty(0, layer.num_features, 1, dtype=dtype) if x is None else x
            axes, total = [0, *range(2, x.ndim)], self._communicator.allreduce_sum
            count = float(total(np.array(x.numel() // layer.num_features)))
            mean = torch.from_numpy(total(x.sum(dim=axes).cpu().numpy())).to(x.device) / count
            centre = (
                x.mean(dim=axes[1:], keepdim=True)
                if layer.each
                else mean.view(-1, *[1] * (x.ndim - 2))
            )
            variance = (
                torch.from_numpy(total(((x - centre) ** 2).sum(dim=axes).cpu().numpy())).to(
                    x.device
                )
                / count
            )
            self.moments.setdefault(name, []).append((mean, variance))
            return mean, variance

        self._services.append(add_up)
        return lambda x: self._request(number, x)

    def finish(self) -> None:
        """Serve the other ranks' calls until no rank waits. Collective."""
        self._request(None, None)

    def _request(self, number: int | None, what: Any) -> Any:
        while True:
            numbers = [other for other in self._communicator.allgather(number) if other is not None]
            if not numbers:
                return None
            served = min(numbers)
            result = self._services[served](what if served == number else None)
            if served == number:
                return result


def owned_rows(leaf: Leaf, store: ParameterStore) -> list[range]:
    length = store.parameters[leaf.names["weight"]].pattern.axes[0].length(store.owners.lengths)
    return [store.owners.rows(length, rank) for rank in range(store.owners.ranks)]
