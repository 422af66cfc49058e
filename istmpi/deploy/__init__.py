"""Scores, predictions, subnets and files for other programs, from a checkpoint."""
