"""Counts the cost of a run from the named axes alone: no MPI, no torch, no training."""

from istmpi.cost.counts import Cost, cost, phase_costs
from istmpi.cost.one_round import round_bytes, run_bytes
from istmpi.cost.pairs import pair_bytes
from istmpi.cost.rivals import RIVALS, counted
