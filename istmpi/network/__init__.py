"""What engine, cost model, evaluation and checkpoints ask of a network: its table, and its code at any
widths."""
