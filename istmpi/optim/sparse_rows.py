"""Plain SGD for embeddings of which a step reads few rows: a step updates only the rows that have a
gradient.

A row that no example reads still moves with momentum and shrinks with weight decay. Its updates are
postponed. They are a linear map of weight and momentum, the same for all rows last updated in the
same step. A row is settled, i.e. gets its postponed updates, when it is next read, or at the
round's end. Except for rounding, every row moves as in SGD.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from istmpi.optim.spec import OptimizerSettings

BLOCK = 2**16
"""The number of rows that are settled at a time at the end of a round."""


def find_bags(network: nn.Module) -> Iterator[nn.EmbeddingBag]:
    """Yield the embedding bags of a network that have no ``max_norm`` and share their weights with
    no module."""
    owners: dict[int, int] = {}
    for module in network.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for module in network.modules():
        if (
            # `max_norm` changes rows when they are read; a shared weight has other gradients, too.
            isinstance(module, nn.EmbeddingBag)
            and module.max_norm is None
            and owners[id(module.weight)] == 1
        ):
            yield module


class SparseRows:
    """Plain SGD of a network's embedding bags (`find_bags`). `finish` must be called before all
    rows of their weights are used."""

    def __init__(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, settings: OptimizerSettings
    ):
        """``settings`` has momentum and weight_decay. The optimizer's state must be in place
        already."""
        self._momentum = settings.momentum
        self._decay = settings.weight_decay
        weights = [bag.weight for bag in find_bags(network)]
        states = [optimizer.state.get(weight, {}).get("momentum_buffer") for weight in weights]
        self._tables = {id(weight): (weight, momentum) for weight, momentum in zip(weights, states)}
        self._moves = bool(self._momentum or self._decay)
        self._begin()

    def _begin(self) -> None:
        """Count steps from 0 again, once all rows are settled."""
        self._steps = 0
        self._maps = np.eye(2)[np.newaxis]
        """Maps of postponed updates, ``[steps + 1, 2, 2]``: map k is for rows last settled after k
        steps."""
        self._settled: dict[int, torch.Tensor] = {}
        """The number of steps that each row of a table, by its id, has taken."""
        if self._moves:
            self._settled = {
                key: torch.zeros(len(weight), dtype=torch.int64)
                for key, (weight, _) in self._tables.items()
            }

    @torch.no_grad()
    def settle_rows(self, weight: torch.Tensor, columns: torch.Tensor) -> None:
        """Settle the rows ``columns``, so that they have their values after the last step."""
        if self._moves and self._steps:
            self._settle(id(weight), columns.unique())

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update the rows that have a gradient; postpone the updates of other rows."""
        for key, (weight, momentum) in self._tables.items():
            if weight.grad is None:
                continue
            # A batch may read a row several times.
            gradient = weight.grad.coalesce()
            rows = gradient.indices()[0]
            change = gradient.values()
            # The optimizer, which steps next, skips parameters without a gradient.
            weight.grad = None
            if self._moves:
                self._settle(key, rows)
                # The step below is a usual one for these rows, so it is not postponed.
                self._settled[key][rows.cpu()] = self._steps + 1
            if self._decay:
                change = change.add(weight[rows], alpha=self._decay)
            if momentum is not None:
                change = momentum[rows].mul_(self._momentum).add_(change)
                momentum[rows] = change
            weight.index_add_(0, rows, change, alpha=-rate)
        if self._moves:
            # A step without a gradient, of (weight, momentum).
            postponed = np.array(
                [
                    [1 - rate * self._decay, -rate * self._momentum],
                    [self._decay, self._momentum],
                ]
            )
            # This step follows those that rows wait for; the identity is for rows settled now.
            self._maps = np.concatenate([postponed @ self._maps, np.eye(2)[np.newaxis]])
            self._steps += 1

    @torch.no_grad()
    def finish(self) -> None:
        if self._moves and self._steps:
            for key, settled in self._settled.items():
                behind = (settled < self._steps).nonzero()[:, 0]
                for start in range(0, len(behind), BLOCK):
                    self._settle(key, behind[start : start + BLOCK])
            self._begin()

    def _settle(self, key: int, rows: torch.Tensor) -> None:
        """Give the rows of a table, ``[n]``, the postponed updates that they lack."""
        weight, momentum = self._tables[key]
        since = self._settled[key][rows.cpu()]
        late = since < self._steps
        if not late.any():
            return
        # Rows in `_settled` are on the host, weights perhaps on a GPU.
        rows = rows[late.to(rows.device)]
        postponed = torch.from_numpy(self._maps[since[late].numpy()]).to(
            weight.device, weight.dtype
        )
        before = weight[rows]
        after = before * postponed[:, 0, 0, None]
        if momentum is not None:
            momentum_before = momentum[rows]
            after += momentum_before * postponed[:, 0, 1, None]
            # The second row of a map gives the momentum.
            from_weight = before * postponed[:, 1, 0, None]
            from_momentum = momentum_before * postponed[:, 1, 1, None]
            momentum[rows] = from_weight + from_momentum
        weight[rows] = after
        self._settled[key][rows.cpu()] = self._steps
