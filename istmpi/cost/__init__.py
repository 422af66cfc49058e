"""Counts the cost of a run from the named axes of its parameters (`istmpi.engine.axes`), without
MPI and torch."""

from istmpi.cost.one_round import round_bytes, run_bytes
from istmpi.cost.pairs import pair_bytes
from istmpi.cost.rivals import RIVALS, find_method
from istmpi.cost.run_cost import Cost, cost, phase_costs
