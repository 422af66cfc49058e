"""The emulated cluster, and PyTorch's methods as peers of ours."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import Limit, patient

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
NAME = f"test{os.getpid()}"
TINY = ["--data", "digits", "--hidden", "24,24", "--local-steps", "5", "--lr", "0.05", "--batch", "32"]
ROUNDS = 2


def environment():
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(*command, timeout=100):
    command = list(map(str, command))
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=patient(timeout))


def namespaces():
    return [line for line in run("ip", "netns", "list").stdout.splitlines() if f"istmpi-{NAME}" in line]


@pytest.fixture
def cluster(emulated):
    """``cluster(*words)`` is the start of a benchmarks/cluster command; skipped where there can be none."""
    if reason := emulated.obstacle():
        pytest.skip(f"no emulated network: {reason}")
    yield lambda *words: [BENCHMARKS / "cluster", "--name", NAME, *words]
    left = namespaces()
    run(BENCHMARKS / "cluster", "down", "--name", NAME)
    Path(f"/run/istmpi-{NAME}.lock").unlink(missing_ok=True)
    assert not left


def test_without_root_one_line_says_so():
    command = [sys.executable, str(BENCHMARKS / "cluster"), "--hosts", "2", "--", "true"]
    if os.geteuid() == 0:
        if not shutil.which("unshare") or run("unshare", "--user", "true").returncode:
            pytest.skip("root cannot become nobody here")
        command = ["unshare", "--user", *command]
    result = run(*command)
    assert result.returncode != 0
    assert "needs Linux and root" in result.stderr and "Traceback" not in result.stderr


def test_ranks_are_hosts_that_talk_over_their_interfaces_and_failures_leave_nothing(cluster):
    code = "from istmpi.comm import world; c = world(); print(sorted(c.hosts())); import sys; sys.exit(3)"
    result = run(*cluster("--hosts", "2", "--rate", "100mbit", "--"), sys.executable, "-c", code)
    assert f"['istmpi-{NAME}-0', 'istmpi-{NAME}-1']" in result.stdout, result.stderr
    assert result.returncode != 0
    assert "by the interfaces' counters" in result.stderr


def test_hosts_have_the_cores_that_the_command_may_use(cluster):
    last = max(os.sched_getaffinity(0))
    code = "import os, platform; print(f'{platform.node()} {sorted(os.sched_getaffinity(0))}\\n', end='')"
    result = run("taskset", "-c", last, *cluster("--hosts", "2", "--"), sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"istmpi-{NAME}-{host} [{last}]" for host in (0, 1)]


def test_a_terminated_cluster_leaves_nothing(cluster):
    command = [*map(str, cluster("--hosts", "2", "--")), "sh", "-c", "echo up; sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout.readline() == "up\n"
        assert len(namespaces()) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=patient(30)) != 0
    limit = Limit(5)
    while namespaces() and limit.left:
        time.sleep(0.1)


@pytest.mark.parametrize("method, peer", [("local-sgd", "local-sgd"), ("data-parallel", "ddp")])
def test_ours_and_the_peer_learn_the_same(mpirun, tmp_path, method, peer):
    train = mpirun(
        2,
        "istmpi",
        "train",
        *("--method", method, *TINY, "--rounds", ROUNDS, "--evaluate-every", 1, "--out", tmp_path / "ours"),
    )
    assert train.returncode == 0, train.stderr
    lines = map(json.loads, (tmp_path / "ours/metrics.jsonl").read_text().splitlines())
    expected = {line["local_steps"]: (line["score"], line["test_loss"]) for line in lines}
    assert sorted(expected) == [5, 10]

    steps = ["--steps", 5 * ROUNDS]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    curve = tmp_path / "curve.json"
    words = [*TINY, *steps, "--evaluate-every", 5, "--curve", curve]
    result = mpirun(
        2,
        "python",
        "-m",
        "benchmarks.time_to_accuracy.peers",
        peer,
        *words,
        env={"MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    theirs = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [point["samples"] for point in theirs] == [5 * 2 * 32, 10 * 2 * 32]
    assert all(point["bytes"] > 0 for point in theirs)
    report = run("istmpi", "report", tmp_path / "ours", curve, "--json")
    [comparison] = json.loads(report.stdout)["comparisons"]
    assert {(row["method"], row["ranks"]) for row in comparison["rows"]} == {(method, 2), (f"pytorch-{peer}", 2)}
    trained = [point for point in theirs if point["step"]]
    assert len(trained) == 2
    for point in trained:
        accuracy, loss = expected[point["step"]]
        assert point["loss"] == pytest.approx(loss, rel=1e-4)
        assert point["accuracy"] == pytest.approx(accuracy, abs=0.006)  # two of 360 examples may lie on the edge
