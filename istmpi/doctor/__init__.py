"""Checks this machine, its MPI and its file system. Every check ends in findings."""

import os
import platform
import re
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from istmpi import __version__, comm
from istmpi.doctor import mpi, network, storage
from istmpi.doctor.finding import STATES, Finding, red
from istmpi.doctor.watchdog import limit
from istmpi.errors import LaunchError

_SETTINGS = re.compile("SLURM_|OMPI_|PRTE_|PMIX_MCA_|MPICH_|I_MPI_|FI_|UCX_|OMP_|MKL_|CUDA_|NCCL_")
_SECRET = re.compile("JWT|TOKEN|KEY|SECRET|PASSWORD")


@dataclass(frozen=True)
class Report:
    """The findings, and the facts of `machine` for a run's record."""

    findings: list[Finding]
    ranks: int
    hosts: list[str]
    machine: dict[str, Any]

    @property
    def verdict(self) -> str:
        return max((finding.state for finding in self.findings), key=STATES.index, default="green")

    def tree(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def examine(folder: Path, patience: float) -> tuple[Report | None, bool]:
    """Run all checks on all ranks. Return the report (None except on rank 0), and True if ranks can
    still meet.

    If ranks do not hear each other within ``patience`` seconds, the report ends there: the caller
    gets False and must end the job by force. A rank that hangs in MPI ends the job itself and says
    where.
    """
    rank, ranks = comm.launched()
    try:
        with limit(rank, "starting MPI", 2 * patience):
            comm.start()
        if silent := comm.handshake(patience):
            return Report([network.ring(silent)], ranks, [], machine()), False
        with limit(rank, "meeting the other ranks", 2 * patience):
            communicator = comm.world()
    except LaunchError as error:
        return (
            Report([red("launcher", str(error))], 1, [], machine()) if rank == 0 else None
        ), True
    checks = {
        "querying the MPI library": lambda: mpi.library(communicator),
        "comparing hosts and cores": lambda: mpi.cores(communicator),
        "listing network interfaces": lambda: network.interfaces(communicator),
        "looking for GPUs": lambda: mpi.devices(communicator),
        f"writing to {folder}": lambda: storage.write_test(communicator, folder),
    }
    findings = [network.ring([])] * (communicator.size > 1)
    for doing, check in checks.items():
        with limit(rank, doing, 6 * patience):
            findings += check()
    size, hosts = communicator.size, communicator.hosts()
    return (Report(findings, size, hosts, machine()) if communicator.rank == 0 else None), True


def machine() -> dict[str, Any]:
    """Return versions, loaded modules, and environment variables of jobs, MPI, threads and GPUs,
    without secrets."""
    packages = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    settings = {name: value for name, value in sorted(os.environ.items()) if _SETTINGS.match(name)}
    return {
        "istmpi": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": dict(sorted(packages.items())),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "settings": {name: value for name, value in settings.items() if not _SECRET.search(name)},
    }
