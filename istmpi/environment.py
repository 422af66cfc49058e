"""The environment variables of istmpi, and the system that it runs on. The package reads variables
through this table only."""

import os
from contextlib import suppress
from pathlib import Path

VARIABLES = {
    "ISTMPI_RUNS": (
        "istmpi",
        "runs",
        "Folder of the runs: without --out, a run is its folder NAME.",
    ),
    "ISTMPI_LOCAL": (
        "istmpi-run",
        "$SLURM_TMPDIR, $TMPDIR, /tmp",
        "A host's local disk, for --stage, --stage-venv.",
    ),
    "ISTMPI_VENV": ("bin/quickstart, bin/test", ".venv", "Folder of the virtual environment."),
    "ISTMPI_PYTHON": ("bin/quickstart, bin/test", "python3", "Python that makes it."),
    "ISTMPI_TORCH": ("bin/quickstart, bin/test", "2.13.0", "Version of PyTorch to install."),
    "ISTMPI_TORCH_INDEX": (
        "bin/quickstart, bin/test",
        "PyTorch's CPU builds",
        "Package index for PyTorch.",
    ),
    "ISTMPI_HDF5_PYTHON": (
        "bin/test",
        "$ISTMPI_VENV-hdf5/bin/python",
        "Python whose h5py was built with MPI.",
    ),
    "ISTMPI_SITE": ("tools/mkdocs.yml", "/tmp/istmpi-site", "Folder for the site of the pages."),
}
"""The reading program, the default and the meaning of each variable."""


def read(name: str) -> str:
    """Return a variable of the table, or its default if it is not set or empty.

    A ~ becomes the home folder.
    """
    # A script that passes on an empty variable means the default.
    return os.path.expanduser(os.environ.get(name) or VARIABLES[name][1])


def find_cache() -> Path | None:
    """Return this user's folder for what can be made again; None without a home folder."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(folder):
        return None
    return Path(folder) / "istmpi"


BOOT = Path("/proc/sys/kernel/random/boot_id")
"""A file that tells two systems apart whose hosts have one name."""


def list_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # macOS does not bind processes to cores


def read_boot() -> str:
    """Return a name of this system since its start; empty if unknown."""
    with suppress(OSError):
        return BOOT.read_text(encoding="ascii").strip()
    return ""
