"""The network on disk: one HDF5 file that all ranks fill and anyone can read (docs/formats.md)."""
