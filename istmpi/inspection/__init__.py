"""Finds the table of a user's network by doubling widths and tracing operations, and proves it by
permuting and copying units."""
