"""Computes leaves whose weights' rows are spread over ranks, with the same or other examples."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from istmpi.comm import Communicator
from istmpi.comm.allreduce import add_up_together
from istmpi.engine.store import ParameterStore
from istmpi.network.leaves import Leaf
from istmpi.network.norms import Calibrated, Moments


class SameExamples:
    """The exchange if all ranks have the same examples.

    A rank uses its rows of weights; outputs are gathered or added. All ranks call the same leaves
    in the same order, even if a network branches on values: the values are the same.
    """

    def __init__(self, store: ParameterStore, communicator: Communicator):
        self._store = store
        self._communicator = communicator

    def make_row_forward(self, leaf: Leaf) -> Callable[..., torch.Tensor]:
        """Return a forward function of a leaf for the outputs of this rank's rows alone."""
        rows = list_owned_rows(leaf, self._store)[self._store.rank]
        values = {key: self._store.tensors[name] for key, name in leaf.names.items()}
        return lambda *inputs, **named: leaf.outputs(rows, values, *inputs, **named)

    def make_forward(self, leaf: Leaf) -> Callable[..., torch.Tensor]:
        """Return a forward function of a leaf for all its outputs."""
        if isinstance(leaf.module, nn.Embedding):
            return self._look_up(leaf)
        if leaf.of_inputs:
            return self._add_up(leaf)
        return self._gather(leaf)

    def _gather(self, leaf: Leaf) -> Callable[..., torch.Tensor]:
        """Return a forward function that gathers the outputs of all ranks' rows."""
        owned = list_owned_rows(leaf, self._store)
        compute = self.make_row_forward(leaf)

        def forward(*inputs: Any, **named: Any) -> torch.Tensor:
            outputs = compute(*inputs, **named).movedim(leaf.axis, 0)
            shape = outputs.shape[1:]
            counts = [len(rows) * shape.numel() for rows in owned]
            flat = self._communicator.allgatherv(outputs.contiguous().view(-1).numpy(), counts)
            whole = torch.from_numpy(flat).view(owned[-1].stop, *shape).movedim(0, leaf.axis)
            return whole.contiguous()  # as the layer returns it: a ``view`` may need that

        return forward

    def _look_up(self, leaf: Leaf) -> Callable[..., torch.Tensor]:
        """Return a forward function of an embedding that gathers the rows which are looked up."""
        owned = list_owned_rows(leaf, self._store)
        rank = self._store.rank

        def forward(input: torch.Tensor) -> torch.Tensor:
            # Each row that is looked up is sent once, and no other.
            numbers, place = torch.unique(input, return_inverse=True)
            stops = numbers.new_tensor([rows.stop for rows in owned])
            ends = torch.searchsorted(numbers, stops).tolist()
            starts = [0, *ends[:-1]]
            weight = self._store.tensors[leaf.names["weight"]]
            numbers_here = numbers[starts[rank] : ends[rank]] - owned[rank].start
            rows = functional.embedding(numbers_here, weight)
            width = rows.shape[1]
            counts = [(end - start) * width for start, end in zip(starts, ends, strict=True)]
            flat = self._communicator.allgatherv(rows.view(-1).numpy(), counts)
            return functional.embedding(place, torch.from_numpy(flat).view(-1, width))

        return forward

    def _add_up(self, leaf: Leaf) -> Callable[..., torch.Tensor]:
        """Return a forward function that adds up what each rank's rows contribute."""
        compute = self.make_row_forward(leaf)

        def forward(*inputs: Any, **named: Any) -> torch.Tensor:
            outputs = compute(*inputs, **named).numpy()
            return torch.from_numpy(self._communicator.allreduce_sum(outputs))

        return forward


