"""The software of every rank: what goes into a run's record, and whether the ranks agree."""

import os
import platform
from importlib import metadata
from typing import Any

from istmpi import __version__
from istmpi.comm import Communicator
from istmpi.doctor.finding import Finding, green, red, yellow

_TOLD = ("istmpi", "torch", "numpy", "mpi4py", "h5py")
_SETTINGS = (
    "SLURM_",
    "OMPI_",
    "PRTE_",
    "PMIX_MCA_",
    "MPICH_",
    "I_MPI_",
    "FI_",
    "UCX_",
    "OMP_",
    "MKL_",
    "CUDA_",
    "NCCL_",
)

_SECRET = ("JWT", "TOKEN", "KEY", "SECRET", "PASSWORD")


def machine() -> dict[str, Any]:
    """Versions, loaded modules and the variables that steer MPI and threads: all that a run's record needs."""
    packages = {one.metadata["Name"]: one.version for one in metadata.distributions()}
    return {
        "istmpi": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": dict(sorted(packages.items())),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "settings": {
            key: value
            for key, value in sorted(os.environ.items())
            if key.startswith(_SETTINGS) and not any(word in key for word in _SECRET)
        },
    }


def versions(communicator: Communicator) -> list[Finding]:
    """Whether all ranks run the same software. Collective."""
    mine = {"Python": platform.python_version()} | {name: _version(name) for name in _TOLD}
    return [compared(communicator.allgather(mine))]


def compared(per_rank: list[dict[str, str]]) -> Finding:
    first = per_rank[0]
    odd = {
        name: next((rank, versions[name]) for rank, versions in enumerate(per_rank) if versions[name] != version)
        for name, version in first.items()
        if any(versions[name] != version for versions in per_rank)
    }
    if not odd:
        return green("software", ", ".join(f"{name} {version}" for name, version in first.items()))
    told = "; ".join(
        f"{name} is {first[name]} on rank 0 and {other} on rank {rank}" for name, (rank, other) in odd.items()
    )
    state = red if "istmpi" in odd else yellow
    return state("software", told, "Use one environment on all hosts, on a shared folder or copied to each.")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
