"""Finds the table of a user's network, and proves it: by doubling, permuting, tracing and copying units."""
