"""The mean over ranks by istmpi's ring, by the MPI library's Allreduce and by PyTorch's gloo, on the same network.

    benchmarks/cluster --hosts 4 --rate 500mbit -- python benchmarks/allreduce.py
    mpirun -n 4 python benchmarks/allreduce.py

The tensors are those of an MLP 4096-N-10. Contestants take turns, each turn in another order; ratios are within a turn.
The line rate is the time in which a rank's 2(P-1)/P of the bytes fit through its cable.
"""

import argparse
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from reporting import network, report

from istmpi.cli.main import main
from istmpi.comm import Communicator, world
from istmpi.comm.allreduce import MeanOverRanks
from istmpi.models import mlp_network


def join_gloo(communicator: Communicator) -> None:
    """Have the same ranks in torch.distributed, on the same interface."""
    emulated = network().startswith("emulated")
    if emulated:
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    address = communicator.broadcast_from_root(_address() if emulated else "127.0.0.1")
    with socket.socket() as free:
        free.bind(("", 0))
        port = communicator.broadcast_from_root(free.getsockname()[1])
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}:{port}",
        rank=communicator.rank,
        world_size=communicator.size,
        timeout=timedelta(seconds=120),
    )


def _address() -> str:
    """This host's address on the bridge of benchmarks/cluster."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.0.0.1", 9))
        return probe.getsockname()[0]


def contestants(tensors: dict[str, torch.Tensor], communicator: Communicator) -> dict[str, Callable[[], None]]:
    mean = MeanOverRanks({name: tensor.nbytes for name, tensor in tensors.items()}, communicator)

    def ours() -> None:
        for name in reversed(tensors):
            mean.add(name, tensors[name])
        mean.finish()

    def library() -> None:
        from mpi4py import MPI

        for tensor in tensors.values():
            communicator.mpi.Allreduce(MPI.IN_PLACE, tensor.view(-1).numpy())
            tensor /= communicator.size

    def gloo() -> None:
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors.values()]:
            work.wait()
        for tensor in tensors.values():
            tensor /= communicator.size

    return {"ours": ours, "MPI": library, "gloo": gloo}


def measure(width: int, repeats: int, communicator: Communicator) -> dict[str, str | int | float]:
    """One row of the table."""
    ranks = communicator.size
    shapes = {
        name: one.pattern.shape({"features": 4096, "hidden1": width, "labels": 10})
        for name, one in mlp_network(4096, (width,), 10).parameters.items()
    }
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    times: dict[str, list[float]] = {}
    works = contestants(tensors, communicator)
    for repeat in range(repeats + 1):
        for name in np.roll(list(works), repeat):
            communicator.barrier()
            start = time.perf_counter()
            works[name]()
            times.setdefault(name, []).append(max(communicator.allgather(time.perf_counter() - start)))
    sent = 2 * (ranks - 1) / ranks * nbytes
    seconds = {name: np.array(its[1:]) for name, its in times.items()}
    row: dict[str, str | int | float] = {"MB": nbytes / 1e6, "MB sent by a rank": sent / 1e6, "turns": repeats}
    row |= {f"{name} s": median(its) for name, its in seconds.items()}
    row |= {f"{name} Mbit/s": 8e-6 * sent / median(its) for name, its in seconds.items()}
    row |= {f"ours / {name}": median(seconds["ours"] / its) for name, its in seconds.items() if name != "ours"}
    return row


def benchmark() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="512,4096", help="N: 8 and 67 MB (512,4096)")
    parser.add_argument("--repeats", type=int, default=5, help="turns, after one that does not count (5)")
    parser.add_argument("--name", default="allreduce", help="of the results files (allreduce)")
    options = parser.parse_args()
    communicator = world()
    torch.set_num_threads(1)
    join_gloo(communicator)
    rows = [measure(int(width), options.repeats, communicator) for width in options.widths.split(",")]
    dist.destroy_process_group()
    if communicator.rank == 0:
        report(
            options.name,
            f"The mean over {communicator.size} ranks, {network()}",
            rows,
            "Seconds are medians until the last rank is done, ratios medians over turns; Mbit/s is what a rank sends "
            "in that time, without headers.",
            f"benchmarks/cluster --hosts {communicator.size} --"
            if network().startswith("emulated")
            else f"mpirun -n {communicator.size}",
        )


if __name__ == "__main__":
    main(benchmark)
