"""Data sets, and for each rank a deterministic stream of batches from them.

A stream has a number, usually the rank. No module here sends messages; each loads its own libraries.
"""
