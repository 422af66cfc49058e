"""What a campaign's jobs run on beside istmpi: it says so in its report."""

import h5py
import mpi4py

PARALLEL_HDF5 = h5py.get_config().mpi
WRITERS = ("direct", "mpio") if PARALLEL_HDF5 else ("direct",)
"""Of checkpoints, that can be tried."""


def libraries() -> str:
    """The MPI library and the HDF5 library, as in ``Open MPI 4.1.4; HDF5 1.10.8 with MPI``."""
    mpi4py.rc.initialize = False
    from mpi4py import MPI

    name = " ".join(MPI.Get_library_version().split("\n")[0].strip("\0").split(",")[0].split())
    return f"{name}; HDF5 {h5py.version.hdf5_version} {'with' if PARALLEL_HDF5 else 'without'} MPI"
