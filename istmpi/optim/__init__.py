"""Local optimizers: their descriptions, a program's own, schedules of the learning rate, and steps of sparse rows."""
