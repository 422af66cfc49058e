"""The bytes of a whole run, as --dry-run says them: to the byte those that ranks hand to MPI."""

import pytest
from replay_cases import MLP
from replaying import run_of

from istmpi.comm.simulated import simulate
from istmpi.cost.one_round import run_bytes
from istmpi.training.loop import Training

CASES = [
    name for name in MLP if "shares of a file" not in name and "patience" not in name and name != "dynamic-averaging"
]


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_they_are_the_counted_bytes(case, ranks, tmp_path):
    run = run_of(MLP[case] | {"evaluate__every": 100}, ranks, tmp_path)

    def counted(comm):
        training = Training(run, comm)
        (*_, last) = training.rounds()
        return training.architecture, last.bytes

    architecture, sent = simulate(counted, ranks).require()[0]
    assert run_bytes(run, architecture, ranks) == sent
