"""Evaluates the full network: its weights are gathered on each rank, or stay spread over the ranks (sharded)."""
