"""The full network, evaluated: sharded over the ranks or gathered on each."""
