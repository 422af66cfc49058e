"""Hosts that share no folder: each rank has a disk of its own at the place of the folder."""

import os
import re
import shutil
import signal
import subprocess

import h5py
import numpy as np
import pytest
from patience import Limit

TRAIN = ["train", "digits", "--hidden", "32", "--local-steps", "5", "--set", "checkpoint.every=2"]
PRIVATE = """
rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
folder=$1; hosts=$2; shift 2
set -- $(echo $hosts | cut -d, -f$((rank + 1))) "$@"
mkdir -p "$folder-host$1" && mount --bind "$folder-host$1" "$folder" || exit 99
shift
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


class Disks:
    """The disks of some hosts, on which jobs run: ``words(hosts, ...)`` is a command for a rank of each host."""

    def __init__(self, folder):
        self.folder = folder / "disk"
        self.folder.mkdir()
        self.run = self.folder / "run"

    def words(self, hosts, *words):
        private = ["unshare", "--mount", "sh", "-c", PRIVATE, "sh", self.folder, ",".join(hosts)]
        return [len(hosts), *private, "istmpi", *TRAIN, "--out", self.run, *words]

    def host(self, name, path="run"):
        """A path on a host's disk, as other processes see it."""
        return self.folder.with_name(f"disk-host{name}") / path


@pytest.fixture
def disks(tmp_path):
    return Disks(tmp_path)


@pytest.fixture
def shared_weights(mpirun, tmp_path):
    """``shared_weights(rounds)`` trains with one disk: the weights at the end."""

    def train(rounds):
        folder = tmp_path / f"shared-{rounds}"
        done = mpirun(2, "istmpi", *TRAIN, "--rounds", str(rounds), "--out", folder, timeout=120)
        assert done.returncode == 0 and "does not see" not in done.stdout, done
        return read_weights(folder / "network.h5")

    return train


def read_weights(path):
    with h5py.File(path) as file:
        return {name: np.asarray(values).tobytes() for name, values in file["model"].items()}


def rounds_on(disks, host):
    return sorted(int(path.name[6:]) for path in disks.host(host, "run/checkpoints").glob("round-????????"))


def stop(disks, job, host):
    """Stop a job by a file on a host, once it has saved four rounds."""
    limit = Limit(60)
    while not disks.host(0, "run/checkpoints/round-00000004").exists():
        assert limit.left and job.process.poll() is None, job.end()
    disks.host(host, "run/STOP").touch()
    done = job.end(60)
    assert done.returncode == 75 and f"the file {disks.run}/STOP" in done.errors[0], done
    disks.host(host, "run/STOP").unlink()
    return int(re.search(r"after (\d+) of", done.errors[0])[1])


def test_each_host_keeps_its_part_and_the_run_ends_as_on_one_disk(mpirun, disks, shared_weights):
    done = mpirun(*disks.words("01", "--rounds", "4"), timeout=120)
    assert done.returncode == 0, done
    assert done.stdout.count("does not see") == 1 and "each rank writes its part" in done.stdout, done
    assert read_weights(disks.host(0, "run/network.h5")) == shared_weights(4)
    for host in "01":
        parts = [path.name for path in disks.host(host, "run/checkpoints").rglob("*.h5")]
        assert parts == [f"rank-{host}.h5"], "of round 2 alone"
    assert sorted(path.name for path in disks.host(1).iterdir()) == ["checkpoints", "run.toml"]
    # The network, which only rank 0 has, is enough to go on from.
    longer = mpirun(*disks.words("01", "--rounds", "6", "--resume", "auto"), timeout=120)
    assert longer.returncode == 0 and f"resuming from {disks.run}/network.h5" in longer.stdout, longer
    again = mpirun(*disks.words("01", "--rounds", "6", "--resume", "auto"), timeout=120)
    assert again.returncode == 0 and "nothing left to train" in again.stdout, again
    assert not [path for host in "01" for path in disks.host(host).rglob(".*")]


