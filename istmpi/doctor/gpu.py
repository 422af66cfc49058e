"""GPUs, and whether the MPI library can read and write their memory.

istmpi itself takes values through host memory, so a library need not. One that cannot is likely to crash when it tries:
the echo runs in a child process, alone, before MPI is up here.
"""

import os
import subprocess
import sys
from pathlib import Path

import torch

from istmpi import comm
from istmpi.comm import Communicator
from istmpi.doctor.finding import Finding, green, yellow

_LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "HYDRA_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "OMPI_MCA_ess", "PRTE_", "SLURM_")
_SECONDS = 60


def echo_in_child() -> bool | None:
    """Tell whether MPI here returns device memory as it was; None without a device. Call it before MPI is up."""
    return child_echoes("cuda") if torch.cuda.is_available() else None


def child_echoes(device: str) -> bool:
    """Tell whether a process of its own survives an echo of a tensor of that device, and finds it unchanged."""
    # The child is no rank of this job: it must not find what the launcher left for this process.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_LAUNCHER_PREFIXES)}
    command = [sys.executable, "-m", "istmpi.doctor.gpu", device]
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    try:
        return subprocess.run(command, env=environment, timeout=_SECONDS, **nothing).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def echo(device: str) -> bool:
    """Send a tensor of 1 MiB to this process itself, between two buffers of the device, and compare."""
    sent = torch.arange(2**18, dtype=torch.int32, device=device)
    received = torch.zeros_like(sent)
    comm.send_to_self(sent, received)
    return bool((sent == received).all())


def devices(communicator: Communicator, aware: bool | None) -> list[Finding]:
    """The device of each rank; ``aware`` is the result of `echo_in_child`. Collective."""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count() * (aware is not None))]
    driver = Path("/proc/driver/nvidia/version").exists()
    with communicator.on_this_host() as local:
        per_rank = communicator.allgather((names, local.size, driver, aware))
    equipped = [rank for rank in per_rank if rank[0]]
    if not equipped:
        if any(driver for _, _, driver, _ in per_rank):
            cure = "Install a CUDA build of PyTorch, or check CUDA_VISIBLE_DEVICES."
            return [yellow("GPU", f"the hosts have NVIDIA GPUs that PyTorch {torch.__version__} cannot use", cure)]
        return [green("GPU", "none; ranks compute on the CPU")]
    kinds = ", ".join(sorted({name for names, *_ in equipped for name in names}))
    if len(equipped) < len(per_rank):
        cure = "Start ranks only where there is a GPU, or train all on the CPU: --set train.device=cpu."
        found = yellow("GPU", f"{kinds}, on {len(equipped)} of {len(per_rank)} ranks only", cure)
    elif shared := [(size, len(names)) for names, size, *_ in per_rank if size > len(names)]:
        size, count = max(shared)
        fact = f"{kinds}; up to {size} ranks of a host share {count} device{'s' * (count > 1)}"
        found = yellow("GPU", fact, "Start one rank for each device.")
    else:
        found = green("GPU", f"{kinds}: a device for each rank")
    fact = "MPI cannot take device memory; istmpi passes values through host memory"
    if all(aware for *_, aware in equipped):
        fact = "MPI returned device memory unchanged"
    return [found, green("CUDA MPI", fact)]


if __name__ == "__main__":
    sys.exit(not echo(sys.argv[1]))
