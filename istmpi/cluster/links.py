"""Measures the links of a cluster's ranks. Collective."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from istmpi.cluster import timing
from istmpi.cluster.figures import Link, fit
from istmpi.comm import Communicator, ring
from istmpi.comm.allreduce import MeanOverRanks

MESSAGE_BYTES = (2**10, 2**16, 2**20, 2**22, 2**24)


def measure_links(communicator: Communicator) -> tuple[dict[str, Link], dict[str, Any]]:
    """Return the links, and the measurements that each was fitted to."""
    links: dict[str, Link] = {}
    measured: dict[str, Any] = {}
    for name, points in _POINTS.items():
        links[name], measured[name] = fit_link(list(points(communicator)))
    return links, measured


@dataclass(frozen=True)
class Point:
    """A measured exchange: the messages and bytes of a rank, and the seconds that it took."""

    messages: int
    nbytes: float
    seconds: float


def fit_link(points: Sequence[Point]) -> tuple[Link, dict[str, Any]]:
    if not points:  # a single rank sends nothing
        return Link(0.0, 0.0), {}
    (latency, seconds_per_byte), error = fit(
        [[point.messages for point in points], [point.nbytes for point in points]],
        [point.seconds for point in points],
    )
    rows = [{"bytes": point.nbytes, "seconds": point.seconds} for point in points]
    return Link(latency, seconds_per_byte), {"points": rows, "median_relative_error": error}


def _measure_parts(
    communicator: Communicator, make_work: Callable[[Communicator, int], Callable[[], object]]
) -> Iterator[Point]:
    """Yield exchanges in which each rank sends every other one a part. ``make_work``: returns the
    exchange for parts of so many bytes."""
    others = communicator.size - 1
    if not others:
        return
    for size in MESSAGE_BYTES:
        nbytes = size // others or 1  # at least a byte, however many ranks there are
        seconds = timing.time_slowest(communicator, make_work(communicator, nbytes))
        yield Point(messages=others, nbytes=nbytes * others, seconds=seconds)


def _make_alltoallv(communicator: Communicator, nbytes: int) -> Callable[[], object]:
    ranks = communicator.size
    counts = [nbytes * (peer != communicator.rank) for peer in range(ranks)]
    starts = [nbytes * peer for peer in range(ranks)]
    send = (np.zeros(nbytes * ranks, dtype=np.uint8), counts, starts)
    receive = (np.zeros(nbytes * ranks, dtype=np.uint8), counts, starts)
    return partial(communicator.alltoallv, send, receive)


def _make_allgather(communicator: Communicator, nbytes: int) -> Callable[[], object]:
    part = np.zeros(nbytes, dtype=np.uint8)
    return partial(communicator.allgatherv, part, [nbytes] * communicator.size)


def _allreduce(communicator: Communicator) -> Iterator[Point]:
    ranks = communicator.size
    if ranks == 1:
        return
    for size in MESSAGE_BYTES:
        values = torch.zeros(size // 4)  # float32
        mean = MeanOverRanks({"values": values.nbytes}, communicator)

        def work(mean: MeanOverRanks = mean, values: torch.Tensor = values) -> None:
            mean.add("values", values)
            mean.finish()

        seconds = timing.time_slowest(communicator, work)
        # P-1 messages to add up and P-1 to spread, each 1/P of the values.
        nbytes = 2 * (ranks - 1) / ranks * size
        yield Point(messages=ring.count_waits(size, ranks), nbytes=nbytes, seconds=seconds)


_POINTS: Mapping[str, Callable[[Communicator], Iterator[Point]]] = {
    "alltoallv": partial(_measure_parts, make_work=_make_alltoallv),
    "allreduce": _allreduce,
    "allgather": partial(_measure_parts, make_work=_make_allgather),
}
"""The functions that measure links, by the links' names."""
