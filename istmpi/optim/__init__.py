"""Local optimizers, their learning rates, and a program's own."""
