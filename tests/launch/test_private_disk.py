"""Hosts that share no folder: each rank after the first has a disk of its own at the place of the folder."""

import os
import shutil
import subprocess

import h5py
import numpy as np
import pytest

TRAIN = ["train", "digits", "--hidden", "32", "--rounds", "4", "--local-steps", "5", "--set", "checkpoint.every=2"]
PRIVATE = """
rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
folder=$1; shift
[ "$rank" = 0 ] || mount -t tmpfs none "$folder" || exit 99
exec "$@"
"""


def cannot_mount():
    """Why no rank can have a disk of its own here; empty if it can."""
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True
    )
    return tried.stderr.strip() or "unshare --mount failed" if tried.returncode else ""


OBSTACLE = cannot_mount() if shutil.which("unshare") else "unshare is not here"
pytestmark = pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE or "none")


def read_weights(path):
    with h5py.File(path) as file:
        return {name: np.asarray(values) for name, values in file["model"].items()}


def test_a_run_without_a_shared_folder_leaves_all_on_rank_0(mpirun, tmp_path):
    """It warns once, ends with the network of a shared folder, and resumes once all hosts have its checkpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def run(*words):
        return mpirun(2, "unshare", "--mount", "sh", "-c", PRIVATE, "sh", disk, "istmpi", *words, timeout=120)

    done = run(*TRAIN, "--out", disk / "run")
    assert done.returncode == 0, done
    assert done.stdout.count("does not see") == 1 and "rank 0 writes checkpoints and the network" in done.stdout, done
    shared = mpirun(2, "istmpi", *TRAIN, "--out", tmp_path / "shared", timeout=120)
    assert shared.returncode == 0 and "does not see" not in shared.stdout, shared
    here, there = read_weights(disk / "run/network.h5"), read_weights(tmp_path / "shared/network.h5")
    assert here.keys() == there.keys()
    for name, values in here.items():
        assert values.tobytes() == there[name].tobytes(), name
    # Rank 1 has no checkpoint; with one disk, all ranks have it.
    refused = run(*TRAIN[:-4], "--rounds", "6", "--out", disk / "run", "--resume", "auto")
    assert refused.returncode == 2 and "Put it where all ranks see it" in refused.stderr, refused
    resumed = mpirun(2, "istmpi", *TRAIN, "--rounds", "6", "--out", disk / "run", "--resume", "auto", timeout=120)
    assert resumed.returncode == 0, resumed
    assert not [path.name for path in (disk / "run").iterdir() if path.name.startswith(".")]


def test_a_writer_of_all_ranks_is_refused_before_the_first_round(mpirun, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    words = [*TRAIN, "--set", "checkpoint.writer=direct", "--out", disk / "run"]
    done = mpirun(2, "unshare", "--mount", "sh", "-c", PRIVATE, "sh", disk, "istmpi", *words, timeout=120)
    assert done.returncode == 2, done
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("istmpi: ")]
    assert f"rank 1 on {os.uname().nodename} does not see {disk / 'run'} of rank 0" in line
    assert not (disk / "run/network.h5").exists()
