"""Elastic averaging SGD (Zhang, Choromanska and LeCun 2015, arXiv 1412.6651), at the end of each
round.

Each rank has its own weights x_i, which are drawn to a center. The owners have the center, which is
evaluated. With a = moving_rate / number of ranks:

    together       x_i    <- x_i - a (x_i - center)
                   center <- center + a * sum over ranks of (x_i - center)
    round-robin    the same, one rank after the other; a rank meets the center that the previous
                   rank moved
"""

import torch

from istmpi.engine.ask_owners import ask_owners
from istmpi.engine.slots import select_weights
from istmpi.methods.replicated import ReplicatedMethod


class EASGD(ReplicatedMethod):
    """A method in which every rank has its own network; the owners have the center at all times."""

    @torch.no_grad()
    def exchange(self, number: int) -> None:
        store = self.job.store
        rate = self.settings.moving_rate / self.job.communicator.size

        def serve(name: str, rows: torch.Tensor) -> torch.Tensor:
            """Move the center by all ranks' weights; return the center that each met.

            ``rows``: ``[rank, row, ...]``, as the result.
            """
            center = store.tensors[name]
            met = torch.empty_like(rows)
            for rank, weights in enumerate(rows):
                met[rank] = center
                if self.settings.order == "round-robin":
                    center += rate * (weights - center)
            if self.settings.order == "together":
                center += rate * (rows - met).sum(dim=0)
            return met

        tensors = {name: self.subnet.tensors[name] for name in select_weights(store.parameters)}
        replies = ask_owners(tensors, serve, store.owners, self.job.communicator, self.job.clock)
        for name, center in replies.items():
            tensors[name] -= rate * (tensors[name] - center)