class OwnExamples:
    """The exchange if each rank has its own examples.

    Owner after owner sends its rows of weights to all ranks. All ranks take part in each call of a
    leaf, even a rank at another leaf or without examples left. The first leaf that a rank waits for
    is served, until no rank waits. Moments of normalisations are served after all leaves.
    """

    def __init__(self, store: ParameterStore, communicator: Communicator):
        self._store = store
        self._communicator = communicator
        self._services: list[Callable[[Any], Any]] = []
        """A function for each leaf and normalisation, which all ranks call together. It gets the
        inputs on a rank that asked for it, and None on others."""
        self.moments: dict[str, list[Moments]] = {}
        """The means and variances of all calls of each batch normalisation, on every rank."""

    def make_forward(self, leaf: Leaf) -> Callable[..., torch.Tensor]:
        """Return a forward function of a leaf, which gets the rows of one owner at a time."""
        number = len(self._services)
        owned = list_owned_rows(leaf, self._store)

        def bring(call: tuple[tuple[Any, ...], Mapping[str, Any]] | None) -> torch.Tensor | None:
            parts = []
            for owner, rows in enumerate(owned):
                if not rows:  # more ranks than rows
                    continue
                values = self._bring_rows(leaf, owner, rows)
                if call:
                    inputs, named = call
                    parts.append(leaf.outputs(rows, values, *inputs, **named))
            if call is None:
                return None
            return leaf.join(parts)

        self._services.append(bring)
        return lambda *inputs, **named: self._request(number, (inputs, named))

    def _bring_rows(self, leaf: Leaf, owner: int, rows: range) -> dict[str, torch.Tensor]:
        """Return an owner's rows of a leaf's weight and bias, on all ranks."""
        values = {}
        for key, name in leaf.names.items():
            local = self._store.tensors[name]
            if owner != self._store.rank:
                local = local.new_empty(len(rows), *local.shape[1:])
            self._communicator.broadcast(local.numpy(), owner)
            values[key] = local
        return values

    def make_moments(
        self, name: str, layer: Calibrated, dtype: torch.dtype
    ) -> Callable[[torch.Tensor], Moments]:
        """Return a function that computes moments of a layer's units over all ranks.

        The function adds them to ``moments``.
        """
        number = len(self._services)

        def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
            total = self._communicator.allreduce_sum(values.cpu().numpy())
            return torch.from_numpy(total).to(values.device)

        def add_up(x: torch.Tensor | None) -> Moments:
            if x is None:  # this rank only serves the others
                x = torch.empty(0, layer.num_features, 1, dtype=dtype)
            axes = [0, *range(2, x.ndim)]
            positions = np.array(x.numel() // layer.num_features)
            sums = x.sum(dim=axes).cpu().numpy()
            all_positions, all_sums = add_up_together(self._communicator, [positions, sums])
            count = float(all_positions)
            mean = torch.from_numpy(all_sums).to(x.device) / count
            if layer.each:
                centre = x.mean(dim=axes[1:], keepdim=True)
            else:
                centre = mean.view(-1, *[1] * (x.ndim - 2))
            # Two passes: the mean of squares less the squared mean would lose digits.
            variance = sum_over_ranks(((x - centre) ** 2).sum(dim=axes)) / count
            self.moments.setdefault(name, []).append((mean, variance))
            return mean, variance

        self._services.append(add_up)
        return lambda x: self._request(number, x)

    def finish(self) -> None:
        """Serve the other ranks' calls until no rank waits. Collective."""
        self._request(None, None)

    def _request(self, number: int | None, inputs: Any) -> Any:
        """Return a service's result for inputs, once it is this service's turn.

        Return None if no rank waits for a service any more.
        """
        while True:
            waiting = self._communicator.allgather(number)
            numbers = [other for other in waiting if other is not None]
            if not numbers:
                return None
            # The earliest service of any waiting rank, so that no two ranks wait for each other.
            served = min(numbers)
            if served == number:
                return self._services[served](inputs)
            self._services[served](None)


def list_owned_rows(leaf: Leaf, store: ParameterStore) -> list[range]:
    """Return each rank's rows of a leaf's weight."""
    first_axis, *_ = store.parameters[leaf.names["weight"]].pattern.axes
    length = first_axis.length(store.owners.lengths)
    return [store.owners.rows(length, rank) for rank in range(store.owners.ranks)]
