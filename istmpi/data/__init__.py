"""Data sets, and each rank's own deterministic stream of batches out of them.

A *stream* is a number: nothing here knows of ranks. Nothing is imported here, for each module its own libraries.
"""
