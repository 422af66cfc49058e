"""Checks the MPI library, and the cores and devices of its ranks."""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

from istmpi import comm
from istmpi.comm import Communicator
from istmpi.devices import fair_threads, usable_cores
from istmpi.doctor.finding import Finding, green, red, yellow
from istmpi.units import counted


def library(communicator: Communicator) -> list[Finding]:
    per_rank = communicator.allgather((comm.library(), comm.thread_level()))
    names = sorted({name for name, _ in per_rank})
    level = min((level for _, level in per_rank), key=comm.THREAD_LEVELS.index)
    if len(names) > 1:
        finding = red(
            "MPI",
            f"the ranks have different libraries: {', '.join(names)}",
            "Install the same library on all hosts.",
        )
    elif communicator.size == 1:
        finding = green(
            "MPI", f"{names[0]}; a single rank (mpirun -n P istmpi doctor checks P ranks)"
        )
    else:
        finding = green(
            "MPI", f"{names[0]}, matching the launcher: {communicator.size} ranks see each other"
        )
    if level == "multiple":
        return [
            finding,
            green("threads", "any thread may call MPI: checkpoints are written in the background"),
        ]
    fact = (
        f"the library offers thread level {level}: checkpoints cannot be written in the background"
    )
    cure = "Use a library with MPI_THREAD_MULTIPLE, and unset MPI4PY_RC_THREAD_LEVEL."
    return [finding, yellow("threads", fact, cure)]


def cores(communicator: Communicator) -> list[Finding]:
    with communicator.on_this_host() as local:
        here = socket.gethostname(), usable_cores(), os.cpu_count() or 1, fair_threads(local)
    return list(spread(communicator.allgather(here)))


def spread(per_rank: list[tuple[str, list[int], int, int]]) -> Iterator[Finding]:
    """Yield the findings on ranks and cores. ``per_rank``: host, usable cores, cores of the host,
    and threads."""
    ranks_on = Counter(host for host, *_ in per_rank)
    shown = ", ".join(
        f"{host} ({count})" if count > 1 else host for host, count in list(ranks_on.items())[:4]
    )
    fact = f"{len(per_rank)} on {counted(len(ranks_on), 'host')}: {shown}{', ...' * (len(ranks_on) > 4)}"
    cure = "Start the same number of ranks on each host: the slowest sets the pace."
    uneven = len(set(ranks_on.values())) > 1
    yield yellow("ranks", f"{fact}; unevenly spread", cure) if uneven else green("ranks", fact)

    crowded, idle = [], []
    for host, count in ranks_on.items():
        used = {core for its_host, cores, *_ in per_rank if its_host == host for core in cores}
        total = next(total for its_host, _, total, _ in per_rank if its_host == host)
        if count > len(used):
            crowded.append(f"{count} ranks share {counted(len(used), 'core')} of {host}")
        elif 2 * len(used) <= total:
            idle.append(f"{host} has {total} cores, but its ranks may use only {len(used)}")
    threads = sorted({threads for *_, threads in per_rank})
    fact = f"{' or '.join(map(str, threads))} thread{'s' * (threads != [1])} a rank"
    cure = "Bind ranks to all of a host's cores: bin/istmpi-run, mpirun --bind-to none, or srun --cpus-per-task=CORES."
    if crowded:
        cure = "Start at most one rank for each core."
    problems = crowded or idle
    yield (
        yellow("cores", f"{fact}; {'; '.join(problems[:4])}", cure)
        if problems
        else green("cores", fact)
    )


def devices(communicator: Communicator) -> list[Finding]:
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    driver = Path("/proc/driver/nvidia/version").exists()
    with communicator.on_this_host() as local:
        per_rank = communicator.allgather((names, local.size, driver))
    equipped = [rank for rank in per_rank if rank[0]]
    if not equipped:
        if any(driver for *_, driver in per_rank):
            cure = "Install a CUDA build of PyTorch, or check CUDA_VISIBLE_DEVICES."
            return [
                yellow(
                    "GPU",
                    f"the hosts have NVIDIA GPUs that PyTorch {torch.__version__} cannot use",
                    cure,
                )
            ]
        return [green("GPU", "none; ranks use the CPU")]
    kinds = ", ".join(sorted({name for names, *_ in equipped for name in names}))
    if len(equipped) < len(per_rank):
        cure = (
            "Start ranks only on hosts with a GPU, or train all on the CPU: --set train.device=cpu."
        )
        return [yellow("GPU", f"{kinds}, on {len(equipped)} of {len(per_rank)} ranks only", cure)]
    if shared := [(size, len(names)) for names, size, _ in per_rank if size > len(names)]:
        size, count = max(shared)
        fact = f"{kinds}; up to {size} ranks of a host share {counted(count, 'device')}"
        return [yellow("GPU", fact, "Start one rank for each device.")]
    return [green("GPU", f"{kinds}: a device for each rank")]
