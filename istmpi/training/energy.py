"""The energy of a job: counted by the CPUs (RAPL), else by Slurm, else estimated from watts.

The counters of an Intel or AMD CPU begin anew at a limit, after minutes at full power, so they are
read in every round. They count whole CPUs, with all programs of the host, but no GPU.
"""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from istmpi.units import size

COUNTERS = Path("/sys/class/powercap")
"""The folder of the CPUs' energy counters."""
RAPL = "RAPL"
SACCT = "sacct"
WATTS = "train.watts"


@dataclass(frozen=True)
class Energy:
    joules: float
    """The joules of all hosts in this job."""
    source: str
    """RAPL, sacct or train.watts."""

    def describe(self) -> str:
        return f"{size(self.joules, 'J')} of this job ({self.source})"


@dataclass(frozen=True)
class HostJoules:
    host: str
    joules: float | None
    """None if a counter of the host cannot be read."""


class Meter:
    """The joules of this host's CPUs since the meter was made."""

    def __init__(self) -> None:
        self._folders = list(_list_cpus(COUNTERS))
        self._last = [_read_counter(folder) for folder in self._folders]
        self._microjoules = 0

    def read(self) -> None:
        """Add what the CPUs have used since the last call."""
        for place, folder in enumerate(self._folders):
            before = self._last[place]
            now = _read_counter(folder)
            self._last[place] = now
            if before is None or now is None:
                continue
            used = now - before
            if used < 0:
                used += _read_number(folder / "max_energy_range_uj") or 0
            self._microjoules += used

    def describe(self) -> HostJoules:
        """Return this host's joules up to now."""
        self.read()
        joules = None
        if self._folders and None not in self._last:
            joules = self._microjoules / 1e6
        return HostJoules(platform.node(), joules)


def _list_cpus(folder: Path) -> Iterator[Path]:
    """Yield the folders of whole CPUs, without their parts, which have a second colon."""
    for domain in sorted(folder.glob("intel-rapl:*")):
        try:
            name = (domain / "name").read_text()
        except OSError:
            continue
        if domain.name.count(":") == 1 and name.startswith("package"):
            yield domain


def _read_counter(folder: Path) -> int | None:
    return _read_number(folder / "energy_uj")


def _read_number(path: Path) -> int | None:
    # Only root can read a counter on many hosts.
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def choose_energy(
    by_rank: Sequence[HostJoules], watts: float | None, seconds: float
) -> Energy | None:
    """Return the energy of a job by its best source; None if there is none.

    ``by_rank``: what each rank reads on its host. ``watts``: of a rank (train.watts). ``seconds``:
    of the job.
    """
    # Ranks of one host read the same counters.
    by_host: Mapping[str, float | None] = {entry.host: entry.joules for entry in by_rank}
    counted = [joules for joules in by_host.values() if joules is not None]
    if len(counted) == len(by_host):
        return Energy(sum(counted), RAPL)
    joules = _ask_slurm()
    if joules:
        return Energy(joules, SACCT)
    if watts is None:
        return None
    return Energy(watts * len(by_rank) * seconds, WATTS)


def _ask_slurm() -> float | None:
    """Return the joules that Slurm has counted for this job; None outside a job, or if it counts
    none."""
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return None
    query = ["sacct", "--jobs", job, "--noheader", "--parsable2", "--format", "ConsumedEnergyRaw"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    # A line for the job, and one for each step; steps that still run may have no figure.
    figures = [float(line) for line in answer.stdout.split() if line.isdigit()]
    return max(figures, default=None)
