"""A network as engine, cost model, evaluation and checkpoints see it: a table, and code that builds
it at any widths."""
