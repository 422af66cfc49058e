"""Checks this machine, its MPI and its file system. Every check ends in findings."""

import os
import platform
import re
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from istmpi import __version__, comm
from istmpi.comm import Communicator, find_members
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
        """The worst state of all findings."""
        return max((finding.state for finding in self.findings), key=STATES.index, default="green")

    def tree(self) -> dict[str, Any]:
        return {"verdict": self.verdict, **asdict(self)}


def examine(folder: Path, patience: float) -> tuple[Report | None, bool]:
    """Run all checks on all ranks.

    Return the report (None except on rank 0), and True if ranks can still meet. If ranks do not
    hear each other within ``patience`` seconds, the report ends there: the caller gets False and
    must end the job by force. A rank that hangs in MPI ends the job itself and says where.
    """
    rank, ranks = comm.read_launcher()
    try:
        # Each limit is longer than the next check's own, so that the check can report first.
        with limit(rank, "starting MPI", 2 * patience):
            comm.start()
        silent = comm.handshake(patience)
        if silent:
            return Report([network.describe_ring(silent)], ranks, [], machine()), False
        with limit(rank, "meeting the other ranks", 2 * patience):
            communicator = comm.world()
    except LaunchError as error:
        if rank != 0:
            return None, True
        return Report([red("launcher", str(error))], 1, [], machine()), True
    findings = _check(communicator, folder, 6 * patience)
    hosts = [member.host for member in find_members(communicator)]
    if communicator.rank != 0:
        return None, True
    return Report(findings, communicator.size, hosts, machine()), True


def _check(communicator: Communicator, folder: Path, seconds: float) -> list[Finding]:
    """Run the checks of ranks that hear each other, each in at most ``seconds``. Collective."""
    checks = {
        "querying the MPI library": lambda: mpi.check_library(communicator),
        "comparing hosts and cores": lambda: mpi.check_cores(communicator),
        "listing network interfaces": lambda: network.check_interfaces(communicator),
        "looking for GPUs": lambda: mpi.check_devices(communicator),
        f"writing to {folder}": lambda: storage.check_folder(communicator, folder),
    }
    findings = []
    # `examine` has the ranks' handshake behind it: none is silent.
    if communicator.size > 1:
        findings.append(network.describe_ring([]))
    for doing, check in checks.items():
        with limit(communicator.rank, doing, seconds):
            findings += check()
    return findings


def machine() -> dict[str, Any]:
    """Return versions, loaded modules and environment variables, without secrets.

    The variables are those of jobs, MPI, threads and GPUs.
    """
    packages = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    settings = {}
    for name, value in sorted(os.environ.items()):
        if _SETTINGS.match(name) and not _SECRET.search(name):
            settings[name] = value
    return {
        "istmpi": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": dict(sorted(packages.items())),
        "modules": [name for name in os.environ.get("LOADEDMODULES", "").split(":") if name],
        "settings": settings,
    }
