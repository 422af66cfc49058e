"""Exchanges in pieces (istmpi/comm/exchange.py) against ``MPI_Alltoallv`` of the same messages, in turns.

    mpirun -n 4 python -m benchmarks.transfer.exchange                                              over shared memory
    benchmarks/cluster --hosts 4 --rate 50mbit -- python -m benchmarks.transfer.exchange --rate 50  over a slow network

Messages between two ranks differ, as those of a deal do: 0.3 to 1.7 times the mean. With the line's rate the table has
also how much longer than the bytes of the busiest rank's line an exchange takes. Ratios are within a turn, the slowest
rank counts.
"""

import argparse
import sys
import time
from statistics import median

import numpy as np
from mpi4py import MPI

from benchmarks.reporting import report
from istmpi.comm import Communicator, world
from istmpi.comm.exchange import Staged, exchange_in_pieces


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.1, 1, 4], help="a message's, the mean")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--rate", type=float, help="of a line, Mbit/s")
    parser.add_argument("--name", help="of the result: exchange-NAME")
    options = parser.parse_args()
    comm = world()
    rows = [row(comm, megabytes, options.turns, options.rate) for megabytes in options.megabytes]
    if comm.rank == 0:
        notes = "Medians of turns, the least and the most in brackets. The emulated line lets a burst through at once."
        name = f"exchange-{options.name}" if options.name else "exchange"
        report(name, f"An exchange in pieces against MPI_Alltoallv, {comm.size} ranks", rows, notes)
    return 0


def row(comm: Communicator, megabytes: float, turns: int, rate: float | None) -> dict[str, str | float]:
    """Both ways in turns, for messages of one mean size."""
    counts = (np.random.default_rng(0).uniform(0.3, 1.7, (comm.size, comm.size)) * megabytes * 1e6).astype(int)
    np.fill_diagonal(counts, 0)
    send, receive = (_staged(part.tolist()) for part in (counts[comm.rank], counts[:, comm.rank]))
    ways = {
        "pieces": lambda: exchange_in_pieces(comm, send, receive),
        "alltoallv": lambda: comm.mpi.Alltoallv([*send, MPI.BYTE], [*receive, MPI.BYTE]),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, turns):
        for name in sorted(ways, reverse=bool(turn % 2)):
            comm.barrier()
            began = time.perf_counter()
            ways[name]()
            slowest = max(comm.allgather(time.perf_counter() - began))
            if turn >= 0:
                took[name].append(slowest)
    ratios = [mine / theirs for mine, theirs in zip(took["pieces"], took["alltoallv"])]
    found = {
        "MB a message": megabytes,
        "Alltoallv, s": f"{median(took['alltoallv']):.4f}",
        "pieces, s": f"{median(took['pieces']):.4f}",
        "pieces / Alltoallv": _spread(ratios),
    }
    if rate:
        line = max(counts.sum(axis=0).max(), counts.sum(axis=1).max()) / (rate * 1e6 / 8)
        found |= {f"{name} / line": _spread([one / line for one in took[name]]) for name in ("alltoallv", "pieces")}
    return found


def _staged(counts: list[int]) -> Staged:
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    return np.ones(sum(counts), dtype=np.uint8), counts, starts


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
