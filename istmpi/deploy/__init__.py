"""Scores, predictions and files for other programs, from a checkpoint."""
