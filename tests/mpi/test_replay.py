"""What every method computes and sends is what was recorded: a change of form changes no bit of it (`replaying`)."""

import os
import sys

import pytest
from replay_cases import MLP, OTHERS
from replaying import CASES, keep, passed_on, replayed, require_recorded, run_of  # noqa: F401
from small import on_root

REAL = ("diloco", "sparse-loco", "local-sgd, bfloat16 on the wire", "data-parallel, int8 on the wire", "xc")
REAL += ("a transformer", "resnet by blocks", "gcn in clusters")
"""Cases for an MPI library, too: ways of a round that `test_simulated` has not."""


def at(ranks, cases):
    """Cases at a number of ranks where they are simulated, and at all that are recorded elsewhere."""
    everywhere = "ISTMPI_RECORD" in os.environ or "mpirun_ranks" in sys.modules
    mark = pytest.mark.ranks(only=[1, 2, 3, 4] if everywhere else [ranks])
    return [pytest.param(case, marks=[mark, *[pytest.mark.both] * (case in REAL)]) for case in cases]


@pytest.mark.usefixtures("passed_on")
@pytest.mark.ranks(only=[1, 2, 3, 4])
@pytest.mark.parametrize("case", [*at(1, [*MLP][::6]), *at(2, [*MLP][1::2]), *at(3, OTHERS)])
def test_nothing_has_changed(comm, shared_tmp, case):
    """Some of `MLP` are tried on three ranks, of which some stop, by tests/unit/test_simulated_runs.py."""
    run = comm.broadcast_from_root(run_of(CASES[case], comm.size, shared_tmp) if comm.rank == 0 else None)
    outcome = replayed(comm, run)
    if comm.size > 1 and case not in ("fedavg", "dynamic-averaging", "ist, never redealt"):
        assert outcome["bytes"] > 0
    if "ISTMPI_RECORD" in os.environ:
        on_root(comm, lambda: keep(f"{comm.size} ranks", case, outcome))
    require_recorded(f"{comm.size} ranks", case, run, outcome)
