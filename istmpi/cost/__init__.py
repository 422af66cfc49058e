"""Counts the cost of a run from the named axes alone: no MPI, no torch, no training.

`counts` has bytes, FLOPs and memory, in closed form over ranks, `one_round` the bytes of one deal; `rivals` what others
run; `cluster` and `time` what that takes in seconds on a network; `survey` all of it over many numbers of ranks;
`advice` what to do.
"""

from istmpi.cost.counts import Cost, cost, phase_costs
from istmpi.cost.one_round import round_bytes, run_bytes
from istmpi.cost.pairs import pair_bytes
from istmpi.cost.rivals import RIVALS, counted

__all__ = ["RIVALS", "Cost", "cost", "counted", "pair_bytes", "phase_costs", "round_bytes", "run_bytes"]
