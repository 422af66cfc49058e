"""Exchanges whole parameters with the owners of their rows, who reply to each rank."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import torch

from istmpi.comm import Communicator
from istmpi.comm.clock import Clock
from istmpi.comm.host_copies import on_host
from istmpi.engine.layout import Owners
from istmpi.engine.route import PULL, PUSH
from istmpi.engine.store import Tensors


def ask_owners(
    tensors: Tensors,
    serve: Callable[[str, torch.Tensor], torch.Tensor],
    owners: Owners,
    communicator: Communicator,
    clock: Clock,
) -> dict[str, torch.Tensor]:
    """Send whole parameters to their owners, row by row, and return the owners' replies.

    ``serve(name, rows)``: the owner calls it with all ranks' values of its rows, ``[rank, row,
    ...]``. It returns the reply to each rank, in the same shape. The replies are whole parameters,
    too. Collective.
    """
    rank = communicator.rank
    replies = {}
    # One tensor at a time: an owner gets as many copies of its rows as there are ranks.
    for name, whole in on_host(tensors).items():
        parts = []
        for peer in range(communicator.size):
            rows = owners.rows(len(whole), peer)
            parts.append(whole[rows.start : rows.stop])
        with clock(PUSH):
            arrived = _exchange(parts, [parts[rank]] * communicator.size, communicator)
        served = serve(name, torch.stack(arrived))
        with clock(PULL):
            reply = torch.cat(_exchange(list(served), parts, communicator))
        replies[name] = reply.to(tensors[name].device)
    return replies


def _exchange(
    sent: Sequence[torch.Tensor], like: Sequence[torch.Tensor], communicator: Communicator
) -> list[torch.Tensor]:
    """Send a tensor to each rank; return one of each rank, of the shapes of ``like``."""
    outgoing = torch.cat([values.reshape(-1) for values in sent])
    incoming = torch.empty(sum(values.numel() for values in like), dtype=like[0].dtype)
    communicator.alltoallv(_as_message(outgoing, sent), _as_message(incoming, like))
    parts = incoming.split([values.numel() for values in like])
    return [part.view(values.shape) for part, values in zip(parts, like, strict=True)]


def _as_message(
    flat: torch.Tensor, parts: Sequence[torch.Tensor]
) -> tuple[np.ndarray, list[int], list[int]]:
    """Return a buffer for `Communicator.alltoallv`: its bytes, and each part's bytes and start."""
    counts = [part.nbytes for part in parts]
    starts = [0, *accumulate(counts)][:-1]
    return flat.view(torch.uint8).numpy(), counts, starts
