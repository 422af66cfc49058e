"""Hosts that share no folder: each rank has a disk of its own at the place of the folder."""

import json
import os
import re
import shutil
import signal
import subprocess

import numpy as np
import pytest
from following import weights

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
    """The disks of some hosts, on which jobs run: ``series(hosts, commands)`` runs commands in turn, a rank a host."""

    def __init__(self, folder, series):
        self.folder = folder / "disk"
        self.folder.mkdir()
        private = ["unshare", "--mount", "sh", "-c", PRIVATE, "sh", self.folder]
        # Else each command waits for a file that no network file system will show.
        soon = {"soon": "from istmpi.checkpoint import sight\nsight.PATIENCE = 0.5"}
        self.series = lambda hosts, more: series(len(hosts), folder, soon | more, under=[*private, ",".join(hosts)])

    def train(self, *words, run="run"):
        return [*TRAIN, "--out", self.folder / run, *words]

    def host(self, name, path="run"):
        """A path on a host's disk, as other processes see it."""
        return self.folder.with_name(f"disk-host{name}") / path


@pytest.fixture
def disks(tmp_path, series):
    return Disks(tmp_path, series)


def rounds_on(disks, host):
    return sorted(int(path.name[6:]) for path in disks.host(host, "run/checkpoints").glob("round-????????"))


DATA = {
    "used": "rank 1: --out .* is not empty",
    "missing": "rank 1: data .*/missing.npz",
    "other": "differs between ranks: other train features",
}


def test_hosts_keep_their_parts_end_as_on_one_disk_and_refuse_what_cannot_be(disks):
    """In one job of two hosts."""
    auto = ["--resume", "auto"]
    features, labels = np.random.default_rng(0).random((80, 6), dtype=np.float32), np.arange(80) % 3
    for host in "01":
        disks.host(host, "used").mkdir(parents=True)
        for name in DATA:
            np.savez(disks.host(host, f"{name}.npz"), x=features + int(host) * (name == "other"), y=labels)
    disks.host(1, "missing.npz").unlink()
    disks.host(1, "used/network.h5").touch()
    shared = disks.folder.with_name("shared")
    commands = {
        "train": disks.train("--rounds", "4"),
        "copy": f"import shutil; shutil.copytree({str(disks.folder / 'run')!r}, f'then-{{rank}}')",
        "longer": disks.train("--rounds", "6", *auto),
        "again": disks.train("--rounds", "6", *auto),
        "shared": [*TRAIN, "--rounds", "4", "--out", shared],
        "direct": disks.train("--set", "checkpoint.writer=direct", run="direct"),
    }
    for name in DATA:
        commands[name] = disks.train("--set", f"data.source={disks.folder}/{name}.npz", run=name)
        commands[name] += ["--set", "data.test=0.2"]
    said = disks.series("01", commands).end()
    done, then = said["train"], [disks.folder.with_name(f"then-{host}") for host in "01"]
    assert done.returncode == 0, done
    assert done.stdout.count("does not see") == 1 and "each rank writes its part" in done.stdout, done
    assert said["shared"].returncode == 0 and "does not see" not in said["shared"].stdout, said["shared"]
    sent = json.loads((then[0] / "summary.json").read_text())["sent"]
    assert sent["saving"]["calls"] == 9 + 2, "those of a dry run, and two for the rows of other hosts"
    assert weights(then[0]) == weights(shared) and sent["start"]["calls"] == 8
    for host, run in enumerate(then):
        assert [path.name for path in (run / "checkpoints").rglob("*.h5")] == [f"rank-{host}.h5"], "of round 2 alone"
    assert sorted(path.name for path in then[1].iterdir()) == ["checkpoints", "run.toml"]
    # The network, which only rank 0 has, is enough to go on from.
    assert f"resuming from {disks.folder}/run/network.h5" in said["longer"].stdout, said["longer"]
    assert "nothing left to train" in said["again"].stdout and said["again"].returncode == 0, said["again"]
    assert not [path for host in "01" for path in disks.host(host).rglob(".*")]

    # An earlier run's files are on another host.
    for name, text in {"direct": f"rank 1 on {os.uname().nodename} does not see .* of rank 0", **DATA}.items():
        assert re.search(text, said[name].refusal()), said[name]
    assert not [*disks.host(0, "used").iterdir()], "the next try finds a free folder"


@pytest.mark.timeout(240)
def test_a_run_that_is_stopped_on_any_host_or_killed_goes_on_bit_for_bit(disks):
    long = disks.train("--rounds", "100000", "--resume", "auto")
    stop_file = str(disks.host(1, "run/STOP"))
    waits = f"import os, time\nwhile os.path.exists({stop_file!r}): time.sleep(0.01)"
    jobs = disks.series("01", {"stopped": long, "waits": waits, "killed": long})
    jobs.job.wait_until(disks.host(0, "run/checkpoints/round-00000004").exists)
    disks.host(1, "run/STOP").touch()
    jobs.wait("stopped")
    done = jobs.outcome("stopped")
    assert done.returncode == 75 and f"the file {disks.folder}/run/STOP" in done.errors[0], done
    rounds = int(re.search(r"after (\d+) of", done.errors[0])[1])
    assert rounds_on(disks, 0) == rounds_on(disks, 1) and rounds_on(disks, 0)[-1] == rounds
    os.remove(stop_file)
    jobs.job.wait_until(lambda: max(rounds_on(disks, 0), default=0) >= rounds + 6)
    for rank in jobs.job.ranks:
        os.kill(rank, signal.SIGKILL)
    assert jobs.job.end(60).returncode not in (0, 75)
    total, shared = max(rounds_on(disks, 0)) + 4, disks.folder.with_name("shared")
    rest = disks.train("--rounds", str(total), "--resume", "auto")
    said = disks.series("01", {"rest": rest, "shared": [*TRAIN, "--rounds", total, "--out", shared]}).end()
    assert said["rest"].returncode == said["shared"].returncode == 0, said
    assert weights(disks.host(0)) == weights(shared)
    assert len(rounds_on(disks, 0)) == 2 and rounds_on(disks, 0) == rounds_on(disks, 1)
