"""Evaluates the full network: weights are gathered on each rank, or stay spread over the ranks."""
