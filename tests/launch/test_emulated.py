"""The emulated slow cluster of benchmarks/cluster: its delays, its losses, and the same run on it as anywhere."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from following import lines, wait_for_more, weights
from masked_data import FILE
from patience import patient

from benchmarks.emulated import Cluster, alone, obstacle

ROOT = Path(__file__).parents[2]
WORDS = ["train", "--rounds", "3", "--local-steps", "5", "--set", "evaluate.every=3", "--set", "train.threads=1"]
GROUPS = ["--group-size", "2"]
MOMENTUM = ["--method", "local-sgd", "--set", "optimizer.momentum=0.9"]
UNEQUAL = ["--data", f"{FILE}:blank", "--model", f"{FILE}:Pairs", "--batch", "7"]
IDLE = ["--data", f"{FILE}:blank", "--model", f"{FILE}:Idle", "--batch", "5"]
OBSTACLE = obstacle()

pytestmark = [pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE or "none"), pytest.mark.timeout(300)]


def run_on_cluster(environment, out, *options, words=()):
    """Train on two emulated hosts; return what the launcher said, and the losses."""
    command = [ROOT / "benchmarks" / "cluster", "--hosts", 2, "--rate", "100mbit", "--name", "test", *options, "--"]
    command = [*map(str, command), sys.executable, "-m", "istmpi", *WORDS, "--out", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(120), env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr, [line["loss"] for line in lines(out)]


def count_frames(said):
    (frames,) = re.findall(r"^frames +(.*)$", said, re.MULTILINE)
    return {name: int(number) for number, name in re.findall(r"(\d+) ([a-z ]+)", frames)}


CASES = {"a": MOMENTUM, "b": UNEQUAL, "c": IDLE, "plain": ()}
COMMANDS = {name: [*WORDS, *GROUPS, *more] for name, more in CASES.items()}


@pytest.fixture(scope="module")
def one_host(series, folder):
    """The folder of groups' runs on one host."""
    said = series(4, folder, {name: [*words, "--out", name] for name, words in COMMANDS.items()}).end(120)
    assert not any(done.returncode for done in said.values()), said
    return folder


@pytest.fixture(scope="module")
def delayed(environment, folder):
    """A run of two ranks on a network with delays: what the launcher said, its losses, and its folder."""
    words = ["--round-trip", "40ms", "--jitter", "8ms"]
    return *run_on_cluster(environment, folder / "delayed", *words), folder / "delayed"


def test_a_delayed_network_loses_nothing_and_a_lossy_one_only_what_was_asked(environment, delayed, tmp_path):
    said, losses, _ = delayed
    counts = count_frames(said)
    assert counts["lost"] == counts["overrun"] == 0 < counts["arrived"]
    assert counts["forwarded"] + counts["queue full"] <= counts["arrived"]
    # No round trip is shorter than asked.
    assert float(re.search(r"\(([\d.]+) to", said.splitlines()[0])[1]) >= 32, said
    said, losses_with_loss = run_on_cluster(environment, tmp_path / "lossy", "--round-trip", "10ms", "--loss", "0.03")
    lossy = count_frames(said)
    assert lossy["lost"] > 0 == lossy["overrun"] and losses_with_loss == losses


def test_groups_on_two_hosts_compute_what_one_does_and_send_what_ranks_do(environment, delayed, one_host, tmp_path):
    together, _ = run_on_cluster(environment, tmp_path / "groups", "--members", 2, words=GROUPS)
    of_ranks, _, ranks = delayed
    counters = [re.findall(r"^istmpi-test-\d +([\d.]+) +[\d.]+$", said, re.MULTILINE) for said in (together, of_ranks)]
    assert [len(sent) for sent in counters] == [2, 2], together + of_ranks
    crossed, expected = (sum(map(float, sent)) for sent in counters)
    # Headers and the messages of mpirun are not of one size.
    assert crossed == pytest.approx(expected, rel=0.1)
    counts = [[line["bytes"] for line in lines(out)] for out in (one_host / "plain", tmp_path / "groups", ranks)]
    assert counts[0] == counts[1] == counts[2]
    assert weights(one_host / "plain") == weights(tmp_path / "groups")


def test_two_hosts_compute_what_one_does_and_go_on_after_each_end_of_a_member(one_host, series, tmp_path, monkeypatch):
    cluster = Cluster("test")
    commands = {name: [*COMMANDS[name], "--out", name] for name in "abc"}
    long = [*WORDS, "--rounds", 10**6, "--set", "comm.patience=3", "--set", "checkpoint.every=1", "--resume", "auto"]
    ends = {name: [*long, "--out", "run", "--group-size", name[-1]] for name in ("as 2", "as 1", "killed 2")}
    with alone("test"):
        cluster.up(2, "1gbit")
        try:
            monkeypatch.setenv("MPIRUN", shlex.join(cluster.launcher(tmp_path, members=2)))
            hosts = series(4, tmp_path, commands | ends)
            for name in ("as 2", "as 1"):
                wait_for_more(tmp_path / "run", hosts.job)
                os.kill(hosts.job.ranks[3], signal.SIGTERM)
                hosts.wait(name)
            wait_for_more(tmp_path / "run", hosts.job)
            os.kill(hosts.job.ranks[3], signal.SIGKILL)
            assert hosts.job.end(90).returncode not in (0, 75)
            last = series(4, tmp_path, {"stopped": ends["killed 2"]})
            wait_for_more(tmp_path / "run", last.job)
            os.kill(last.job.ranks[3], signal.SIGSTOP)
            result = last.job.end(90)
        finally:
            cluster.down()
    assert all(weights(one_host / name) == weights(tmp_path / name) for name in "abc")
    assert [hosts.outcome(name).returncode for name in ("as 2", "as 1")] == [75, 75]
    said = last.outcome("stopped", ended=False)
    assert result.returncode == 76, (result, said)
    assert "a rank does not respond: process 3 (member 1 of rank 1) on istmpi-test-1" in said.errors[-1], said


WRONG = {
    "--round-trip 50": "a time, as 50ms",
    "--round-trip 10ms --jitter 20ms": "cannot be as much shorter",
    "--loss 1.5": "a probability",
}


@pytest.mark.parametrize("options", WRONG)
def test_wrong_delays_are_refused_before_anything_is_made(environment, options):
    command = [ROOT / "benchmarks" / "cluster", *options.split(), "--", "true"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=patient(30), env=environment)
    assert done.returncode == 2 and WRONG[options] in done.stderr
