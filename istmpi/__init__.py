"""Independent Subnet Training for MPI machines."""

__version__ = "0.1.0"
