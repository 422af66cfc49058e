"""GPUs, and whether the MPI library can read and write their memory.

istmpi itself takes values through host memory, so a library that cannot is no fault; one that can is worth knowing.
A library that cannot is likely to crash when it tries: the echo runs in a child process, alone, before MPI is up here.
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
    """Whether this host's MPI returns device memory as it was sent; None without a device. Call before MPI is up."""
    return child_echoes("cuda") if torch.cuda.is_available() else None


def child_echoes(device: str) -> bool:
    """Whether a process of its own gets a tensor of that device back from MPI unchanged, and survives it."""
    # The child is no rank of this job: it must not find what the launcher left for this process.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_LAUNCHER_PREFIXES)}
    try:
        child = subprocess.run(
            [sys.executable, "-m", "istmpi.doctor.gpu", device],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return child.returncode == 0


def echo(device: str) -> bool:
    """Send a tensor of 1 MiB to this process itself, between two buffers of the device, and compare."""
    sent = torch.arange(2**18, dtype=torch.int32, device=device)
    received = torch.zeros_like(sent)
    comm.send_to_self(sent, received)
    return bool((sent == received).all())


def devices(communicator: Communicator, aware: bool | None) -> list[Finding]:
    """What each rank would compute on; ``aware`` is what `echo_in_child` returned. Collective."""
    names = (
        [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())] if aware is not None else []
    )
    driver = Path("/proc/driver/nvidia/version").exists()
    with communicator.on_this_host() as local:
        per_rank = communicator.allgather((names, local.size, driver, aware))
    with_devices = [one for one in per_rank if one[0]]
    if not with_devices:
        if any(driver for _, _, driver, _ in per_rank):
            cure = "Install a CUDA build of PyTorch, or check CUDA_VISIBLE_DEVICES."
            return [yellow("GPU", f"the hosts have NVIDIA GPUs that PyTorch {torch.__version__} cannot use", cure)]
        return [green("GPU", "none; ranks compute on the CPU")]
    kinds = ", ".join(sorted({name for names, *_ in with_devices for name in names}))
    if len(with_devices) < len(per_rank):
        cure = "Start ranks only where there is a GPU, or train all on the CPU: --set train.device=cpu."
        found = [yellow("GPU", f"{kinds}, on {len(with_devices)} of {len(per_rank)} ranks only", cure)]
    elif shared := [(size, len(names)) for names, size, *_ in per_rank if size > len(names)]:
        size, count = max(shared)
        fact = f"{kinds}; up to {size} ranks of a host share {count} device{'s' * (count > 1)}"
        found = [yellow("GPU", fact, "Start one rank for each device.")]
    else:
        found = [green("GPU", f"{kinds}: a device for each rank")]
    if all(aware for *_, aware in with_devices):
        return [*found, green("CUDA MPI", "MPI returned device memory unchanged")]
    return [*found, green("CUDA MPI", "MPI cannot take device memory; istmpi passes values through host memory")]


if __name__ == "__main__":
    sys.exit(not echo(sys.argv[1]))
