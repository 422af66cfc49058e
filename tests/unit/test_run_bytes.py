"""The bytes of a whole run, as --dry-run says them: to the byte those that ranks handed to MPI."""

import json

import pytest
from replay_cases import MLP
from replaying import RECORD, run_of

from istmpi.cli.networks import described
from istmpi.config import Run
from istmpi.cost import run_bytes

CASES = [
    name for name in MLP if "shares of a file" not in name and "patience" not in name and name != "dynamic-averaging"
]


@pytest.mark.parametrize("case", CASES)
def test_they_are_the_recorded_bytes(case, tmp_path):
    """Those that test_replay.py has counted."""
    run = run_of(MLP[case], 3, tmp_path)
    recorded = json.loads(RECORD.read_text())["runs"]["3 ranks"][case]["bytes"]
    assert run_bytes(run, described(run, None).architecture, 3) == recorded


def test_a_dry_run_says_them(istmpi_command):
    words = ("train", "--dry-run", "--ranks", "3", "--rounds", "7", "--redeal", "0.3")
    planned = json.loads(istmpi_command(*words, "--json")[1])
    run = Run.load("digits").override({"train.rounds": 7, "method.redeal": 0.3})
    assert planned["sent_bytes"] == run_bytes(run, described(run, None).architecture, 3)
    assert f"{planned['sent_bytes']:,} bytes sent by all ranks" in istmpi_command(*words)[1].replace("\n", " ")
