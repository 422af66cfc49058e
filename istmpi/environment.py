"""Environment variables of istmpi's own, in one table, through which the package reads them."""

import os
from typing import NamedTuple


class Variable(NamedTuple):
    """A variable: who reads it, its default and its meaning."""

    reader: str
    default: str
    help: str


VARIABLES = {
    "ISTMPI_RUNS": Variable("istmpi", "runs", "Folder of the runs: without --out, a run is its folder NAME."),
    "ISTMPI_LOCAL": Variable(
        "istmpi-run", "$SLURM_TMPDIR, $TMPDIR, /tmp", "Local disk of a host, for --stage and --stage-venv."
    ),
    "ISTMPI_VENV": Variable("bin/quickstart, bin/test", ".venv", "Folder of the virtual environment."),
    "ISTMPI_PYTHON": Variable("bin/quickstart, bin/test", "python3", "Python that makes the virtual environment."),
    "ISTMPI_TORCH_INDEX": Variable("bin/quickstart, bin/test", "PyTorch's CPU builds", "Package index for PyTorch."),
    "ISTMPI_HDF5_PYTHON": Variable("bin/test", "$ISTMPI_VENV-hdf5/bin/python", "Python whose h5py was built with MPI."),
    "ISTMPI_SITE": Variable("bin/mkdocs.yml", "/tmp/istmpi-site", "Folder of the site that mkdocs makes of the pages."),
}


def read(name: str) -> str:
    """Return a variable of the table, or its default where it is not set or empty."""
    return os.environ.get(name) or VARIABLES[name].default