@pytest.mark.timeout(240)
def test_a_run_that_is_stopped_on_any_host_or_killed_goes_on_bit_for_bit(start, mpirun, disks, shared_weights):
    rounds = stop(disks, start(*disks.words("01", "--rounds", "100000")), host=1)
    assert rounds_on(disks, 0) == rounds_on(disks, 1) and rounds_on(disks, 0)[-1] == rounds
    job = start(*disks.words("01", "--rounds", "100000", "--resume", "auto"))
    limit = Limit(60)
    while max(rounds_on(disks, 0), default=0) < rounds + 6:
        assert limit.left and job.process.poll() is None, job.end()
    for rank in job.ranks:
        os.kill(rank, signal.SIGKILL)
    job.end(60)
    total = max(rounds_on(disks, 0)) + 4
    done = mpirun(*disks.words("01", "--rounds", str(total), "--resume", "auto"), timeout=120)
    assert done.returncode == 0, done
    assert read_weights(disks.host(0, "run/network.h5")) == shared_weights(total)
    assert len(rounds_on(disks, 0)) == 2 and rounds_on(disks, 0) == rounds_on(disks, 1)


@pytest.mark.timeout(240)
def test_other_hosts_and_other_numbers_of_ranks_go_on_if_all_parts_are_somewhere(start, mpirun, disks):
    rounds = stop(disks, start(*disks.words("012", "--rounds", "100000")), host=2)
    newest = f"run/checkpoints/round-{rounds:08d}"
    refused = mpirun(*disks.words("01", "--rounds", str(rounds + 2), "--resume", "auto"), timeout=120)
    assert refused.returncode == 2, refused
    (line,) = refused.errors
    assert f"{newest}: no host has a valid rank-2.h5. Bring it to this folder of any host." in line
    # On two ranks, one of them on a host that has taken over a part.
    shutil.copytree(disks.host(2, newest), disks.host(1, newest), dirs_exist_ok=True)
    fewer = mpirun(*disks.words("01", "--rounds", str(rounds + 2), "--resume", "auto"), timeout=120)
    assert fewer.returncode == 0 and f"resuming from {disks.folder}/{newest}" in fewer.stdout, fewer
    # On three again, with hosts that have changed places, and a new one.
    more = mpirun(*disks.words("103", "--rounds", str(rounds + 4), "--resume", "auto"), timeout=120)
    assert more.returncode == 0 and f"after {rounds + 2} of" in more.stdout, more


def test_what_cannot_be_is_refused_before_the_first_round(mpirun, disks):
    direct = mpirun(*disks.words("01", "--set", "checkpoint.writer=direct"), timeout=120)
    assert direct.returncode == 2, direct
    (line,) = direct.errors
    assert f"rank 1 on {os.uname().nodename} does not see {disks.run} of rank 0" in line
    # An earlier run's files on another host.
    disks.host(1, "run/network.h5").touch()
    used = mpirun(*disks.words("21", "--rounds", "2"), timeout=120)
    assert used.returncode == 2 and "rank 1: --out" in used.stderr and "is not empty" in used.stderr, used


def test_data_are_at_one_path_on_all_hosts_and_must_be_the_same(mpirun, disks):
    """A missing and a different file are named with their rank."""
    features, labels = np.random.default_rng(0).random((80, 6), dtype=np.float32), np.arange(80) % 3
    for host in "012":
        disks.host(host, "").mkdir()
    for host, more in (("0", 0), ("2", 1)):
        np.savez(disks.host(host, "data.npz"), x=features + more, y=labels)
    words = ["--set", f"data.source={disks.folder}/data.npz", "--rounds", "1", "--set", "data.test=0.2"]
    missing = mpirun(*disks.words("01", *words), timeout=120)
    assert missing.returncode == 2 and f"rank 1: data {disks.folder}/data.npz" in missing.errors[0], missing
    other = mpirun(*disks.words("02", *words), timeout=120)
    assert other.returncode == 2 and "differs between ranks: other train features" in other.errors[0], other
