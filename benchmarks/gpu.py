"""A step, alone and in a replica group, copies to the host, and a hop through it and CUDA-aware MPI, on this device.

    mpirun -n 2 python -m benchmarks.gpu [--cuda-aware]

Without a GPU it measures the CPU, and says so. ``--cuda-aware`` hands GPU memory to MPI: a library that was not built
for it ends the job there (MPICH wants MPIR_CVAR_ENABLE_GPU=1, Open MPI a build with UCX and CUDA).
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional

from benchmarks.reporting import report
from benchmarks.scale.local_step import bare_network
from istmpi.cli.main import main
from istmpi.comm import world
from istmpi.comm.groups import WHOLE_HOST, Membership
from istmpi.comm.host_copies import copy_from_host, to_host
from istmpi.engine.replica_group import join_group

WIDTHS, BATCH, REPEATS, MEGABYTES = [4096, 2048, 2048, 10], 128, 11, 64


def benchmark() -> None:
    communicator = world()
    gpus = torch.cuda.device_count()
    device = torch.device(f"cuda:{communicator.rank % gpus}" if gpus else "cpu")
    name = torch.cuda.get_device_name(device) if gpus else "cpu: this host has no GPU that torch can use"

    def milliseconds(work: Callable[[], object]) -> float:
        times = []
        for _ in range(REPEATS + 1):
            communicator.barrier()
            start = time.perf_counter()
            work()
            torch.cuda.synchronize(device) if gpus else None
            times.append(max(communicator.allgather(time.perf_counter() - start)))
        return median(times[1:]) * 1e3

    network = bare_network(WIDTHS).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    x, y = torch.randn(BATCH, WIDTHS[0], device=device), torch.zeros(BATCH, dtype=torch.long, device=device)

    def step(autocast: bool) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            outputs = network(x)
        functional.cross_entropy(outputs.float(), y).backward()
        optimizer.step()

    peer = communicator.rank ^ 1
    sent, received = (torch.ones(MEGABYTES * 10**6 // 4, device=device) for _ in range(2))
    host = torch.empty(sent.shape, pin_memory=bool(gpus))

    def exchange(into: object, values: object) -> None:
        receive, send = communicator.mpi.Irecv(into, peer), communicator.mpi.Isend(values, peer)
        receive.Wait(), send.Wait()

    def through_host() -> None:
        if peer < communicator.size:
            exchange(host.numpy(), to_host(sent).numpy())
            copy_from_host({"": host}, {"": received})

    def from_device() -> None:
        if peer < communicator.size:  # mpi4py reads CUDA tensors' __cuda_array_interface__
            exchange(received, sent)

    group = join_group(Membership(communicator, WHOLE_HOST), device)
    averaging = group.wrap(network, may_skip=False) if group else network

    def step_together() -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(averaging(x), y)
        with group.averaging():
            loss.backward()
        optimizer.step()

    hop = f"a hop of {MEGABYTES} MB each way"
    works = {"a step, float32": lambda: step(False), "a step, autocast to bfloat16": lambda: step(True)}
    if group:
        works[f"a step of a replica group of {group.size}, {torch.distributed.get_backend()}"] = step_together
    if gpus:
        works[f"{MEGABYTES} MB to pageable memory"] = lambda: sent.cpu()
        works[f"{MEGABYTES} MB to page-locked memory"] = lambda: to_host(sent)
    if communicator.size > 1:
        works[f"{hop} through the host"] = through_host
    if communicator.size > 1 and gpus and "--cuda-aware" in sys.argv:
        works[f"{hop} from GPU memory"] = from_device
    rows = [{"what": what, "ms": milliseconds(work)} for what, work in works.items()]
    if group:
        group.close()
    if communicator.rank == 0:
        notes = f"{WIDTHS}, batches of {BATCH}; medians of {REPEATS}. What has no row was not measured."
        report("gpu", f"A step and a hop on {name}", rows, notes, f"mpirun -n {communicator.size}")


if __name__ == "__main__":
    main(benchmark)
