"""Data sets, and each rank's deterministic stream of batches.

A stream has a number, usually the rank's. No module here sends messages.
"""
