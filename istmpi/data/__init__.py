"""Data sets, and for each rank a deterministic stream of batches from them.

A stream has a number, usually the rank; no module here sends messages. This file imports nothing: each module loads its
own libraries.
"""
