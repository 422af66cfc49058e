"""Data sets, and for each rank a deterministic stream of batches from them.

A stream is chosen by its number, usually the rank, so no module here uses MPI. This file imports nothing: each module
loads its own libraries.
"""
