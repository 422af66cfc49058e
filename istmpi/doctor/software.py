"""The software of every rank, for a run's record, and a comparison of the ranks."""

import os
import platform
import re
from importlib import metadata
from typing import Any

from istmpi import __version__
from istmpi.comm import Communicator
from istmpi.doctor.finding import Finding, green, red, yellow

_COMPARED = ("istmpi", "torch", "numpy", "mpi4py", "h5py")
_SETTINGS = re.compile("SLURM_|OMPI_|PRTE_|PMIX_MCA_|MPICH_|I_MPI_|FI_|UCX_|OMP_|MKL_|CUDA_|NCCL_")
_SECRET = re.compile("JWT|TOKEN|KEY|SECRET|PASSWORD")


def machine() -> dict[str, Any]:
    """Versions, loaded modules and the variables that steer MPI and threads: all that a run's record needs."""
    packages = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    return {
        "istmpi": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": dict(sorted(packages.items())),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "settings": {
            key: value for key, value in sorted(os.environ.items()) if _SETTINGS.match(key) and not _SECRET.search(key)
        },
    }


def versions(communicator: Communicator) -> list[Finding]:
    """Compare the software of all ranks. Collective."""
    here = {"Python": platform.python_version()}
    for name in _COMPARED:
        try:
            here[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            here[name] = "unknown"
    return [compared(communicator.allgather(here))]


def compared(per_rank: list[dict[str, str]]) -> Finding:
    first = per_rank[0]
    odd = {
        name: next((rank, its[name]) for rank, its in enumerate(per_rank) if its[name] != version)
        for name, version in first.items()
        if any(its[name] != version for its in per_rank)
    }
    if not odd:
        return green("software", ", ".join(f"{name} {version}" for name, version in first.items()))
    fact = "; ".join(
        f"{name} is {first[name]} on rank 0 and {other} on rank {rank}" for name, (rank, other) in odd.items()
    )
    state = red if "istmpi" in odd else yellow
    return state("software", fact, "Use one environment on all hosts, on a shared folder or copied to each.")
