"""Data sets, and for each rank a deterministic stream of batches from them.

A *stream* is a number, usually a rank's; these modules do not use MPI. This file imports nothing, so that each module
loads only the libraries that it needs.
"""
