"""The bytes of a whole run, as --dry-run says them: to the byte those that ranks hand to MPI."""

import json

import pytest
from replay_cases import MLP
from replaying import run_of

from istmpi.cli.networks import described
from istmpi.config import Run
from istmpi.cost import run_bytes
from istmpi.simulated import simulate
from istmpi.training.loop import Training

CASES = [
    name for name in MLP if "shares of a file" not in name and "patience" not in name and name != "dynamic-averaging"
]


@pytest.mark.parametrize("case", CASES)
def test_they_are_the_counted_bytes(case, tmp_path):
    ranks = 3
    run = run_of(MLP[case] | {"evaluate__every": 100}, ranks, tmp_path)

    def counted(comm):
        training = Training(run, comm)
        (*_, last) = training.rounds()
        return training.architecture, last.bytes

    architecture, sent = simulate(counted, ranks).require()[0]
    assert run_bytes(run, architecture, ranks) == sent


def test_a_dry_run_says_them(istmpi_command):
    words = ("train", "--dry-run", "--ranks", "3", "--rounds", "7", "--redeal", "0.3")
    planned = json.loads(istmpi_command(*words, "--json")[1])
    run = Run.load("digits").override({"train.rounds": 7, "method.redeal": 0.3})
    assert planned["sent_bytes"] == run_bytes(run, described(run, None).architecture, 3)
    assert f"{planned['sent_bytes']:,} bytes sent by all ranks" in istmpi_command(*words)[1].replace("\n", " ")
