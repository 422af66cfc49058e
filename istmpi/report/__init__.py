"""Tables, plots and pages of plans, runs and checkpoints."""
