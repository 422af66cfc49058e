"""A user's own program around a network that all ranks train: their loop, loss, data and optimizer."""
