"""Checks the MPI library, and the cores and devices of its ranks."""

import os
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from istmpi import comm
from istmpi.comm import Communicator, list_neighbours
from istmpi.devices import fair_threads
from istmpi.doctor.finding import Finding, green, red, yellow
from istmpi.environment import list_cores
from istmpi.units import counted


class RankFacts(NamedTuple):
    """A rank's host, and what it may use there."""

    host: str
    cores: list[int]
    """The cores that the rank may use."""
    host_cores: int
    threads: int
    numa_nodes: int = 1
    """The number of NUMA nodes, such as sockets, in which these cores lie."""


NODES = Path("/sys/devices/system/node")


def count_numa_nodes(cores: Iterable[int], folder: Path = NODES) -> int:
    """Return the number of NUMA nodes of ``folder`` in which some of these cores lie; at least
    1."""
    usable = set(cores)
    count = 0
    for path in folder.glob("node[0-9]*/cpulist"):
        of_node: set[int] = set()
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            # A node of memory alone has no cores.
            if first:
                of_node.update(range(int(first), int(last or first) + 1))
        count += not of_node.isdisjoint(usable)
    return max(count, 1)


def check_library(communicator: Communicator) -> list[Finding]:
    """Compare the ranks' MPI libraries and thread levels. Collective."""
    per_rank = communicator.allgather((comm.library(), comm.thread_level()))
    names = sorted({name for name, _ in per_rank})
    # The rank that allows least decides for all.
    level = min((level for _, level in per_rank), key=comm.THREAD_LEVELS.index)
    if len(names) > 1:
        finding = red(
            "MPI",
            f"the ranks have different libraries: {', '.join(names)}",
            "Install the same library on all hosts.",
        )
    elif communicator.size == 1:
        fact = f"{names[0]}; a single rank (mpirun -n P istmpi doctor checks P ranks)"
        finding = green("MPI", fact)
    else:
        fact = f"{names[0]}, matching the launcher: {communicator.size} ranks see each other"
        finding = green("MPI", fact)
    if level == "multiple":
        fact = "any thread may call MPI: checkpoints are written in the background"
        return [finding, green("threads", fact)]
    fact = (
        f"the library offers thread level {level}: checkpoints cannot be written in the background"
    )
    cure = "Use a library with MPI_THREAD_MULTIPLE, and unset MPI4PY_RC_THREAD_LEVEL."
    return [finding, yellow("threads", fact, cure)]


def check_cores(communicator: Communicator) -> list[Finding]:
    """Check that ranks are spread evenly and share no core. Collective."""
    cores = list_cores()
    facts = RankFacts(
        host=socket.gethostname(),
        cores=cores,
        host_cores=os.cpu_count() or 1,
        threads=fair_threads(communicator),
        numa_nodes=count_numa_nodes(cores),
    )
    # Plain tuples travel between ranks, as all other values.
    per_rank = [RankFacts._make(values) for values in communicator.allgather(tuple(facts))]
    return [judge_spread(per_rank), judge_cores(per_rank)]


def judge_spread(per_rank: list[RankFacts]) -> Finding:
    """Return the finding on the number of ranks of each host."""
    ranks_on = Counter(facts.host for facts in per_rank)
    # A few hosts are enough to recognise the job.
    hosts = []
    for host, count in list(ranks_on.items())[:4]:
        hosts.append(f"{host} ({count})" if count > 1 else host)
    if len(ranks_on) > 4:
        hosts.append("...")
    fact = f"{len(per_rank)} on {counted(len(ranks_on), 'host')}: {', '.join(hosts)}"
    if len(set(ranks_on.values())) > 1:
        cure = "Start the same number of ranks on each host: the slowest sets the pace."
        return yellow("ranks", f"{fact}; unevenly spread", cure)
    return green("ranks", fact)


def judge_cores(per_rank: list[RankFacts]) -> Finding:
    """Return the finding on the cores of each host: shared by ranks, or not used by any."""
    crowded = []
    idle = []
    for host, count in Counter(facts.host for facts in per_rank).items():
        on_host = [facts for facts in per_rank if facts.host == host]
        used = len(set().union(*(facts.cores for facts in on_host)))
        total = on_host[0].host_cores
        if count > used:
            crowded.append(f"{count} ranks share {counted(used, 'core')} of {host}")
        elif 2 * used <= total:
            idle.append(f"{host} has {total} cores, but its ranks may use only {used}")
    threads = sorted({facts.threads for facts in per_rank})
    noun = "thread" if threads == [1] else "threads"
    fact = f"{' or '.join(map(str, threads))} {noun} a rank"
    if crowded:
        cure = "Start at most one rank for each core."
        return yellow("cores", f"{fact}; {'; '.join(crowded[:4])}", cure)
    if idle:
        cure = (
            "Bind ranks to all of a host's cores: bin/istmpi-run, mpirun --bind-to none, or "
            "srun --cpus-per-task=CORES."
        )
        return yellow("cores", f"{fact}; {'; '.join(idle[:4])}", cure)
    nodes = max(facts.numa_nodes for facts in per_rank)
    if nodes > 1:
        cure = (
            "Start a process for each of them, bound there, as a replica group: istmpi-run "
            f"--sockets {nodes} istmpi train --group-size host"
        )
        return yellow("cores", f"{fact}; a rank's cores lie in {nodes} NUMA nodes", cure)
    return green("cores", fact)


def check_devices(communicator: Communicator) -> list[Finding]:
    """Check that each rank has a GPU of its own, or none has one. Collective."""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    driver = Path("/proc/driver/nvidia/version").exists()
    per_rank = communicator.allgather((names, len(list_neighbours(communicator)), driver))
    equipped = [(names, size) for names, size, _ in per_rank if names]
    if not equipped:
        return [_judge_without_device(any(driver for _, _, driver in per_rank))]
    if len(equipped) < len(per_rank):
        cure = (
            "Start ranks only on hosts with a GPU, or train all on the CPU: --set train.device=cpu."
        )
        fact = f"{_name_kinds(equipped)}, on {len(equipped)} of {len(per_rank)} ranks only"
        return [yellow("GPU", fact, cure)]
    return [judge_devices(equipped)]


def judge_devices(equipped: Sequence[tuple[Sequence[str], int]]) -> Finding:
    """Judge devices. ``equipped``: for each process, the names of its host's devices, and the
    number of processes there."""
    kinds = _name_kinds(equipped)
    # Processes of a host that has fewer devices must share them.
    shared = [(size, len(names)) for names, size in equipped if size > len(names)]
    if shared:
        size, count = max(shared)
        fact = f"{kinds}; up to {size} ranks of a host share {counted(count, 'device')}"
        return yellow("GPU", fact, "Start one rank for each device.")
    idle = [(len(names), size) for names, size in equipped if size < len(names)]
    if idle:
        count, size = max(idle)
        fact = f"{kinds}; a host has {counted(count, 'device')} for {counted(size, 'rank')}"
        cure = f"Start {count} processes there, and train with --group-size host."
        return yellow("GPU", fact, cure)
    return green("GPU", f"{kinds}: a device for each process")


def _name_kinds(equipped: Iterable[tuple[Sequence[str], int]]) -> str:
    return ", ".join(sorted({name for names, _ in equipped for name in names}))


def _judge_without_device(driver: bool) -> Finding:
    if driver:
        fact = f"the hosts have NVIDIA GPUs that PyTorch {torch.__version__} cannot use"
        cure = "Install a CUDA build of PyTorch, or check CUDA_VISIBLE_DEVICES."
        return yellow("GPU", fact, cure)
    return green("GPU", "none; ranks use the CPU")
