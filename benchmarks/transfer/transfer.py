"""Pull and push of one round of IST against raw ``MPI_Alltoallv``s of the same bytes between the same ranks.

    mpirun -n 4 python -m benchmarks.transfer.transfer                                              over shared memory
    benchmarks/cluster --hosts 4 --rate 1gbit -- python -m benchmarks.transfer.transfer             over a slow network

The network is an MLP N-N-N-10, all hidden units dealt, N chosen so that each rank sends about so many MB in a pull.
Ours is what a round does around its local steps: plan, pull into fresh tensors, push. Raw is two Alltoallv calls on
buffers that were touched before. Staggered, on the slow network alone, is raw with rank r entering each call 30 ms
times r late, the wait included: calls that all ranks enter in one instant may hinder each other. They take turns;
ratios are within a turn.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from benchmarks.reporting import network, report
from istmpi.cli.main import main
from istmpi.comm import Communicator, world
from istmpi.devices import to_empty
from istmpi.engine.axes import narrow
from istmpi.engine.partition import Partition
from istmpi.engine.store import ParameterStore
from istmpi.engine.transfer import Transfer
from istmpi.models import mlp_network

STAGGER = 0.03
"""Seconds between two neighbouring ranks' entries into a staggered call."""


class Round:
    """Pull and push of one deal, ours and raw, on one rank."""

    def __init__(self, megabytes: float, communicator: Communicator):
        self.communicator, ranks = communicator, communicator.size
        sent_per_square = 4 * (ranks - 1) / ranks * (1 / ranks + 1 / ranks**2)
        self.width = int((megabytes * 1e6 / sent_per_square) ** 0.5) // 16 * 16
        self.architecture = mlp_network(self.width, (self.width, self.width), 10)
        self.store = ParameterStore(self.architecture.parameters, self.architecture.lengths, ranks, communicator.rank)
        for tensor in self.store.tensors.values():
            tensor.uniform_()
        lengths, groups = self.architecture.lengths, self.architecture.groups
        self.partition = Partition.draw(lengths, groups, ranks, seed=0, round=0)
        mine = narrow(lengths, self.architecture.parameters, self.partition.held(communicator.rank))
        with torch.device("meta"):
            network = self.architecture.build(mine)
        self._subnet = {name: tensor.detach() for name, tensor in to_empty(network, "cpu").named_parameters()}
        pull, push = self._plan()
        self.bytes_sent = pull.bytes_sent + push.bytes_sent
        self._counts = [[sum(block.nbytes for block in message) for message in pull.sends]]
        self._counts.append([sum(block.nbytes for block in message) for message in push.sends])
        for counts in self._counts:
            counts[communicator.rank] = 0
        self._buffers = [np.ones(sum(counts), dtype=np.uint8) for counts in self._counts]

    def ours(self) -> dict[str, float]:
        """Seconds of this rank by phase."""
        times = [time.perf_counter()]
        pull, push = self._plan()
        times.append(time.perf_counter())
        pull.run(self.store.tensors, self._subnet, self.communicator)
        times.append(time.perf_counter())
        push.run(self._subnet, self.store.tensors, self.communicator)
        times.append(time.perf_counter())
        return dict(zip(("plan", "pull", "push"), np.diff(times).tolist()))

    def raw(self, stagger: float = 0.0) -> dict[str, float]:
        """The same bytes in two calls, which rank r enters ``stagger * r`` seconds late; a push brings back a pull."""
        there, back = ((buffer, counts, _starts(counts)) for buffer, counts in zip(self._buffers, self._counts))
        for send, receive in ((there, back), (back, there)):
            if stagger:
                time.sleep(stagger * self.communicator.rank)
            self.communicator.alltoallv(send, receive)
        return {}

    def _plan(self) -> tuple[Transfer, Transfer]:
        parameters, owners, rank = self.architecture.parameters, self.store.owners, self.store.rank
        return Transfer(parameters, owners, self.partition, rank), Transfer(parameters, self.partition, owners, rank)


def emulated() -> bool:
    """Whether the ranks are on benchmarks/cluster; on shared memory 30 ms would be longer than the calls."""
    return network().startswith("emulated")


def _starts(counts: list[int]) -> list[int]:
    return [sum(counts[:peer]) for peer in range(len(counts))]


def _timed(work: Callable[[], dict[str, float]], communicator: Communicator) -> dict[str, float]:
    """Seconds until the last rank is done, in all and by phase of the slowest rank in each."""
    communicator.barrier()
    start = time.perf_counter()
    phases = work()
    communicator.barrier()
    phases["total"] = time.perf_counter() - start
    per_rank = communicator.allgather(phases)
    return {phase: max(ranks[phase] for ranks in per_rank) for phase in phases}


def measure(megabytes: float, repeats: int, communicator: Communicator) -> dict[str, float]:
    """One row of the table; checks that a push after a pull leaves every owned element as it was."""
    round = Round(megabytes, communicator)
    digest = {name: tensor.clone() for name, tensor in round.store.tensors.items() if tensor.numel() < 1e6}
    sums = {name: tensor.sum(dtype=torch.float64) for name, tensor in round.store.tensors.items()}
    contestants = {"ours": round.ours, "raw": round.raw}
    if emulated():
        contestants["staggered"] = lambda: round.raw(STAGGER)
    times = {name: [] for name in contestants}
    for repeat in range(repeats + 1):
        for name in np.roll(list(contestants), repeat):
            times[name].append(_timed(contestants[name], communicator))
    for runs in times.values():
        del runs[0]  # The first touch of the staging buffers, once in a run.
    assert all(torch.equal(round.store.tensors[name], values) for name, values in digest.items())
    assert all(round.store.tensors[name].sum(dtype=torch.float64) == value for name, value in sums.items())
    total = {name: np.array([run["total"] for run in runs]) for name, runs in times.items()}
    against = {name: total["ours"] / total[name] for name in contestants if name != "ours"}
    sent = max(communicator.allgather(round.bytes_sent))
    return {
        "MB sent in a pull and a push": sent / 1e6,
        "N": round.width,
        **{f"{phase} s": median(run[phase] for run in times["ours"]) for phase in ("plan", "pull", "push")},
        **{f"{name} s": float(np.median(seconds)) for name, seconds in total.items()},
        **{f"ours / {name}": float(np.median(ratios)) for name, ratios in against.items()},
        **{f"range of / {name}": f"{ratios.min():.2f} .. {ratios.max():.2f}" for name, ratios in against.items()},
        "turns": repeats,
    }


def benchmark() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="64,512", help="what a rank sends in a pull (64,512)")
    parser.add_argument("--repeats", default="9,5", help="turns for each of these, after one that does not count (9,5)")
    parser.add_argument("--name", help="of the results files (transfer-shared-memory or transfer-network)")
    options = parser.parse_args()
    communicator = world()
    torch.set_num_threads(1)
    rows = [
        measure(float(megabytes), int(repeats), communicator)
        for megabytes, repeats in zip(options.megabytes.split(","), options.repeats.split(","), strict=True)
    ]
    if communicator.rank == 0:
        report(
            options.name or ("transfer-network" if emulated() else "transfer-shared-memory"),
            f"Pull and push against raw Alltoallvs, {communicator.size} ranks, {network()}",
            rows,
            "Seconds are medians until the last rank is done; the phases are each the slowest rank's. Ratios are "
            "medians over turns. Staggered: raw, but rank r enters each call 30 ms times r late, the wait included.",
            f"benchmarks/cluster --hosts {communicator.size} --" if emulated() else f"mpirun -n {communicator.size}",
        )


if __name__ == "__main__":
    main(benchmark)
