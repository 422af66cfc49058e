"""From training to an exported network, as users do it, on other numbers of ranks in between."""

import json

import numpy as np
import pytest

SMALL = ("--hidden", "32,16", "--rounds", "3", "--local-steps", "4", "--batch", "16", "--lr", "0.1")


def test_a_network_is_evaluated_on_any_number_of_ranks_and_exported_once(mpirun, tmp_path):
    out = tmp_path / "run"
    assert mpirun(2, "istmpi", "train", *SMALL, "--out", out).returncode == 0
    summary = json.loads((out / "summary.json").read_text())["last"]["score"]
    told = f"accuracy {summary['score']:.4f}, loss {summary['loss']:.4f} on 360 test examples of digits"
    result = mpirun(3, "istmpi", "evaluate", out / "network.h5")
    assert (result.returncode, result.stdout.split("\n")[0]) == (0, told), result.stderr
    result = mpirun(1, "istmpi", "evaluate", out / "network.h5", "--calibrate")
    assert result.stdout.startswith("calibrated on the training split of digits\n")
    assert told in result.stdout and result.stdout.count("accuracy") == 1
    result = mpirun(2, "istmpi", "predict", out / "network.h5", "digits")
    assert result.returncode == 0 and len(result.stdout.splitlines()) == 361
    assert mpirun(2, "istmpi", "export", out / "network.h5", "--to", "npz").returncode == 0
    with np.load(out / "network.npz") as file:
        assert file["hidden2.weight"].shape == (16, 32)


def test_a_refusal_is_told_once(mpirun, tmp_path):
    result = mpirun(3, "istmpi", "evaluate", tmp_path / "nowhere.h5")
    assert result.returncode == 2
    assert result.errors == [f"istmpi: {tmp_path / 'nowhere.h5'} does not exist."]


@pytest.mark.parametrize(
    "command", [["predict", "nowhere.h5", "digits"], ["export", "nowhere.h5", "--to", "npz"]], ids=["predict", "export"]
)
def test_what_one_process_does_waits_for_nobody_when_it_fails(mpirun, command):
    result = mpirun(2, "istmpi", *command, timeout=30)
    assert result.returncode == 2
    said = result.errors
    assert said == ["istmpi: nowhere.h5 does not exist."]
