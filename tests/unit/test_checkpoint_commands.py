"""`istmpi checkpoint`: what it lists, shows and verifies."""

import json
import shutil

import pytest
from damage import flip

from istmpi.checkpoint.folder import find_files
from istmpi.cli import output


@pytest.fixture
def run_folder(checkpoints, tmp_path):
    """A run's folder: one checkpoint of a run that was stopped, one damaged, the network."""
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    shutil.copy(checkpoints / "stopped.h5", tmp_path / "run/checkpoints/round-00000001.h5")
    shutil.copy(checkpoints / "batch.h5", tmp_path / "run/network.h5")
    shutil.copy(checkpoints / "batch.h5", tmp_path / "run/checkpoints/round-00000003.h5")
    flip(tmp_path / "run/checkpoints/round-00000003.h5", "model/hidden1.linear.weight")
    return tmp_path / "run"


def test_ls_lists_what_can_be_opened_for_people_and_for_programs(istmpi_command, answer, run_folder):
    (run_folder / "checkpoints/round-00000002.h5").write_text("no HDF5")
    lines = answer("checkpoint", "ls", run_folder).splitlines()
    listed = [f"checkpoints/round-0000000{number}.h5" for number in (1, 2, 3)]
    assert [line.split()[0] for line in lines[1:]] == [*listed, "network.h5"]
    assert "2 of 3" in lines[1] and lines[1].split("  ")[2].strip() == "6"
    assert "not an HDF5 file" in lines[2]
    assert "4 of 4" in lines[4] and "ist" in lines[4] and "readable" in lines[4]
    stopped, odd, _, network = json.loads(istmpi_command("checkpoint", "ls", run_folder, "--json")[1])
    assert (stopped["round"], stopped["local_steps"], stopped["problem"]) == (2, 6, None)
    assert "not an HDF5 file" in odd["problem"]
    assert (network["file"], network["rounds"], network["ranks"]) == ("network.h5", 4, 1)


@pytest.mark.parametrize("name", ["folder", "file", "nothing"])
def test_ls_of_nothing_is_refused(refusal, tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    refusal("checkpoint", "ls", tmp_path / name)


def test_show_names_everything_for_people_and_for_programs(istmpi_command, checkpoints):
    code, out, _ = istmpi_command("checkpoint", "show", checkpoints / "batch.h5")
    facts = ("method ist, seed 5", "4 of 4 rounds", "examples 1 x 8 x 8", "10: 0, 1, 2", "hidden2.linear.weight")
    facts += ("hidden2 hidden1", "11 x 13", "hidden1.norm.bias/momentum_buffer")
    assert code == 0
    for fact in (*facts, "calibrated  yes; outputs divided by a temperature of "):
        assert fact in out
    _, out, _ = istmpi_command("checkpoint", "show", checkpoints / "stopped.h5")
    assert "2 of 3 rounds" in out and "calibrated  no" in out
    shown = json.loads(istmpi_command("checkpoint", "show", checkpoints / "batch.h5", "--json")[1])
    weight = {"name": "hidden1.linear.weight", "axes": "hidden1 features", "dtype": "float32"}
    assert shown["parameters"][0] == weight | {"shape": [13, 64], "bytes": 13 * 64 * 4}
    assert len(shown["optimizer"]) == 7 and shown["norms"]["labels"]["units"] == 10
    assert shown["header"]["run"]["train"]["seed"] == 5 and shown["classes"] == list("0123456789")


def test_rounds_of_passes_are_not_counted_in_local_steps_of_the_run(istmpi_command, checkpoints, tmp_path):
    shutil.copy(checkpoints / "fedavg.h5", tmp_path)
    _, out, _ = istmpi_command("checkpoint", "ls", tmp_path)
    assert "2 of 3" in out and out.splitlines()[1].split("  ")[2].strip() == ""
    (entry,) = json.loads(istmpi_command("checkpoint", "ls", tmp_path, "--json")[1])
    assert (entry["round"], entry["local_steps"]) == (2, None)


def test_verify_names_each_damaged_place(istmpi_command, run_folder, monkeypatch):
    monkeypatch.setattr(output, "SECONDS_BETWEEN_LINES", 0)
    code, out, err = istmpi_command("checkpoint", "verify", run_folder)
    first, damaged, network = out.splitlines()
    assert code == 2 and first.endswith("round-00000001.h5: valid") and network.endswith("network.h5: valid")
    assert "damaged: model/hidden1.linear.weight, rows 0 to 12: the checksum differs" in damaged
    assert "network.h5" in err and err.splitlines()[-1] == "istmpi: 1 of 3 files cannot be used."
    assert istmpi_command("checkpoint", "verify", run_folder / "network.h5")[0] == 0


@pytest.mark.parametrize("verb", ["ls", "verify"])
def test_a_file_that_is_removed_meanwhile_is_passed_over(istmpi_command, run_folder, monkeypatch, verb):
    """As retention does beside a run: what was listed is gone when it is to be opened."""

    def listed(folder):
        found = find_files(folder)
        (run_folder / "checkpoints/round-00000003.h5").unlink()
        return found

    monkeypatch.setattr("istmpi.checkpoint.folder.find_files", listed)
    code, out, err = istmpi_command("checkpoint", verb, run_folder)
    assert (code, err) == (0, "") and "round-00000003" not in out and "network.h5" in out
    missing = run_folder / "checkpoints/round-00000003.h5"
    code, out, _ = istmpi_command("checkpoint", "verify", missing)
    assert code == 2 and f"{missing} does not exist" in out, "a file that was named is not passed over"
