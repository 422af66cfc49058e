"""A user's own program around a network that all ranks train: the user writes the loop, loss, data
and optimizer."""
